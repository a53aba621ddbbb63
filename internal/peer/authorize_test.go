package peer

import (
	"encoding/base64"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/internal/run"
	"virtlvm/internal/run/runtest"
)

// Public keys as ssh-keygen writes them.
const (
	ourKey   = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDVyoiLVvXYJPrhLpYlHm0bYnhOZDDpfx7dRSQwLUC2w"
	rsaKey   = "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAgQ=="
	hostKey  = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIF5bWa8fJZb8cXbC5XG4tH3D6r5yV1hG2eZ3o0j6Tq1u"
	otherKey = "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTY="
)

// folders are ssh_dir, not made yet, and a folder with keys of an ssh server.
func folders(t *testing.T) (sshDir, hostKeys string) {
	t.Helper()
	dir := t.TempDir()
	for name, key := range map[string]string{"ssh_host_rsa_key.pub": rsaKey + " root@x\n", "ssh_host_ed25519_key.pub": hostKey + "\n", "ssh_config": "x"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(key), 0o600))
	}
	return filepath.Join(dir, "etc", "ssh"), dir
}

func TestAuthorizeMakesAKey(t *testing.T) {
	sshDir, hostKeys := folders(t)
	key := filepath.Join(sshDir, "id_ed25519")
	fake := runtest.New(t)
	fake.Expect("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "virtlvm@kvm-a", "-f", key).Do(func(run.Cmd) {
		assert.NoError(t, os.WriteFile(key, nil, 0o600))
	})
	fake.Expect("ssh-keygen", "-y", "-P", "", "-f", key).Stdout(ourKey + " a comment, odd\n").Always()
	a, err := Authorize(t.Context(), fake, "kvm-a", sshDir, hostKeys)
	require.NoError(t, err)
	want := Authorization{
		Host: "kvm-a", KeyFile: key, Created: true,
		AuthorizedKeys: `command="virtlvm relay --peer kvm-a",restrict ` + ourKey + " virtlvm@kvm-a",
		KnownHosts:     []string{"kvm-a " + hostKey, "kvm-a " + rsaKey},
	}
	assert.Equal(t, want, a)
	info, err := os.Stat(sshDir)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o700), info.Mode().Perm())
	info, err = os.Stat(filepath.Dir(sshDir))
	require.NoError(t, err)
	assert.NotZero(t, info.Mode().Perm()&0o005, "the folder above is for everybody")

	a, err = Authorize(t.Context(), fake, "kvm-a", sshDir, hostKeys)
	require.NoError(t, err)
	want.Created = false
	assert.Equal(t, want, a, "a second time it is only shown")
}

func TestAuthorizeWithTheRealTool(t *testing.T) {
	if _, err := exec.LookPath("ssh-keygen"); err != nil {
		t.Skip("no ssh-keygen on this machine")
	}
	sshDir, hostKeys := folders(t)
	r := run.NewExec(run.ExecOptions{OutDir: t.TempDir()})
	a, err := Authorize(t.Context(), r, "kvm-a", sshDir, hostKeys)
	require.NoError(t, err)
	assert.True(t, a.Created)
	info, err := os.Stat(a.KeyFile)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	public, err := os.ReadFile(a.KeyFile + ".pub")
	require.NoError(t, err)
	assert.Equal(t, `command="virtlvm relay --peer kvm-a",restrict `+strings.TrimSpace(string(public)), a.AuthorizedKeys)

	// A public key of another one beside it does not matter, nor one that is missing.
	require.NoError(t, os.WriteFile(a.KeyFile+".pub", []byte(otherKey), 0o600))
	again, err := Authorize(t.Context(), r, "kvm-a", sshDir, hostKeys)
	require.NoError(t, err)
	assert.Equal(t, a.AuthorizedKeys, again.AuthorizedKeys)

	require.NoError(t, os.WriteFile(a.KeyFile, []byte("no key"), 0o600))
	_, err = Authorize(t.Context(), r, "kvm-a", sshDir, hostKeys)
	require.ErrorContains(t, err, "cannot read the key "+a.KeyFile+" (it must have no passphrase)")
}

func TestAuthorizeRefuses(t *testing.T) {
	sshDir, hostKeys := folders(t)
	key := filepath.Join(sshDir, "id_ed25519")
	_, err := Authorize(t.Context(), runtest.New(t), `a",command="id`, sshDir, hostKeys)
	refusal(t, err, api.KindBadRequest, "this host cannot be a peer")

	fake := runtest.New(t)
	fake.Expect("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "virtlvm@kvm-a", "-f", key).Fail(&run.NotFoundError{Name: "ssh-keygen", Err: os.ErrNotExist})
	_, err = Authorize(t.Context(), fake, "kvm-a", sshDir, hostKeys)
	require.ErrorContains(t, err, "cannot make a key: install openssh-client")

	require.NoError(t, os.WriteFile(key, nil, 0o600))
	for _, out := range []string{"", "ssh-ed25519", "ssh-ed25519 not!base64", ourKey + "\n" + ourKey, `x",y AAAA`} {
		fake = runtest.New(t)
		fake.Expect("ssh-keygen", "-y", "-P", "", "-f", key).Stdout(out)
		_, err = Authorize(t.Context(), fake, "kvm-a", sshDir, hostKeys)
		require.ErrorContains(t, err, "cannot read the key "+key)
	}

	require.NoError(t, os.WriteFile(filepath.Join(hostKeys, "ssh_host_dsa_key.pub"), []byte("junk"), 0o600))
	fake = runtest.New(t)
	fake.Expect("ssh-keygen", "-y", "-P", "", "-f", key).Stdout(ourKey)
	_, err = Authorize(t.Context(), fake, "kvm-a", sshDir, hostKeys)
	require.ErrorContains(t, err, "cannot read the key of this host in")

	blocked := filepath.Join(hostKeys, "ssh_config", "ssh")
	_, err = Authorize(t.Context(), runtest.New(t), "kvm-a", blocked, hostKeys)
	require.ErrorContains(t, err, "cannot look for the key")
	refusal(t, unreadable("cannot make the folder of the key", os.ErrPermission), api.KindForbidden, "run this as root")
}

func TestKeysOfTheTestsAreKeys(t *testing.T) {
	for _, key := range []string{ourKey, rsaKey, hostKey, otherKey} {
		_, err := base64.StdEncoding.DecodeString(strings.Fields(key)[1])
		require.NoError(t, err)
	}
}
