package relay

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/internal/relay/relaytest"
	"virtlvm/internal/run"
)

func refused(t *testing.T, within time.Duration, cmd Command) *DialError {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	c, err := Dial(ctx, cmd)
	require.Nil(t, c)
	var failed *DialError
	require.ErrorAs(t, err, &failed)
	assert.NotContains(t, err.Error(), "\n")
	assert.NotContains(t, err.Error(), "\r")
	assert.Less(t, len(err.Error()), 400)
	return failed
}

func TestNoiseBeforeTheRelayIsSkipped(t *testing.T) {
	for name, script := range map[string]string{
		"none":                 `:`,
		"sshd's banner":        `echo '*** AUTHORISED USERS ONLY ***' >&2`,
		"login script":         `echo 'Welcome to kvm-b'; echo; echo '  load: 0.1'`,
		"without a newline":    `printf 'You have mail. '`,
		"99 lines":             `i=0; while [ $i -lt 99 ]; do echo noise $i; i=$((i+1)); done`,
		"long line":            `head -c 60000 /dev/zero | tr '\0' x; echo`,
		"binary":               `printf '\377\000\033[2J\r\n'`,
		"carriage return":      `printf 'x\r\n'`,
		"names the word":       `echo 'this is not a virtlvm-relay 1.0 of ours'`,
		"a version not a line": `printf 'virtlvm-relay 1.0 x\n'`,
	} {
		t.Run(name, func(t *testing.T) {
			c := dial(t, shell(script+`; echo virtlvm-relay 1.0; cat`))
			_, err := io.WriteString(c, "ping")
			require.NoError(t, err)
			require.NoError(t, c.CloseWrite())
			answer, err := io.ReadAll(c)
			require.NoError(t, err)
			assert.Equal(t, "ping", string(answer))
		})
	}
}

func TestHandshakeRefuses(t *testing.T) {
	for _, tt := range []struct {
		name, script string
		want         Failure
		text         string
	}{
		{"too many lines", `yes noise`, Noise, `something else than a relay answers: "noise"`},
		{"too many bytes", `head -c 200000 /dev/zero | tr '\0' x; sleep 60`, Noise, `something else than a relay answers: "xxx`},
		{"twice", `printf 'virtlvm-relay 1.0\nvirtlvm-relay 1.0\n'; sleep 60`, Noise, `something else than a relay answers: "virtlvm-relay 1.0"`},
		{"more than a line", `printf 'virtlvm-relay 1.0\nHTTP/1.1 200 OK\r\n'; sleep 60`, Noise, `"HTTP/1.1 200 OK"`},
		{"cut short", `printf 'virtlvm-relay 1.0'`, NoRelay, `no relay was started (exit code 0): "virtlvm-relay 1.0"`},
		{"next major", `echo virtlvm-relay 2.0; sleep 60`, WrongVersion, "virtlvm there speaks protocol 2.0, this one 1.0"},
		{"two minor on", `echo virtlvm-relay 1.2; sleep 60`, WrongVersion, "protocol 1.2"},
		{"huge number", `echo virtlvm-relay 99999.99999; sleep 60`, WrongVersion, "protocol 99999.99999"},
		{"daemon down", `echo 'virtlvm-relay-error unreachable virtlvmd does not run'; exit 3`, RelayRefused, "virtlvmd does not run"},
		{"daemon down, after noise", `echo hi; printf 'x virtlvm-relay-error forbidden may not'; exit 8`, RelayRefused, "may not"},
		{"nologin", `echo 'This account is currently not available.'; exit 1`, NoRelay, `(exit code 1): "This account is currently not available."`},
		{"killed", `kill -9 $$`, NoRelay, "sh ended without a word (exit code -1)"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := refused(t, limit, shell(tt.script))
			assert.Equal(t, tt.want, e.Failure, e)
			assert.Contains(t, e.Error(), tt.text)
		})
	}
}

func TestOneMinorVersionApartWorks(t *testing.T) {
	dial(t, shell("echo virtlvm-relay 1.1; cat"))
}

// A password prompt on a terminal that is not there, a hung login script.
func TestNothingIsWaitedForForEver(t *testing.T) {
	for name, tt := range map[string]struct{ script, text string }{
		"hangs":            {"exec sleep 600", "no relay answers in time"},
		"hangs after text": {"echo Welcome; exec sleep 600", `it logs in, but no relay answers in time, only "Welcome"`},
		"asks": {
			`printf 'password: ' 2>/dev/null >/dev/tty; read answer </dev/tty || { echo 'root@b: Permission denied (publickey,password).' >&2; exit 255; }`,
			"no key of ours is accepted",
		},
		"ignores SIGTERM": {`trap '' TERM; while kill -0 $PPID; do sleep 0.1; done`, "no relay answers in time"},
	} {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			e := refused(t, 300*time.Millisecond, shell(tt.script))
			assert.Contains(t, e.Error(), tt.text)
			assert.Less(t, time.Since(began), limit)
		})
	}
}

func TestCancelledDial(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Dial(ctx, shell("exec sleep 600"))
	var failed *DialError
	require.ErrorAs(t, err, &failed)
	assert.Equal(t, TimedOut, failed.Failure)
}

func TestProgramThatCannotRun(t *testing.T) {
	e := refused(t, limit, Command{Name: "no-such-program"})
	assert.Equal(t, NotInstalled, e.Failure)
	assert.Equal(t, "no-such-program is not installed on this host", e.Error())
	e = refused(t, limit, Command{Name: filepath.Join(t.TempDir(), "x")})
	assert.Equal(t, CannotRun, e.Failure)
}

func TestWhatSSHSays(t *testing.T) {
	want := map[string]struct {
		failure Failure
		text    string
	}{
		"host key unknown":            {HostKeyUnknown, "no host key is known here for [kvm-b]:2222"},
		"host key unknown, not asked": {HostKeyUnknown, "its host key is not known here"},
		"host key changed":            {HostKeyChanged, "its host key is not the one in /etc/virtlvm/ssh/known_hosts:1"},
		"permission denied":           {PermissionDenied, "it does not let us in: no key of ours is accepted"},
		"permission denied, old":      {PermissionDenied, "it does not let us in: no key of ours is accepted"},
		"too many keys":               {PermissionDenied, "it does not let us in: no key of ours is accepted"},
		"key unprotected":             {KeyUnprotected, "the private key can be read by others, so ssh ignores it"},
		"name unknown":                {NameUnknown, "its name does not resolve"},
		"name server silent":          {NameUnknown, "its name does not resolve"},
		"connection refused":          {ConnRefused, "no ssh server listens there"},
		"no route":                    {NoRoute, "there is no route to it"},
		"network unreachable":         {NoRoute, "there is no route to it"},
		"connect timeout":             {Silent, "it does not answer"},
		"banner timeout":              {Silent, "it does not answer"},
		"keepalive":                   {Silent, "it does not answer"},
		"closed while shaking hands":  {Lost, "it broke off the connection: Connection reset by 10.0.0.2 port 22"},
		"closed":                      {Lost, "it broke off the connection: Connection closed by 10.0.0.2 port 22"},
		"not ssh":                     {NotSSH, "what listens there is no ssh server"},
		"no common cipher":            {NoRelay, `no relay was started (exit code 255): "Unable to negotiate with 10.0.0.2 port 22: no matching cipher found. Their offer: aes128-ctr"`},
		"command missing":             {CommandMissing, "virtlvm is not installed there"},
		"command missing, dash":       {CommandMissing, "virtlvm is not installed there"},
		"command old":                 {CommandOld, "the virtlvm there is too old: it has no relay"},
		"command not executable":      {NoRelay, `no relay was started (exit code 126): "bash: line 1: /usr/bin/virtlvm: Permission denied"`},
		"silent end":                  {NoRelay, "ssh ended without a word (exit code 1)"},
	}
	cases := relaytest.Failures()
	require.Len(t, cases, len(want))
	ssh := relaytest.FakeSSH(t, "exit 1")
	cmd, err := SSH(api.Target{Host: "kvm-b"}, time.Second, nil, "virtlvm", "relay")
	require.NoError(t, err)
	for _, tt := range cases {
		ssh.Becomes(tt.Fails())
		e := refused(t, limit, cmd)
		assert.Equal(t, want[tt.Name].failure, e.Failure, tt.Name)
		assert.Equal(t, want[tt.Name].text, e.Error(), tt.Name)
		assert.Equal(t, tt.Exit, e.ExitCode, tt.Name)
		assert.NotEmpty(t, e.Fix("kvm-b"), tt.Name)
	}
}

func TestKinds(t *testing.T) {
	for e, want := range map[*DialError]api.Kind{
		{Failure: Silent}:                              api.KindUnreachable,
		{Failure: PermissionDenied}:                    api.KindUnreachable,
		{Failure: WrongVersion}:                        api.KindUnsupported,
		{Failure: CommandOld}:                          api.KindUnsupported,
		{Failure: RelayRefused, Kind: "unreachable"}:   api.KindUnreachable,
		{Failure: RelayRefused, Kind: "forbidden"}:     api.KindForbidden,
		{Failure: RelayRefused, Kind: "a_kind_of_fun"}: api.KindUnreachable,
	} {
		assert.Equal(t, want, e.ErrorKind(), e)
	}
}

func FuzzHandshake(f *testing.F) {
	f.Add("virtlvm-relay 1.0\n")
	f.Add("hi\nvirtlvm-relay-error unreachable no\n")
	cmd := exec.Command("sh", "-c", "kill -9 $$")
	require.NoError(f, cmd.Start())
	child := run.Watch(cmd)
	<-child.Ended
	f.Fuzz(func(t *testing.T, s string) {
		c := &Conn{process: &process{Child: child}, buf: bufio.NewReader(strings.NewReader(s))}
		e := c.shake(context.Background())
		if e != nil && strings.ContainsAny(e.Error(), "\r\n\x1b") {
			t.Fatalf("more than a plain line: %q", e.Error())
		}
		if e == nil && !strings.Contains(s, "virtlvm-relay ") {
			t.Fatal("no relay, and taken for one")
		}
		var err error = e
		if e != nil && !errors.As(err, &e) {
			t.Fatal("not a DialError")
		}
	})
}
