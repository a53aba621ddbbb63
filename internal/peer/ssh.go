package peer

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"virtlvm/internal/api"
	"virtlvm/internal/relay"
)

// Files in the folder of [peers] ssh_dir.
const (
	keyFile   = "id_ed25519"
	hostsFile = "known_hosts"
)

// sshOptions are what a daemon's ssh does otherwise than a person's: it takes its own key,
// believes only host keys that are known, and shares no connection with anybody. Where it has no
// key of its own, or the other host does not take that (yet), those of root are tried.
func sshOptions(dir string) []string {
	options := []string{
		"StrictHostKeyChecking=yes",
		"UserKnownHostsFile=" + filepath.Join(dir, hostsFile) + " ~/.ssh/known_hosts",
		"UpdateHostKeys=no",
		"ControlMaster=no",
		"ControlPath=none",
		"ClearAllForwardings=yes",
		"ForwardAgent=no",
		"ForwardX11=no",
		"PermitLocalCommand=no",
	}
	key := filepath.Join(dir, keyFile)
	if _, err := os.Stat(key); err == nil {
		// A key that is named takes the place of the usual ones, so these are named as well.
		options = append(options, "IdentitiesOnly=yes", "IdentityFile="+key,
			"IdentityFile=~/.ssh/id_ed25519", "IdentityFile=~/.ssh/id_ecdsa", "IdentityFile=~/.ssh/id_rsa")
	}
	return options
}

// sshEnv is what ssh finds around it: not the daemon's own settings, and no agent.
func sshEnv() []string {
	env := []string{"LC_ALL=C", "SSH_ASKPASS_REQUIRE=never"}
	for _, name := range []string{"PATH", "HOME"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// defaultName is how sanlock names a host that has no our_host_name: a random uuid, a dot
// and the start of the host's name (sanlock.conf(5)).
var defaultName = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\.`)

// explainDial makes the one line for a relay that was not reached, with what to do.
func (w where) explainDial(err error) error {
	var e *relay.DialError
	if !errors.As(err, &e) {
		return w.unreachable(err.Error(), err)
	}
	message := fmt.Sprintf("cannot reach %s: %s", w.name, e)
	if fix := w.fix(e); fix != "" {
		message += "; " + fix
	}
	return api.WrapError(e.ErrorKind(), message, err)
}

// fix knows what the daemon's own ssh needs, where that differs from what a person's does.
func (w where) fix(e *relay.DialError) string {
	address := strings.TrimPrefix(w.target.String(), "ssh://")
	switch e.Failure {
	case relay.HostKeyUnknown:
		return fmt.Sprintf("run `virtlvm peer authorize` on %s and put its host key into %s here", w.name, filepath.Join(w.sshDir, hostsFile))
	case relay.PermissionDenied:
		return fmt.Sprintf("run `virtlvm peer authorize` here and put the key into the authorized_keys of %s", address)
	case relay.KeyUnprotected:
		return "run `chmod 600 " + filepath.Join(w.sshDir, keyFile) + "`"
	case relay.NameUnknown:
		if defaultName.MatchString(w.name) {
			return "set our_host_name in /etc/sanlock/sanlock.conf on that host"
		}
		return "put it into DNS or /etc/hosts, or its address into [peers] hosts of virtlvm.toml"
	case relay.ConnRefused:
		return "start sshd there, or put its port into [peers] hosts of virtlvm.toml"
	case relay.RelayRefused:
		return "run `systemctl start virtlvmd-peer.socket virtlvmd.service` there"
	case relay.Noise, relay.NoRelay, relay.TimedOut:
		return "see what a login as " + address + " prints, and the forced command in its authorized_keys"
	}
	return e.Fix(w.name)
}
