package api

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

// Target says how a daemon is reached: by a unix socket of this host, or by ssh.
type Target struct {
	Socket string // absolute path; empty: by ssh
	User   string // empty: whom ssh takes
	Host   string // name or address
	Port   int    // 0: the one ssh takes
}

// What the two kinds of addresses begin with.
const (
	sshScheme  = "ssh://"
	unixScheme = "unix://"
)

// ParseTarget reads "ssh://USER@HOST:PORT" (user and port may be left out),
// "unix:///PATH", or a bare HOST or USER@HOST. Every part is checked: it comes to stand
// on the command line of ssh.
func ParseTarget(s string) (Target, error) {
	if path, ok := strings.CutPrefix(s, unixScheme); ok {
		if !filepath.IsAbs(path) || strings.ContainsFunc(path, unprintable) {
			return Target{}, fmt.Errorf("%q needs an absolute path: unix:///PATH", s)
		}
		return Target{Socket: path}, nil
	}
	rest, isURL := strings.CutPrefix(s, sshScheme)
	if !isURL && strings.Contains(s, "://") {
		return Target{}, fmt.Errorf("%q is neither ssh://USER@HOST:PORT nor unix:///PATH", s)
	}
	var t Target
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		t.User, rest = rest[:at], rest[at+1:]
		if strings.Contains(t.User, ":") {
			// Not quoted: the message would show it.
			return Target{}, errors.New("an address must not hold a password; ssh is let in by a key")
		}
		if !isUser(t.User) {
			return Target{}, fmt.Errorf("%q is not a name of a user", t.User)
		}
	}
	var err error
	if isURL {
		t.Host, t.Port, err = parseAddress(strings.TrimSuffix(rest, "/"))
	} else {
		t.Host, err = rest, CheckHostName(rest)
	}
	if err != nil {
		return Target{}, err
	}
	return t, nil
}

// parseAddress reads HOST, HOST:PORT, [IPV6] and [IPV6]:PORT.
func parseAddress(s string) (host string, port int, err error) {
	var after string
	if inner, bracket := strings.CutPrefix(s, "["); bracket {
		var closed bool
		host, after, closed = strings.Cut(inner, "]")
		if !closed || !isIPv6(host) {
			return "", 0, fmt.Errorf("%q is not an IPv6 address", host)
		}
	} else {
		end := len(s)
		if colon := strings.IndexByte(s, ':'); colon >= 0 {
			end = colon
		}
		host, after = s[:end], s[end:]
		if err := CheckHostName(host); err != nil {
			return "", 0, err
		}
	}
	if after == "" {
		return host, 0, nil
	}
	digits, colon := strings.CutPrefix(after, ":")
	n, err := strconv.ParseUint(digits, 10, 16)
	if !colon || err != nil || n == 0 {
		return "", 0, fmt.Errorf("%q is not a port", digits)
	}
	return host, int(n), nil
}

// isIPv6 reports whether s can be an IPv6 address without a zone; ssh says the rest. By
// hand, because the hook has this package too: net would cost each of its starts.
func isIPv6(s string) bool {
	const longest = len("0000:0000:0000:0000:0000:ffff:255.255.255.255")
	return len(s) <= longest && strings.Count(s, ":") >= 2 && strings.Trim(s, "0123456789abcdefABCDEF:.") == ""
}

// isUser reports whether ssh may be told s as a user.
func isUser(s string) bool {
	return len(s) <= maxHostName && isName(strings.TrimPrefix(s, "_"))
}

// unprintable finds what has no place in a path of a socket: messages and logs show it.
func unprintable(r rune) bool { return !strconv.IsPrint(r) }

// String is the target as a URL that ParseTarget reads.
func (t Target) String() string {
	if t.Socket != "" {
		return unixScheme + t.Socket
	}
	host := t.Host
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if t.Port != 0 {
		host += ":" + strconv.Itoa(t.Port)
	}
	if t.User != "" {
		host = t.User + "@" + host
	}
	return sshScheme + host
}
