package hook

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
)

func TestUsage(t *testing.T) {
	b := newBench(t)
	assert.Equal(t, 2, b.run())
	assert.Contains(t, b.errs.String(), "usage: qemu GUEST OPERATION")
	assert.Empty(t, b.out.String())
}

func TestMissingAndSurplusArguments(t *testing.T) {
	tests := []struct{ args, want []string }{
		{[]string{"vm1"}, []string{"vm1", "-", "-", "-"}},
		{[]string{"vm1", "release"}, []string{"vm1", "release", "-", "-"}},
		{[]string{"vm1", "release", "end", "-", "more", "yet"}, []string{"vm1", "release", "end", "-"}},
	}
	for _, tt := range tests {
		b := newBench(t)
		b.answer(http.StatusOK, api.HookVerdict{})
		assert.Equal(t, 0, b.run(tt.args...))
		c := b.received()[0]
		assert.Equal(t, tt.want, []string{c.Guest, c.Op, c.SubOp, c.Extra})
	}
}

func TestStrangeGuestNames(t *testing.T) {
	for _, name := range []string{"a b", `'"`, "a\nvirtlvm: allowed", "-x", "--help", "../../etc/shadow", "", "ä", "a\x1b[2J", strings.Repeat("n", 5000)} {
		t.Run(name[:min(len(name), 20)], func(t *testing.T) {
			b := newBench(t)
			assert.Equal(t, 1, b.run(name, "prepare", "begin", "-"))
			line := b.line()
			assert.True(t, strings.HasPrefix(line, "virtlvm: cannot start "), line)
			for _, c := range line {
				assert.GreaterOrEqual(t, c, ' ')
			}

			b = newBench(t)
			assert.Equal(t, 0, b.run(name, "release", "end", "-"))
			events := b.spooled()
			require.Len(t, events, 1)
			assert.Equal(t, name, events[0].Guest)
			entries, err := os.ReadDir(filepath.Dir(b.env.Paths.Spool))
			require.NoError(t, err)
			assert.Len(t, entries, 1, "only the spool")
		})
	}
}

func TestInput(t *testing.T) {
	big := []byte(strings.Replace(domainXML, "</domain>", "<x>"+strings.Repeat("y", 10<<20)+"</x></domain>", 1))
	tests := map[string]struct {
		xml  []byte
		uuid string
	}{
		"empty":     {nil, ""},
		"truncated": {[]byte(domainXML)[:90], uuid1},
		"cut uuid":  {[]byte(domainXML)[:60], ""},
		"10 MiB":    {big, uuid1},
		"no UTF-8":  {[]byte("\xff\xfe<domain>\xc3\x28</domain>"), ""},
		"entities":  {[]byte(`<!DOCTYPE d [<!ENTITY a "x">]><domain><name>&a;</name><uuid>` + uuid1 + `</uuid></domain>`), uuid1},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for _, op := range []string{"prepare", "release"} {
				b := newBench(t)
				b.answer(http.StatusOK, api.HookVerdict{Allow: true})
				b.env.Stdin = bytes.NewReader(tt.xml)
				assert.Equal(t, 0, b.run("vm1", op, "begin", "-"))
				require.Len(t, b.received(), 1)
				c := b.received()[0]
				assert.True(t, bytes.Equal(tt.xml, c.XML), "the daemon gets the very bytes")
				assert.Equal(t, tt.uuid, c.UUID)
			}
		})
	}
}

// What is over the limit is read all the same: libvirt must get rid of it.
func TestInputOverTheLimit(t *testing.T) {
	for op, code := range map[string]int{"prepare": 1, "release": 0} {
		b := newBench(t)
		b.answer(http.StatusOK, api.HookVerdict{Allow: true})
		rest := &countingReader{r: io.LimitReader(zeros{}, maxXML+1)}
		b.env.Stdin = io.MultiReader(strings.NewReader(domainXML), rest)
		assert.Equal(t, code, b.run("vm1", op, "begin", "-"))
		assert.EqualValues(t, maxXML+1, rest.n)
		if code == 1 {
			assert.Contains(t, b.line(), "cannot start vm1: its domain XML is larger than 32 MiB")
			assert.Empty(t, b.received())
			continue
		}
		c := b.received()[0]
		assert.Equal(t, uuid1, c.UUID)
		assert.Empty(t, c.XML)
	}
}

func TestInputThatFailsOrNeverEnds(t *testing.T) {
	reader := map[string]func(t *testing.T) io.Reader{
		"fails": func(*testing.T) io.Reader {
			return io.MultiReader(strings.NewReader(domainXML), iotest.ErrReader(syscall.EIO))
		},
		"never ends": func(t *testing.T) io.Reader {
			r, w := io.Pipe()
			t.Cleanup(func() { _ = w.Close() })
			go func() { _, _ = io.WriteString(w, domainXML) }()
			return r
		},
	}
	for name, open := range reader {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.hurry()
			b.env.Stdin = open(t)
			assert.Equal(t, 1, b.run("vm1", "prepare", "begin", "-"))
			assert.Contains(t, b.line(), "its domain XML")

			b = newBench(t)
			b.hurry()
			b.env.Stdin = open(t)
			assert.Equal(t, 0, b.run("vm1", "release", "end", "-"))
			require.Len(t, b.spooled(), 1)
			assert.Equal(t, uuid1, b.spooled()[0].UUID)
		})
	}
}

func TestBreakGlass(t *testing.T) {
	serve := map[string]func(b *bench){
		"refused by the daemon": func(b *bench) { b.answer(http.StatusOK, api.HookVerdict{Message: "no", XML: []byte("<d/>")}) },
		"daemon down":           func(*bench) {},
		"daemon hangs": func(b *bench) {
			b.serve(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		},
	}
	for name, set := range serve {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, op := range []string{"prepare", "migrate"} {
				b := newBench(t)
				set(b)
				require.NoError(t, os.WriteFile(b.env.Paths.BreakGlass, nil, 0o600))
				began := time.Now()
				assert.Equal(t, 0, b.run("vm1", op, "begin", "-"))
				assert.Less(t, time.Since(began), 20*time.Second)
				assert.Contains(t, b.line(), "warning: "+op+" of vm1 goes on UNPROTECTED because "+b.env.Paths.BreakGlass+" exists")
				assert.Empty(t, b.out.String())
				for _, c := range b.received() {
					assert.True(t, c.Bypassed)
					assert.Equal(t, uuid1, c.UUID)
				}
			}
		})
	}
	t.Run("other operations go as always", func(t *testing.T) {
		b := newBench(t)
		b.answer(http.StatusOK, api.HookVerdict{})
		require.NoError(t, os.WriteFile(b.env.Paths.BreakGlass, nil, 0o600))
		assert.Equal(t, 0, b.run("vm1", "release", "end", "-"))
		assert.Empty(t, b.errs.String())
		assert.False(t, b.received()[0].Bypassed)
	})
}

// A defect of ours must not kill running guests, nor start one.
func TestPanic(t *testing.T) {
	for op, code := range map[string]int{"prepare": 1, "reconnect": 0} {
		b := newBench(t)
		b.env.Stdin = readerFunc(func([]byte) (int, error) { panic("deliberate") })
		assert.Equal(t, code, b.run("vm1", op, "begin", "-"))
		assert.Contains(t, b.line(), "the hook failed at "+op+" of vm1 (deliberate)")
	}
}

func TestSignalIsLikeTheDeadline(t *testing.T) {
	for op, code := range map[string]int{"prepare": 1, "release": 0} {
		b := newBench(t)
		var signals chan<- os.Signal
		heeded := make(chan struct{})
		b.env.Signals = func(c chan<- os.Signal) {
			signals = c
			close(heeded)
		}
		b.serve(func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			<-heeded
			signals <- syscall.SIGTERM
			<-r.Context().Done()
		})
		assert.Equal(t, code, b.run("vm1", op, "begin", "-"))
		if code == 1 {
			assert.Equal(t, "virtlvm: cannot start vm1: the hook was told to end before virtlvmd answered", b.line())
		} else {
			assert.Len(t, b.spooled(), 1)
		}
	}
}

// What comes too late, or after a signal, is not written beside what has been written.
func TestOneEndOnly(t *testing.T) {
	for range 20 {
		b := newBench(t)
		var signals chan<- os.Signal
		heeded := make(chan struct{})
		b.env.Signals = func(c chan<- os.Signal) {
			signals = c
			close(heeded)
		}
		b.serve(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			<-heeded
			signals <- syscall.SIGTERM
			_ = json.NewEncoder(w).Encode(api.HookVerdict{Message: "no"})
		})
		assert.Equal(t, 1, b.run("vm1", "prepare", "begin", "-"))
		b.line()
	}
}

// Where even writing the line is held up, the process ends with the right code.
func TestWatchdogEndsAHookThatBlocks(t *testing.T) {
	for op, code := range map[string]int{"prepare": 1, "release": 0} {
		b := newBench(t)
		b.hurry()
		aborted := make(chan int, 1)
		b.env.Abort = func(c int) { aborted <- c }
		hold := make(chan struct{})
		b.env.Stderr = writerFunc(func(p []byte) (int, error) { <-hold; return len(p), nil })
		require.NoError(t, os.WriteFile(b.env.Paths.Spool, nil, 0o600)) // so that both have something to say
		finished := make(chan struct{})
		go func() {
			defer close(finished)
			b.run("vm1", op, "begin", "-")
		}()
		assert.Equal(t, code, <-aborted)
		close(hold)
		<-finished
	}
}

func TestDeadlineSettings(t *testing.T) {
	tests := map[string]struct {
		content string
		want    time.Duration
	}{
		"set":      {`{"deadline_seconds": 5}`, 5 * time.Second},
		"zero":     {`{"deadline_seconds": 0}`, 60 * time.Second},
		"negative": {`{"deadline_seconds": -1}`, 60 * time.Second},
		"huge":     {`{"deadline_seconds": 9000000000000}`, time.Hour},
		"garbage":  {"\x00", 60 * time.Second},
		"empty":    {"", 60 * time.Second},
		"new keys": {`{"deadline_seconds": 7, "other": true}`, 7 * time.Second},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "hook.json")
			require.NoError(t, os.WriteFile(path, []byte(tt.content), 0o600))
			assert.Equal(t, tt.want, deadline(path))
		})
	}
	assert.Equal(t, 60*time.Second, deadline(filepath.Join(t.TempDir(), "none")))
}

func TestStampParts(t *testing.T) {
	assert.EqualValues(t, 8123456780, uptimeMillis("8123456.78 9.01\n"))
	assert.Zero(t, uptimeMillis("rubbish"))
	stat := "42 (a ) b (c) S 1 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 777 0 0"
	assert.EqualValues(t, 777, startTime([]byte(stat)))
	assert.Zero(t, startTime([]byte("42 (x) S 1")))
	assert.Zero(t, startTime(nil))
	assert.Equal(t, api.Stamp{LibvirtdPID: 5}, stamp(t.TempDir(), 5), "without /proc the event is still told")
}

func TestDomainUUID(t *testing.T) {
	tests := map[string]string{
		"<uuid>" + uuid1 + "</uuid>":                            uuid1,
		"<uuid>\n AAAAAAAA-2222-3333-4444-555555555555 </uuid>": "aaaaaaaa-2222-3333-4444-555555555555",
		"<uuid>11111111x2222-3333-4444-555555555555</uuid>":     "",
		"<uuid>1111111g-2222-3333-4444-555555555555</uuid>":     "",
		"<uuid>../../../../../../../../../../../../etc</uuid>":  "",
		"<uuid>":         "",
		"<uuid>" + uuid1: "",
		"":               "",
		"<uuid></uuid>":  "",
		fmt.Sprintf("<uuid>%s", strings.Repeat("1", 9999)) + "</uuid>": "",
	}
	for in, want := range tests {
		assert.Equal(t, want, domainUUID([]byte(in)), in[:min(len(in), 60)])
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

type countingReader struct {
	r io.Reader
	n int64
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
