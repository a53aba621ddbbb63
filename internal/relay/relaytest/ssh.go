// Package relaytest stands in for ssh in tests: a script named ssh, first in PATH, and what
// the real one prints when it fails.
package relaytest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// SSH is a fake ssh.
type SSH struct {
	t   testing.TB
	dir string
}

// FakeSSH puts a shell script named ssh first in PATH until the test ends. It notes its
// arguments, then runs body.
func FakeSSH(t *testing.T, body string) *SSH {
	t.Helper()
	s := &SSH{t: t, dir: t.TempDir()}
	t.Setenv("PATH", s.dir+":"+os.Getenv("PATH"))
	s.Becomes(body)
	return s
}

// Becomes replaces what the script does.
func (s *SSH) Becomes(body string) {
	s.t.Helper()
	script := fmt.Sprintf("#!/bin/sh\n(printf '%%s\\n' \"$@\" && echo) >>'%s'\n%s\n", s.log(), body)
	// A file that is being run cannot be written: a new one takes its place.
	fresh := filepath.Join(s.dir, "ssh.new")
	if err := os.WriteFile(fresh, []byte(script), 0o755); err != nil { //nolint:gosec // a script that is run
		s.t.Fatal(err)
	}
	if err := os.Rename(fresh, filepath.Join(s.dir, "ssh")); err != nil {
		s.t.Fatal(err)
	}
}

// Calls are the arguments of every call so far.
func (s *SSH) Calls() [][]string {
	s.t.Helper()
	data, err := os.ReadFile(s.log())
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		s.t.Fatal(err)
	}
	var calls [][]string
	for _, call := range strings.Split(strings.TrimSuffix(string(data), "\n\n"), "\n\n") {
		calls = append(calls, strings.Split(call, "\n"))
	}
	return calls
}

func (s *SSH) log() string { return filepath.Join(s.dir, "calls") }

// Fails is a script that prints a failure of ssh and exits as ssh does.
func (f Failure) Fails() string {
	return fmt.Sprintf("cat >&2 <<'END'\n%sEND\nexit %d", f.Stderr, f.Exit)
}
