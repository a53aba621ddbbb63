package spool

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
)

func event(guest, op string) api.HookCall {
	return api.HookCall{
		Guest: guest, Op: op, SubOp: "end", Extra: "-",
		UUID:  "11111111-2222-3333-4444-555555555555",
		XML:   []byte("<graphics passwd='secret'/>"),
		Stamp: api.Stamp{BootID: "b", UptimeMillis: 42, LibvirtdPID: 7, LibvirtdStart: 9},
	}
}

func drainAll(t *testing.T, dir string) (calls []api.HookCall, broken int) {
	t.Helper()
	taken, broken, err := Drain(dir, func(c api.HookCall) error {
		calls = append(calls, c)
		return nil
	})
	require.NoError(t, err)
	assert.Len(t, calls, taken)
	return calls, broken
}

func TestWriteThenDrain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "not", "yet", "there")
	for i := range 5 {
		require.NoError(t, Write(dir, event(fmt.Sprintf("vm%d", i), "release")))
	}
	l, err := List(dir)
	require.NoError(t, err)
	assert.Len(t, l.Waiting, 5)
	assert.Empty(t, l.Broken)

	calls, broken := drainAll(t, dir)
	assert.Zero(t, broken)
	for i, c := range calls {
		want := event(fmt.Sprintf("vm%d", i), "release")
		want.XML, want.Spooled = nil, true
		assert.Equal(t, want, c)
	}
	calls, _ = drainAll(t, dir)
	assert.Empty(t, calls, "a drained spool is empty")
}

func TestFileIsPrivateAndHoldsNoXML(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, Write(dir, event("vm1", "stopped")))
	l, err := List(dir)
	require.NoError(t, err)
	require.Len(t, l.Waiting, 1)
	info, err := os.Stat(l.Waiting[0])
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	data, err := os.ReadFile(l.Waiting[0])
	require.NoError(t, err)
	assert.NotContains(t, string(data), "xml")
	assert.NotContains(t, string(data), "c2VjcmV0", "no base64 of a secret either")
}

func TestNamesNeverCarryTheGuest(t *testing.T) {
	plain := regexp.MustCompile(`^\d{20}-\d+-[0-9a-f]{16}\.json$`)
	for _, guest := range []string{"../../etc/passwd", "-x", "a b", "a\nb", `"'`, "\x00", strings.Repeat("n", 300)} {
		dir := t.TempDir()
		require.NoError(t, Write(dir, event(guest, "release")))
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Len(t, entries, 1)
		assert.Regexp(t, plain, entries[0].Name())
		calls, _ := drainAll(t, dir)
		require.Len(t, calls, 1)
		assert.Equal(t, guest, calls[0].Guest)
	}
}

func TestNamesSortByTime(t *testing.T) {
	at := time.Unix(999_999_999, 0)
	var names []string
	for _, step := range []time.Duration{0, time.Nanosecond, time.Second, time.Hour, 40 * 365 * 24 * time.Hour} {
		names = append(names, eventName(at.Add(step), 99999))
	}
	assert.True(t, sort.StringsAreSorted(names), "%v", names)
}

func TestDrainStopsWhereItIsTold(t *testing.T) {
	dir := t.TempDir()
	for _, g := range []string{"a", "b", "c"} {
		require.NoError(t, Write(dir, event(g, "release")))
	}
	full := errors.New("no space left on device")
	taken, broken, err := Drain(dir, func(c api.HookCall) error {
		if c.Guest == "b" {
			return full
		}
		return nil
	})
	require.ErrorIs(t, err, full)
	assert.Equal(t, 1, taken)
	assert.Zero(t, broken)
	calls, _ := drainAll(t, dir)
	require.Len(t, calls, 2)
	assert.Equal(t, "b", calls[0].Guest)
	assert.Equal(t, "c", calls[1].Guest)
}

func TestBrokenFilesAreSetAsideAndKept(t *testing.T) {
	tests := map[string]func(t *testing.T, path string){
		"empty":      func(t *testing.T, p string) { require.NoError(t, os.WriteFile(p, nil, 0o600)) },
		"truncated":  func(t *testing.T, p string) { require.NoError(t, os.WriteFile(p, []byte(`{"guest":"vm`), 0o600)) },
		"garbage":    func(t *testing.T, p string) { require.NoError(t, os.WriteFile(p, []byte("\xff\x00\x01"), 0o600)) },
		"empty JSON": func(t *testing.T, p string) { require.NoError(t, os.WriteFile(p, []byte("{}"), 0o600)) },
		"trailing": func(t *testing.T, p string) {
			require.NoError(t, os.WriteFile(p, []byte(`{"guest":"a","op":"release"}x`), 0o600))
		},
		"too big": func(t *testing.T, p string) {
			big := append([]byte(`{"guest":"a","op":"release","extra":"`), bytes.Repeat([]byte("x"), MaxFileSize)...)
			require.NoError(t, os.WriteFile(p, append(big, `"}`...), 0o600))
		},
		"directory": func(t *testing.T, p string) { require.NoError(t, os.Mkdir(p, 0o700)) },
		"fifo":      func(t *testing.T, p string) { require.NoError(t, syscall.Mkfifo(p, 0o600)) },
		"link": func(t *testing.T, p string) {
			other := filepath.Join(t.TempDir(), "other")
			require.NoError(t, os.WriteFile(other, []byte(`{"guest":"a","op":"release"}`), 0o600))
			require.NoError(t, os.Symlink(other, p))
		},
	}
	for name, create := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			bad := filepath.Join(dir, "00000000000000000001-1-00.json")
			create(t, bad)
			require.NoError(t, Write(dir, event("good", "release")))

			calls, broken := drainAll(t, dir)
			assert.Equal(t, 1, broken)
			require.Len(t, calls, 1, "a broken file does not keep the next from being taken")
			assert.Equal(t, "good", calls[0].Guest)

			l, err := List(dir)
			require.NoError(t, err)
			assert.Empty(t, l.Waiting)
			assert.Equal(t, []string{bad + ".broken"}, l.Broken)
			_, broken = drainAll(t, dir)
			assert.Zero(t, broken, "counted once")
		})
	}
}

func TestTempFiles(t *testing.T) {
	dir := t.TempDir()
	old, young := filepath.Join(dir, tempPrefix+"old.json"), filepath.Join(dir, tempPrefix+"young.json")
	for _, p := range []string{old, young} {
		require.NoError(t, os.WriteFile(p, []byte(`{"guest":"a","op":"release"}`), 0o600))
	}
	past := time.Now().Add(-2 * time.Hour)
	require.NoError(t, os.Chtimes(old, past, past))
	calls, broken := drainAll(t, dir)
	assert.Empty(t, calls, "a temporary file is no event")
	assert.Zero(t, broken)
	assert.NoFileExists(t, old)
	assert.FileExists(t, young)
}

func TestMissingSpoolIsEmpty(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "none")
	l, err := List(dir)
	require.NoError(t, err)
	assert.Empty(t, l.Waiting)
	calls, broken := drainAll(t, dir)
	assert.Empty(t, calls)
	assert.Zero(t, broken)
	assert.NoDirExists(t, dir, "looking does not make it")
}

func TestSpoolThatIsNoDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.Error(t, Write(file, event("a", "release")))
	_, err := List(file)
	require.Error(t, err)
	_, _, err = Drain(file, func(api.HookCall) error { return nil })
	require.Error(t, err)
}

func TestTooLargeAnEventIsRefusedWithoutATrace(t *testing.T) {
	dir := t.TempDir()
	call := event("a", "release")
	call.Extra = strings.Repeat("x", MaxFileSize)
	require.Error(t, Write(dir, call))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Empty(t, entries)
}

// Hooks of several guests end at the same moment when a host shuts down.
func TestConcurrentWriters(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "spool")
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() { assert.NoError(t, Write(dir, event(fmt.Sprint(i), "release"))) })
	}
	wg.Wait()
	calls, _ := drainAll(t, dir)
	seen := map[string]bool{}
	for _, c := range calls {
		seen[c.Guest] = true
	}
	assert.Len(t, seen, 50)
}
