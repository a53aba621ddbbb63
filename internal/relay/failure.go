package relay

import (
	"fmt"
	"regexp"
	"strings"

	"virtlvm/internal/api"
)

// Failure is why no relay was reached.
type Failure int

// Failures. Those from HostKeyUnknown to Lost are ssh's.
const (
	NoRelay          Failure = iota // the command ended without a relay's line; see Detail
	NotInstalled                    // there is no such program as ssh on this host
	CannotRun                       // it could not be started; see Detail
	HostKeyUnknown                  // Detail: the name under which the key is looked for, where ssh tells
	HostKeyChanged                  // Detail: FILE:LINE of the old key
	PermissionDenied                // no key of ours lets us in
	KeyUnprotected                  // the private key is ignored: others may read it
	NameUnknown                     // the host's name does not resolve
	ConnRefused                     // the host is there, ssh's server is not
	NoRoute                         // no way to the host
	Silent                          // the host does not answer
	Lost                            // the connection broke off before the relay was reached
	NotSSH                          // something else listens there
	CommandMissing                  // virtlvm is not installed there
	CommandOld                      // virtlvm there knows no relay
	RelayRefused                    // the relay could not reach its daemon: Kind, Detail
	WrongVersion                    // Detail: the relay's version
	Noise                           // something else speaks where the relay should; Detail: its beginning
	TimedOut                        // no line of a relay in time
)

// DialError is a connection that did not come about. Nothing has been asked yet.
type DialError struct {
	Failure  Failure
	Program  string // what was run, such as "ssh"
	ExitCode int    // of the program; -1 where it did not exit
	Stderr   string // the end of what it printed
	Kind     api.Kind
	Detail   string // one line
}

// sshSays maps what OpenSSH prints to a failure; the first match wins. The texts are those
// of OpenSSH 8 to 10 (ssh.c, sshconnect.c, sshconnect2.c, packet.c, clientloop.c) and of
// the C library. A group, where there is one, is the detail.
var sshSays = []struct {
	pattern *regexp.Regexp
	failure Failure
}{
	{regexp.MustCompile(`(?m)^Offending [^ ]+ key in (\S+)`), HostKeyChanged},
	{regexp.MustCompile(`REMOTE HOST IDENTIFICATION HAS CHANGED`), HostKeyChanged},
	{regexp.MustCompile(`(?m)^No [^ ]+ host key is known for (\S+)`), HostKeyUnknown},
	{regexp.MustCompile(`(?m)^Host key verification failed`), HostKeyUnknown},
	{regexp.MustCompile(`UNPROTECTED PRIVATE KEY FILE`), KeyUnprotected},
	{regexp.MustCompile(`(?m)^(\S+: )?Permission denied \(|Too many authentication failures`), PermissionDenied},
	{regexp.MustCompile(`(?m)^ssh: Could not resolve hostname`), NameUnknown},
	{regexp.MustCompile(`(?m)^ssh: connect to host .*: Connection refused`), ConnRefused},
	{regexp.MustCompile(`(?m)^ssh: connect to host .*: (No route to host|Network is unreachable|Host is down)`), NoRoute},
	{regexp.MustCompile(`(?m)^ssh: connect to host .* timed out|^Connection timed out during|^Connection to .* timed out|^Timeout, server`), Silent},
	{regexp.MustCompile(`(?m)^banner exchange: .*: invalid format|No SSH version received`), NotSSH},
	{regexp.MustCompile(`(?m)^kex_exchange_identification|^Connection (reset|closed) by|^Connection to .* closed by remote|^client_loop: `), Lost},
}

// Exit codes that tell something: that of ssh for its own failures (ssh(1)), and those of
// a shell for a command that is missing (POSIX) and of virtlvm for wrong usage.
const (
	exitSSH     = 255
	exitMissing = 127
)

// failed makes the error of a command from what it has printed and how it has ended.
func (c *Conn) failed(otherwise Failure, noise string) *DialError {
	e := &DialError{Failure: otherwise, ExitCode: -1, Stderr: c.stderr.String(), Detail: noise}
	select {
	case <-c.Ended:
		e.ExitCode, e.Stderr = c.ExitCode(), c.stderr.String()
	default:
	}
	text := strings.ReplaceAll(e.Stderr, "\r", "")
	switch {
	case otherwise == Noise:
	case e.ExitCode == exitMissing:
		e.Failure = CommandMissing
	case e.ExitCode == api.ExitUsage && strings.Contains(text, `there is no command "relay"`):
		e.Failure = CommandOld
	case e.ExitCode == exitSSH || e.ExitCode == -1:
		e.fromSSH(text)
	}
	if e.Failure == NoRelay && e.Detail == "" {
		e.Detail = quoted(lastLine(text))
	}
	return e
}

func (e *DialError) fromSSH(text string) {
	for _, s := range sshSays {
		m := s.pattern.FindStringSubmatch(text)
		if m == nil {
			continue
		}
		e.Failure, e.Detail = s.failure, ""
		if len(m) > 1 {
			e.Detail = oneLine(m[1])
		}
		return
	}
}

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndexByte(s, '\n')+1:]
}

// Error says what happened on one line, not knowing which host it was.
func (e *DialError) Error() string {
	switch e.Failure {
	case NotInstalled:
		return e.Program + " is not installed on this host"
	case CannotRun:
		return e.Detail
	case HostKeyUnknown:
		if e.Detail != "" {
			return "no host key is known here for " + e.Detail
		}
		return "its host key is not known here"
	case HostKeyChanged:
		if e.Detail != "" {
			return "its host key is not the one in " + e.Detail
		}
		return "its host key is not the one known here"
	case PermissionDenied:
		return "it does not let us in: no key of ours is accepted"
	case KeyUnprotected:
		return "the private key can be read by others, so ssh ignores it"
	case NameUnknown:
		return "its name does not resolve"
	case ConnRefused:
		return "no ssh server listens there"
	case NoRoute:
		return "there is no route to it"
	case Silent:
		return "it does not answer"
	case Lost:
		return "it broke off the connection: " + oneLine(lastLine(e.Stderr))
	case NotSSH:
		return "what listens there is no ssh server"
	case CommandMissing:
		return "virtlvm is not installed there"
	case CommandOld:
		return "the virtlvm there is too old: it has no relay"
	case RelayRefused:
		return e.Detail
	case WrongVersion:
		return fmt.Sprintf("virtlvm there speaks protocol %s, this one %d.%d", e.Detail, api.ProtocolMajor, api.ProtocolMinor)
	case Noise:
		return "something else than a relay answers: " + e.Detail
	case TimedOut:
		if e.Detail != "" {
			return "it logs in, but no relay answers in time, only " + e.Detail
		}
		return "no relay answers in time"
	}
	if e.Detail == "" {
		return fmt.Sprintf("%s ended without a word (exit code %d)", e.Program, e.ExitCode)
	}
	return fmt.Sprintf("no relay was started (exit code %d): %s", e.ExitCode, e.Detail)
}

// ErrorKind is the kind for programs: unreachable, but for a relay's own verdict and an
// unfit version.
func (e *DialError) ErrorKind() api.Kind {
	switch e.Failure {
	case RelayRefused:
		if e.Kind == api.KindForbidden {
			return api.KindForbidden
		}
	case WrongVersion, CommandOld:
		return api.KindUnsupported
	}
	return api.KindUnreachable
}
