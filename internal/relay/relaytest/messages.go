package relaytest

import "strings"

// Failure is what ssh prints on standard error when it fails, and its exit code.
type Failure struct {
	Name   string
	Stderr string
	Exit   int
}

// banner is what sshd's option Banner sends; ssh prints it before most failures.
const banner = "*** AUTHORISED USERS ONLY: sessions are timed out, Permission denied to others ***\n"

// Failures were printed by OpenSSH 9.2 (Debian 12) against its own server and against
// ports where something else, or nothing, listened.
func Failures() []Failure {
	return []Failure{
		{"host key unknown", crlf("No ED25519 host key is known for [kvm-b]:2222 and you have requested strict checking.", "Host key verification failed."), 255},
		{"host key unknown, not asked", crlf("Host key verification failed."), 255},
		{"host key changed", crlf(
			"@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@",
			"@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @",
			"@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@",
			"IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!",
			"Someone could be eavesdropping on you right now (man-in-the-middle attack)!",
			"It is also possible that a host key has just been changed.",
		) + "The fingerprint for the ED25519 key sent by the remote host is\n" + crlf(
			"SHA256:UmWX3XcbdjoUclCAoLuzZ43LkJVr5zfCwD2wTwr5EEE.",
			"Please contact your system administrator.",
			"Add correct host key in /etc/virtlvm/ssh/known_hosts to get rid of this message.",
			"Offending ED25519 key in /etc/virtlvm/ssh/known_hosts:1",
			"  remove with:",
			`  ssh-keygen -f "/etc/virtlvm/ssh/known_hosts" -R "kvm-b"`,
			"Host key for kvm-b has changed and you have requested strict checking.",
			"Host key verification failed.",
		), 255},
		{"permission denied", banner + crlf("root@kvm-b: Permission denied (publickey,keyboard-interactive)."), 255},
		{"permission denied, old", crlf("Permission denied (publickey,password)."), 255},
		{"too many keys", banner + crlf("Received disconnect from 10.0.0.2 port 22:2: Too many authentication failures", "Disconnected from 10.0.0.2 port 22"), 255},
		{"key unprotected", banner + crlf(
			"@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@",
			"@         WARNING: UNPROTECTED PRIVATE KEY FILE!          @",
			"@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@",
			"Permissions 0644 for '/etc/virtlvm/ssh/id_ed25519' are too open.",
			"It is required that your private key files are NOT accessible by others.",
			"This private key will be ignored.",
			`Load key "/etc/virtlvm/ssh/id_ed25519": bad permissions`,
			"root@kvm-b: Permission denied (publickey,keyboard-interactive).",
		), 255},
		{"name unknown", crlf("ssh: Could not resolve hostname kvm-b: Name or service not known"), 255},
		{"name server silent", crlf("ssh: Could not resolve hostname kvm-b: Temporary failure in name resolution"), 255},
		{"connection refused", crlf("ssh: connect to host kvm-b port 22: Connection refused"), 255},
		{"no route", crlf("ssh: connect to host kvm-b port 22: No route to host"), 255},
		{"network unreachable", crlf("ssh: connect to host kvm-b port 22: Network is unreachable"), 255},
		{"connect timeout", crlf("ssh: connect to host kvm-b port 22: Connection timed out"), 255},
		{"banner timeout", crlf("Connection timed out during banner exchange", "Connection to 10.0.0.2 port 22 timed out"), 255},
		{"keepalive", crlf("Timeout, server kvm-b not responding."), 255},
		{"closed while shaking hands", crlf("kex_exchange_identification: read: Connection reset by peer", "Connection reset by 10.0.0.2 port 22"), 255},
		{"closed", crlf("Connection closed by 10.0.0.2 port 22"), 255},
		{"not ssh", crlf("kex_exchange_identification: No SSH version received in first 1024 lines from server", "banner exchange: Connection to 10.0.0.2 port 22: invalid format"), 255},
		{"no common cipher", crlf("Unable to negotiate with 10.0.0.2 port 22: no matching cipher found. Their offer: aes128-ctr"), 255},
		{"command missing", banner + "bash: line 1: virtlvm: command not found\n", 127},
		{"command missing, dash", "sh: 1: virtlvm: not found\n", 127},
		{"command old", "virtlvm: there is no command \"relay\". Did you mean \"help\"? See `virtlvm --help`\n", 2},
		{"command not executable", "bash: line 1: /usr/bin/virtlvm: Permission denied\n", 126},
		{"silent end", "", 1},
	}
}

// crlf ends lines as ssh does, which expects a terminal in raw mode.
func crlf(lines ...string) string { return strings.Join(lines, "\r\n") + "\r\n" }
