package main

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/internal/spool"
)

// maxSize is what the installed hook may weigh, in bytes.
const maxSize = 8 << 20

// build makes the hook as it is installed.
func build(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "qemu")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return path
}

// place is a folder with everything the hook looks at.
type place struct {
	hook, dir string
}

// command runs the hook with the few variables that libvirt passes, and those that move
// its places.
func (p place) command(args ...string) *exec.Cmd {
	cmd := exec.Command(p.hook, args...)
	cmd.Env = []string{
		"LC_ALL=C", "PATH=/usr/bin:/bin",
		"VIRTLVM_HOOK_SOCKET=" + filepath.Join(p.dir, "s"),
		"VIRTLVM_HOOK_SPOOL=" + filepath.Join(p.dir, "spool"),
		"VIRTLVM_HOOK_SETTINGS=" + filepath.Join(p.dir, "hook.json"),
		"VIRTLVM_HOOK_BREAK_GLASS=" + filepath.Join(p.dir, "break-glass"),
	}
	cmd.Stdin = strings.NewReader("<domain><name>vm1</name><uuid>11111111-2222-3333-4444-555555555555</uuid></domain>")
	return cmd
}

func (p place) serve(t *testing.T, handle http.HandlerFunc) {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(p.dir, "s"))
	require.NoError(t, err)
	srv := &http.Server{Handler: handle}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close() })
}

// run waits for the command and returns its exit code and both outputs.
func run(t *testing.T, cmd *exec.Cmd) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

func verdict(v api.HookVerdict) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_ = json.NewEncoder(w).Encode(v)
	}
}

func TestInstalledHook(t *testing.T) {
	hook := build(t)

	// Each package costs time at the start, which libvirt waits for three times per guest.
	t.Run("is linked with little", func(t *testing.T) {
		out, err := exec.Command("go", "list", "-deps", ".").Output()
		require.NoError(t, err)
		assert.NotRegexp(t, `(?m)^(net|net/.*|crypto|crypto/.*|vendor/.*|regexp)$`, string(out))
	})

	t.Run("is small and static", func(t *testing.T) {
		info, err := os.Stat(hook)
		require.NoError(t, err)
		assert.LessOrEqual(t, info.Size(), int64(maxSize))
		f, err := elf.Open(hook)
		require.NoError(t, err)
		defer func() { _ = f.Close() }()
		libs, err := f.ImportedLibraries()
		require.NoError(t, err)
		assert.Empty(t, libs)
		for _, p := range f.Progs {
			assert.NotEqual(t, elf.PT_INTERP, p.Type)
		}
	})

	t.Run("links nothing but the standard library and its own", func(t *testing.T) {
		out, err := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", ".").Output()
		require.NoError(t, err)
		assert.ElementsMatch(t, []string{
			"virtlvm/hooks/qemu", "virtlvm/hooks/qemu/internal/hook", "virtlvm/internal/api", "virtlvm/internal/spool",
		}, strings.Fields(string(out)))
	})

	t.Run("usage", func(t *testing.T) {
		code, stdout, stderr := run(t, place{hook, t.TempDir()}.command())
		assert.Equal(t, 2, code)
		assert.Empty(t, stdout)
		assert.Contains(t, stderr, "usage")
	})

	t.Run("allowed", func(t *testing.T) {
		p := place{hook, t.TempDir()}
		p.serve(t, verdict(api.HookVerdict{Allow: true, XML: []byte("<new/>")}))
		code, stdout, stderr := run(t, p.command("vm1", "prepare", "begin", "-"))
		assert.Equal(t, []any{0, "", ""}, []any{code, stdout, stderr})
		code, stdout, stderr = run(t, p.command("vm1", "migrate", "begin", "-"))
		assert.Equal(t, []any{0, "<new/>", ""}, []any{code, stdout, stderr})
	})

	t.Run("refused", func(t *testing.T) {
		p := place{hook, t.TempDir()}
		p.serve(t, verdict(api.HookVerdict{Message: "cannot start vm1: vg/lv is held by\nkvm-a"}))
		code, stdout, stderr := run(t, p.command("vm1", "prepare", "begin", "-"))
		assert.Equal(t, []any{1, "", "virtlvm: cannot start vm1: vg/lv is held by kvm-a\n"}, []any{code, stdout, stderr})
	})

	t.Run("nobody there", func(t *testing.T) {
		p := place{hook, t.TempDir()}
		code, stdout, stderr := run(t, p.command("vm1", "prepare", "begin", "-"))
		assert.Equal(t, 1, code)
		assert.Empty(t, stdout)
		assert.Equal(t, "virtlvm: cannot start vm1: virtlvmd cannot be reached on "+filepath.Join(p.dir, "s")+
			" (no such file or directory); see 'systemctl status virtlvmd.socket virtlvmd.service'; "+
			"to start guests without virtlvm see BREAK GLASS in virtlvmd(8)\n", stderr)
		code, stdout, stderr = run(t, p.command("vm1", "release", "end", "-"))
		assert.Equal(t, []any{0, "", ""}, []any{code, stdout, stderr})
		l, err := spool.List(filepath.Join(p.dir, "spool"))
		require.NoError(t, err)
		assert.Len(t, l.Waiting, 1)
	})

	t.Run("somebody else there", func(t *testing.T) {
		p := place{hook, t.TempDir()}
		l, err := net.Listen("unix", filepath.Join(p.dir, "s"))
		require.NoError(t, err)
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			if conn, err := l.Accept(); err == nil {
				_, _ = io.WriteString(conn, "220 smtp ready\r\n\r\n")
				_, _ = io.Copy(io.Discard, conn)
			}
		}()
		code, _, stderr := run(t, p.command("vm1", "prepare", "begin", "-"))
		assert.Equal(t, 1, code)
		assert.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
	})

	t.Run("hangs no longer than its deadline", func(t *testing.T) {
		p := place{hook, t.TempDir()}
		require.NoError(t, os.WriteFile(filepath.Join(p.dir, "hook.json"), []byte(`{"deadline_seconds":1}`), 0o600))
		p.serve(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		for op, want := range map[string]int{"prepare": 1, "reconnect": 0} {
			cmd := p.command("vm1", op, "begin", "-")
			// libvirt that neither writes nor closes the pipe.
			cmd.Stdin = nil
			stdin, err := cmd.StdinPipe()
			require.NoError(t, err)
			began := time.Now()
			code, _, _ := run(t, cmd)
			assert.Equal(t, want, code, op)
			assert.Less(t, time.Since(began), 20*time.Second)
			_ = stdin.Close()
		}
	})

	t.Run("signals", func(t *testing.T) {
		for op, want := range map[string]int{"prepare": 1, "release": 0} {
			p := place{hook, t.TempDir()}
			asked := make(chan struct{}, 1)
			p.serve(t, func(_ http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				asked <- struct{}{}
				<-r.Context().Done()
			})
			cmd := p.command("vm1", op, "end", "-")
			require.NoError(t, cmd.Start())
			<-asked
			require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
			_ = cmd.Wait()
			l, err := spool.List(filepath.Join(p.dir, "spool"))
			require.NoError(t, err)
			assert.Len(t, l.Waiting, 1-want)
			// In its first moments a call that may be refused is ended by the signal itself,
			// which is a refusal too.
			assert.Equal(t, want, min(1, cmd.ProcessState.ExitCode()&0xff), op)
		}
	})

	// libvirt has died: nobody reads what we say, yet the exit code stays what it is.
	t.Run("closed outputs", func(t *testing.T) {
		for op, want := range map[string]int{"prepare": 1, "release": 0} {
			p := place{hook, t.TempDir()}
			require.NoError(t, os.WriteFile(filepath.Join(p.dir, "spool"), nil, 0o600))
			r, w, err := os.Pipe()
			require.NoError(t, err)
			require.NoError(t, r.Close())
			cmd := p.command("vm1", op, "end", "-")
			cmd.Stdout, cmd.Stderr = w, w
			_ = cmd.Run()
			assert.Equal(t, want, cmd.ProcessState.ExitCode(), op)
			require.NoError(t, w.Close())
		}
	})

	t.Run("10 MiB", func(t *testing.T) {
		p := place{hook, t.TempDir()}
		got := make(chan int, 1)
		p.serve(t, func(w http.ResponseWriter, r *http.Request) {
			var call api.HookCall
			assert.NoError(t, json.NewDecoder(r.Body).Decode(&call))
			got <- len(call.XML)
			verdict(api.HookVerdict{Allow: true})(w, r)
		})
		cmd := p.command("vm1", "prepare", "begin", "-")
		cmd.Stdin = bytes.NewReader(make([]byte, 10<<20))
		code, _, _ := run(t, cmd)
		assert.Equal(t, 0, code)
		assert.Equal(t, 10<<20, <-got)
	})

	// All guests of a host end at once: a queue that is full is waited for.
	t.Run("short queue", func(t *testing.T) {
		p := place{hook, t.TempDir()}
		l := listen(t, filepath.Join(p.dir, "s"), 0)
		const hooks = 12
		codes := make(chan int, hooks)
		for range hooks {
			cmd := p.command("vm1", "prepare", "begin", "-")
			require.NoError(t, cmd.Start())
			go func() {
				_ = cmd.Wait()
				codes <- cmd.ProcessState.ExitCode()
			}()
		}
		time.Sleep(300 * time.Millisecond) // let the queue fill
		srv := &http.Server{Handler: verdict(api.HookVerdict{Allow: true})}
		go func() { _ = srv.Serve(l) }()
		t.Cleanup(func() { _ = srv.Close() })
		for range hooks {
			assert.Equal(t, 0, <-codes)
		}
	})
}

// listen is net.Listen with a queue of its own length.
func listen(t *testing.T, path string, backlog int) net.Listener {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	require.NoError(t, syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}))
	require.NoError(t, syscall.Listen(fd, backlog))
	f := os.NewFile(uintptr(fd), path)
	defer func() { _ = f.Close() }()
	l, err := net.FileListener(f)
	require.NoError(t, err)
	return l
}
