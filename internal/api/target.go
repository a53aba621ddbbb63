package api

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// Target says how a daemon is reached: by a unix socket of this host, or by ssh.
type Target struct {
	Socket string // absolute path; empty: by ssh
	User   string // empty: whom ssh takes
	Host   string // name or address
	Port   int    // 0: the one ssh takes
}

// userName is a user as ssh may be told one: no option, no second word in a shell.
var userName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,63}$`) })

// ParseTarget reads "ssh://USER@HOST:PORT" (user and port may be left out),
// "unix:///PATH", or a bare HOST or USER@HOST. Every part is checked: it comes to stand
// on the command line of ssh.
func ParseTarget(s string) (Target, error) {
	if path, ok := strings.CutPrefix(s, "unix://"); ok {
		if !filepath.IsAbs(path) || strings.ContainsFunc(path, unprintable) {
			return Target{}, fmt.Errorf("%q needs an absolute path: unix:///PATH", s)
		}
		return Target{Socket: path}, nil
	}
	rest, isURL := strings.CutPrefix(s, "ssh://")
	if !isURL {
		if strings.Contains(s, "://") {
			return Target{}, fmt.Errorf("%q is neither ssh://USER@HOST:PORT nor unix:///PATH", s)
		}
		return bareTarget(s)
	}
	u, err := url.Parse(s)
	if err != nil || u.Opaque != "" || strings.Trim(u.Path, "/") != "" || strings.ContainsAny(s, "?#") {
		return Target{}, fmt.Errorf("%q is not of the form ssh://USER@HOST:PORT", s)
	}
	if _, secret := u.User.Password(); secret {
		// Not quoted: the message would show it.
		return Target{}, fmt.Errorf("an ssh:// address must not hold a password; ssh is let in by a key")
	}
	host := u.Hostname()
	if _, err := netip.ParseAddr(host); err != nil || strings.Contains(host, "%") {
		if err := CheckHostName(host); err != nil {
			return Target{}, err
		}
	}
	t := Target{User: u.User.Username(), Host: host}
	if strings.Contains(rest, "@") && !userName().MatchString(t.User) {
		return Target{}, fmt.Errorf("%q is not a name of a user", t.User)
	}
	if p := u.Port(); p != "" {
		t.Port, err = strconv.Atoi(p)
		if err != nil || t.Port < 1 || t.Port > 65535 {
			return Target{}, fmt.Errorf("%q is not a port", p)
		}
	}
	return t, nil
}

func bareTarget(s string) (Target, error) {
	user, host, hasUser := strings.Cut(s, "@")
	if !hasUser {
		user, host = "", s
	} else if !userName().MatchString(user) {
		return Target{}, fmt.Errorf("%q is not a name of a user", user)
	}
	if err := CheckHostName(host); err != nil {
		return Target{}, err
	}
	return Target{User: user, Host: host}, nil
}

// unprintable finds what has no place in a path of a socket: messages and logs show it.
func unprintable(r rune) bool { return !strconv.IsPrint(r) }

// String is the target as a URL that ParseTarget reads.
func (t Target) String() string {
	if t.Socket != "" {
		return "unix://" + t.Socket
	}
	host := t.Host
	switch {
	case t.Port != 0:
		host = net.JoinHostPort(host, strconv.Itoa(t.Port))
	case strings.Contains(host, ":"):
		host = "[" + host + "]"
	}
	if t.User != "" {
		host = t.User + "@" + host
	}
	return "ssh://" + host
}
