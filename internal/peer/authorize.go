package peer

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"virtlvm/internal/api"
	"virtlvm/internal/run"
)

// Authorization is what the other hosts need to let this host in and to know it.
type Authorization struct {
	Host    string `json:"host"`
	KeyFile string `json:"key_file"` // the private key, on this host
	Created bool   `json:"created"`  // it was made just now
	// AuthorizedKeys goes into ~/.ssh/authorized_keys of the other hosts. It binds the key
	// to this host's name and to nothing but the relay (sshd(8), AUTHORIZED_KEYS).
	AuthorizedKeys string `json:"authorized_keys"`
	// KnownHosts go into known_hosts below ssh_dir of the other hosts.
	KnownHosts []string `json:"known_hosts"`
}

// Authorize makes this host's key below sshDir where it is missing, and says what the
// other hosts need. hostKeys is the folder of the public keys of this host's ssh server,
// such as /etc/ssh.
func Authorize(ctx context.Context, r run.Runner, self, sshDir, hostKeys string) (Authorization, error) {
	a := Authorization{Host: self, KeyFile: filepath.Join(sshDir, keyFile), KnownHosts: []string{}}
	if err := api.CheckHostName(self); err != nil {
		return a, api.NewError(api.KindBadRequest, fmt.Sprintf("this host cannot be a peer: %v; set our_host_name in /etc/sanlock/sanlock.conf", err))
	}
	var err error
	if a.Created, err = makeKey(ctx, r, a.KeyFile, "virtlvm@"+self); err != nil {
		return a, err
	}
	public, err := publicKey(ctx, r, a.KeyFile)
	if err != nil {
		return a, err
	}
	a.AuthorizedKeys = fmt.Sprintf(`command="virtlvm relay --peer %s",restrict %s virtlvm@%s`, self, public, self)
	files, err := filepath.Glob(filepath.Join(hostKeys, "ssh_host_*_key.pub"))
	if err != nil {
		return a, fmt.Errorf("cannot look for the keys of this host: %w", err)
	}
	slices.Sort(files)
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return a, unreadable("cannot read a key of this host", err)
		}
		key, err := parsePublic(string(data))
		if err != nil {
			return a, fmt.Errorf("cannot read the key of this host in %s: %w", file, err)
		}
		a.KnownHosts = append(a.KnownHosts, self+" "+key)
	}
	return a, nil
}

// makeKey makes a key without a passphrase, since nobody is there to be asked for one.
func makeKey(ctx context.Context, r run.Runner, file, comment string) (bool, error) {
	_, err := os.Stat(file)
	if err == nil {
		return false, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return false, unreadable("cannot look for the key", err)
	}
	dir := filepath.Dir(file)
	// The folder above holds files that everybody may read.
	err = os.MkdirAll(filepath.Dir(dir), 0o755) //nolint:gosec // as /etc/virtlvm is
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err != nil {
		return false, unreadable("cannot make the folder of the key", err)
	}
	_, err = r.Run(ctx, run.Cmd{Name: "ssh-keygen", Args: []string{"-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", file}})
	return err == nil, keygen("cannot make a key", err)
}

// publicKey derives the public key: the file beside the private one may belong to another.
func publicKey(ctx context.Context, r run.Runner, file string) (string, error) {
	res, err := r.Run(ctx, run.Cmd{Name: "ssh-keygen", Args: []string{"-y", "-P", "", "-f", file}})
	if err != nil {
		return "", keygen("cannot read the key "+file+" (it must have no passphrase)", err)
	}
	key, err := parsePublic(string(res.Stdout))
	if err != nil {
		return "", fmt.Errorf("cannot read the key %s: %w", file, err)
	}
	return key, nil
}

// parsePublic takes type and key from a line of OpenSSH's format (sshd(8)); the comment
// may be anything.
func parsePublic(line string) (string, error) {
	f := strings.Fields(line)
	if len(f) < 2 || strings.Contains(strings.TrimSpace(line), "\n") {
		return "", errors.New("it is not one public key")
	}
	if _, err := base64.StdEncoding.DecodeString(f[1]); err != nil || strings.ContainsAny(f[0], `",`) {
		return "", errors.New("it is not a public key")
	}
	return f[0] + " " + f[1], nil
}

func keygen(what string, err error) error {
	var missing *run.NotFoundError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &missing):
		return fmt.Errorf("%s: install openssh-client: %w", what, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// unreadable gives an error of the file system the kind that fits.
func unreadable(what string, err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return api.WrapError(api.KindForbidden, fmt.Sprintf("%s: %v; run this as root", what, err), err)
	}
	return fmt.Errorf("%s: %w", what, err)
}
