package peer

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/internal/relay/relaytest"
)

// login is an ssh that runs the forced command of kvm-b's authorized_keys: a relay to the
// daemon there under the name that belongs to the key.
func login(socket, name string) string {
	return "GORACE=atexit_sleep_ms=0 " + socketVariable + "='" + socket + "' PEER_TEST_NAME='" + name + "' exec '" + os.Args[0] + "'"
}

func TestThroughSSH(t *testing.T) {
	dir := t.TempDir()
	ssh := relaytest.FakeSSH(t, "echo 'Welcome to kvm-b'; echo banner >&2; "+login(daemon(t), "kvm-a"))
	cfg := settings(map[string]string{"kvm-b": "ssh://op@10.0.0.2:2222"})
	cfg.SSHDir = dir
	p := peersOf(t, cfg)
	var v api.Version
	for range 5 {
		require.NoError(t, p.Do(t.Context(), "kvm-b", http.MethodGet, api.RouteVersion, nil, &v))
	}
	assert.Equal(t, "kvm-a", v.Peer)
	calls := ssh.Calls()
	require.NotEmpty(t, calls)
	require.Less(t, len(calls), 5, "a connection is kept")
	want := "-T -o StrictHostKeyChecking=yes -o UserKnownHostsFile=" + dir + "/known_hosts ~/.ssh/known_hosts -o UpdateHostKeys=no " +
		"-o ControlMaster=no -o ControlPath=none -o ClearAllForwardings=yes -o ForwardAgent=no -o ForwardX11=no -o PermitLocalCommand=no " +
		"-o BatchMode=yes -o ConnectTimeout=30 -o ServerAliveInterval=5 -o ServerAliveCountMax=3 -o RemoteCommand=none -o LogLevel=INFO " +
		"-l op -p 2222 -- 10.0.0.2 virtlvm relay --peer kvm-a"
	assert.Equal(t, want, strings.Join(calls[0], " "))
}

func TestKeyOfOurOwn(t *testing.T) {
	dir := t.TempDir()
	assert.NotContains(t, strings.Join(sshOptions(dir), " "), "Identit", "root's own keys")
	key := filepath.Join(dir, "id_ed25519")
	require.NoError(t, os.WriteFile(key, nil, 0o600))
	options := sshOptions(dir)
	assert.Equal(t, []string{
		"IdentitiesOnly=yes", "IdentityFile=" + key,
		"IdentityFile=~/.ssh/id_ed25519", "IdentityFile=~/.ssh/id_ecdsa", "IdentityFile=~/.ssh/id_rsa",
	}, options[len(options)-5:], "and root's after it")
}

// The name that counts is the one of the forced command, not the one we ask for.
func TestForcedCommandDecides(t *testing.T) {
	relaytest.FakeSSH(t, login(daemon(t), "kvm-x"))
	refusal(t, post(t, peersOf(t, settings(nil))), api.KindForbidden, "kvm-b knows this host, kvm-a, as kvm-x")
}

// The forced command of an administrator's own key may lack --peer: a relay to the socket
// for people, where no preamble is read.
func TestForcedCommandWithoutPeer(t *testing.T) {
	v := goodVersion()
	v.Peer = ""
	relaytest.FakeSSH(t, `echo virtlvm-relay 1.0; read -r line; printf 'HTTP/1.1 200 OK\r\nContent-Length: 95\r\n\r\n%-95s' '`+
		`{"version":"1","commit":"c","schema":1,"protocol_major":1,"protocol_minor":0,"host":"kvm-b"}'; cat >/dev/null`)
	refusal(t, post(t, peersOf(t, settings(nil))), api.KindForbidden, `must say command="virtlvm relay --peer kvm-a"`)
}

func TestEachFailureOfSSHNamesTheFix(t *testing.T) {
	const dir = "/nonexistent/ssh"
	want := map[string]string{
		"host key unknown":            "cannot reach kvm-b: no host key is known here for [kvm-b]:2222; run `virtlvm peer authorize` on kvm-b and put its host key into " + dir + "/known_hosts here",
		"host key unknown, not asked": "cannot reach kvm-b: its host key is not known here; run `virtlvm peer authorize` on kvm-b and put its host key into " + dir + "/known_hosts here",
		"host key changed":            "cannot reach kvm-b: its host key is not the one in /etc/virtlvm/ssh/known_hosts:1; if that host was installed anew, replace the old key; else somebody stands between",
		"permission denied":           "cannot reach kvm-b: it does not let us in: no key of ours is accepted; run `virtlvm peer authorize` here and put the key into the authorized_keys of root@kvm-b",
		"key unprotected":             "cannot reach kvm-b: the private key can be read by others, so ssh ignores it; run `chmod 600 " + dir + "/id_ed25519`",
		"name unknown":                "cannot reach kvm-b: its name does not resolve; put it into DNS or /etc/hosts, or its address into [peers] hosts of virtlvm.toml",
		"connection refused":          "cannot reach kvm-b: no ssh server listens there; start sshd there, or put its port into [peers] hosts of virtlvm.toml",
		"no route":                    "cannot reach kvm-b: there is no route to it; see whether the host and the network between are up",
		"connect timeout":             "cannot reach kvm-b: it does not answer; see whether the host and the network between are up",
		"keepalive":                   "cannot reach kvm-b: it does not answer; see whether the host and the network between are up",
		"closed":                      "cannot reach kvm-b: it broke off the connection: Connection closed by 10.0.0.2 port 22; see the journal of sshd there",
		"not ssh":                     "cannot reach kvm-b: what listens there is no ssh server; check host and port",
		"command missing":             "cannot reach kvm-b: virtlvm is not installed there; install it",
		"command old":                 "cannot reach kvm-b: the virtlvm there is too old: it has no relay; bring both hosts to the same release",
		"silent end":                  "cannot reach kvm-b: ssh ended without a word (exit code 1); see what a login as root@kvm-b prints, and the forced command in its authorized_keys",
	}
	ssh := relaytest.FakeSSH(t, "exit 1")
	for _, f := range relaytest.Failures() {
		text, ok := want[f.Name]
		if !ok {
			continue
		}
		delete(want, f.Name)
		ssh.Becomes(f.Fails())
		err := post(t, peersOf(t, settings(nil)))
		require.EqualError(t, err, text, f.Name)
		kind := api.KindUnreachable
		if f.Name == "command old" {
			kind = api.KindUnsupported
		}
		assert.Equal(t, kind, api.KindOf(err), f.Name)
	}
	assert.Empty(t, want)

	ssh.Becomes("echo 'virtlvm-relay-error unreachable virtlvmd does not run: there is no /run/virtlvm/peer.sock'; exit 3")
	require.EqualError(t, post(t, peersOf(t, settings(nil))), "cannot reach kvm-b: virtlvmd does not run: there is no /run/virtlvm/peer.sock; run `systemctl start virtlvmd-peer.socket virtlvmd.service` there")
	ssh.Becomes("echo virtlvm-relay 3.0; sleep 60")
	refusal(t, post(t, peersOf(t, settings(nil))), api.KindUnsupported, "virtlvm there speaks protocol 3.0, this one 1.0; bring both hosts to the same release")

	ssh.Becomes("echo 'ssh: Could not resolve hostname x: Name or service not known' >&2; exit 255")
	const random = "f0d4e1a2-0b1c-4d2e-8f3a-5b6c7d8e9f00.kvm-b"
	err := peersOf(t, settings(nil)).Do(t.Context(), random, http.MethodGet, "/x", nil, nil)
	refusal(t, err, api.KindUnreachable, "set our_host_name in /etc/sanlock/sanlock.conf on that host")
}

// Neither a question on a terminal nor a host that hangs holds a call up.
func TestSSHThatHangs(t *testing.T) {
	for name, script := range map[string]string{
		"hangs":        "exec sleep 600",
		"asks":         "printf \"root@kvm-b's password: \" >/dev/tty; read -r answer </dev/tty; exec sleep 600",
		"asks at last": "echo Welcome; printf 'Are you sure you want to continue connecting (yes/no)? '; read -r answer; exit 1",
		"hangs later":  "echo virtlvm-relay 1.0; exec sleep 600",
	} {
		t.Run(name, func(t *testing.T) {
			relaytest.FakeSSH(t, script)
			cfg := settings(nil)
			cfg.ConnectTimeout = 150 * time.Millisecond
			began := time.Now()
			refusal(t, post(t, peersOf(t, cfg)), api.KindUnreachable, "cannot reach kvm-b: ")
			assert.Less(t, time.Since(began), patience)
		})
	}
}

func TestSSHDiesWhileAsked(t *testing.T) {
	// It answers the version, takes the request and dies without a word.
	relaytest.FakeSSH(t, `echo virtlvm-relay 1.0; read -r line; read -r line; read -r line; read -r line
body='{"version":"1","commit":"c","schema":1,"protocol_major":1,"protocol_minor":0,"host":"kvm-b","peer":"kvm-a"}'
printf 'HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s' ${#body} "$body"; read -r line; kill -9 $$`)
	refusal(t, post(t, peersOf(t, settings(nil))), api.KindUnknown, "kvm-b may or may not have done it: the connection broke off")
}

func TestNoSSHHere(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	refusal(t, post(t, peersOf(t, settings(nil))), api.KindUnreachable, "cannot reach kvm-b: ssh is not installed on this host; install openssh-client")
}
