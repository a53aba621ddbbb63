package relay

import "virtlvm/internal/api"

// Fix says what an administrator can do, as the end of a sentence; "" where the error says
// all. host is how the other host was named.
func (e *DialError) Fix(host string) string {
	switch e.Failure {
	case NotInstalled:
		return "install openssh-client"
	case HostKeyUnknown:
		return "run `ssh " + host + "` once by hand and compare the key"
	case HostKeyChanged:
		return "if that host was installed anew, replace the old key; else somebody stands between"
	case PermissionDenied:
		return "put your public key into the authorized_keys there (a key with a passphrase needs an agent)"
	case KeyUnprotected:
		return "take its permissions from group and others with chmod"
	case NameUnknown:
		return "check the name, or put it into DNS or /etc/hosts"
	case ConnRefused:
		return "start sshd there, or name its port as in ssh://root@" + host + ":2222"
	case NoRoute, Silent:
		return "see whether the host and the network between are up"
	case Lost:
		return "see the journal of sshd there"
	case NotSSH:
		return "check host and port"
	case CommandMissing:
		return "install it"
	case CommandOld, WrongVersion:
		return "bring both hosts to the same release"
	case RelayRefused:
		if e.Kind == api.KindForbidden {
			return "log in there as root or as a member of the group virtlvm"
		}
		return "run `systemctl start virtlvmd.socket virtlvmd.service` there"
	case Noise, NoRelay, TimedOut:
		return "see what `ssh " + host + " virtlvm relay` prints"
	}
	return ""
}
