package guests

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestProcessOfAGuest(t *testing.T) {
	starting := []string{"state='running' reason='restored'", "state='paused' reason='starting up'"}
	const other = "/usr/bin/sshd"
	tests := map[string]struct {
		status  []string // changes of the status file
		process func(h *host)
		want    Liveness
	}{
		"QEMU":            {nil, func(h *host) { h.process(3600, "S", 1, qemuArgs("vm1", uuid1)...) }, Alive},
		"hung QEMU":       {nil, func(h *host) { h.process(3600, "D", 1, qemuArgs("vm1", uuid1)...) }, Alive},
		"stopped QEMU":    {nil, func(h *host) { h.process(3600, "T", 1, qemuArgs("vm1", uuid1)...) }, Alive},
		"uuid alone":      {nil, func(h *host) { h.process(3600, "S", 1, "wrapper", "-uuid", "11111111-2222-3333-4444-555555555555") }, Alive},
		"name alone":      {nil, func(h *host) { h.process(3600, "S", 1, "qemu", "-name", "guest=vm1") }, Alive},
		"no process":      {nil, func(*host) {}, Gone},
		"zombie":          {nil, func(h *host) { h.process(3600, "Z", 1) }, Gone},
		"dead":            {nil, func(h *host) { h.process(3600, "X", 1) }, Gone},
		"another process": {nil, func(h *host) { h.process(3600, "S", 1, other, "-D") }, Gone},
		"another guest":   {nil, func(h *host) { h.process(3600, "S", 1, qemuArgs("vm11", uuid2)...) }, Gone},
		"a name with a comma behind": {
			nil, func(h *host) { h.process(3600, "S", 1, "qemu", "-name", "guest=vm1,,b,debug-threads=on") }, Gone,
		},
		"kernel thread": {nil, func(h *host) {
			h.process(3600, "S", 1)
			h.rewriteStat(3600, statLine(3600, "S", 0x208040, 1))
		}, Gone},
		// A process that ends gives up its memory, and with it the command line, before its
		// open files.
		"ending": {nil, func(h *host) { h.process(3600, "D", 1) }, Unknown},
		"zombie with a thread in the kernel": {nil, func(h *host) {
			h.process(3600, "Z", 1)
			h.thread(3601, "D")
		}, Unknown},
		"zombie with dead threads": {nil, func(h *host) {
			h.process(3600, "Z", 1)
			h.thread(3601, "X")
			h.thread(3602, "Z")
		}, Gone},
		// Between fork and exec it is a copy of libvirtd.
		"being started":          {starting, func(h *host) { h.process(3600, "S", 1, "/usr/sbin/libvirtd", "--timeout", "120") }, Unknown},
		"started":                {starting, func(h *host) { h.process(3600, "S", 1, qemuArgs("vm1", uuid1)...) }, Alive},
		"died while starting":    {starting, func(*host) {}, Gone},
		"pid 0":                  {[]string{"pid='3600'", "pid='0'"}, func(*host) {}, Unknown},
		"unknown shape of stat":  {nil, func(h *host) { h.process(3600, "S", 1); h.rewriteStat(3600, "3600 (x)") }, Unknown},
		"garbage in stat":        {nil, func(h *host) { h.process(3600, "S", 1); h.rewriteStat(3600, "") }, Unknown},
		"cmdline cannot be read": {nil, func(h *host) { h.process(3600, "S", 1); h.blockCmdline(3600) }, Unknown},
		"stat cannot be read":    {nil, func(h *host) { h.blockStat(3600) }, Unknown},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			h.write("vm1", h.status(tt.status...))
			tt.process(h)
			s := h.look()
			g, found := s.ByUUID[uuid1]
			require.True(t, found, "a guest with a status file is listed, whatever became of it")
			assert.Equal(t, tt.want, g.Alive, g.Note)
			assert.Equal(t, tt.want, s.Liveness(uuid1, "vm1"))
			if tt.want == Unknown {
				assert.NotEmpty(t, g.Note)
			}
			assert.Equal(t, tt.want == Alive, g.Start == 1)
		})
	}
}

func (h *host) rewriteStat(pid int, line string) {
	h.t.Helper()
	require.NoError(h.t, os.WriteFile(filepath.Join(h.proc, strconv.Itoa(pid), "stat"), []byte(line), 0o600))
}

// blockCmdline makes reading the command line fail for another reason than its absence:
// also for root, who runs the tests at times.
func (h *host) blockCmdline(pid int) {
	h.t.Helper()
	path := filepath.Join(h.proc, strconv.Itoa(pid), "cmdline")
	require.NoError(h.t, os.Remove(path))
	require.NoError(h.t, os.Mkdir(path, 0o755))
}

func (h *host) blockStat(pid int) {
	h.t.Helper()
	require.NoError(h.t, os.MkdirAll(filepath.Join(h.proc, strconv.Itoa(pid), "stat"), 0o755))
}

// A QEMU that ends is followed by its start time once it has been recognised.
func TestEndOfAGuest(t *testing.T) {
	h := newHost(t)
	h.write("vm1", h.status())
	h.process(3600, "S", 777, qemuArgs("vm1", uuid1)...)
	assert.Equal(t, Alive, h.look().Liveness(uuid1, "vm1"))

	h.process(3600, "D", 777) // ending: no command line any more
	assert.Equal(t, Alive, h.look().Liveness(uuid1, "vm1"))

	h.remove("vm1") // libvirt gives up on it
	s := h.look()
	g := s.ByUUID[uuid1]
	assert.Equal(t, Alive, g.Alive)
	assert.Equal(t, "unknown", g.State)
	assert.Contains(t, g.Note, "its process is still there")

	h.end(3600)
	s = h.look()
	assert.Empty(t, s.ByUUID)
	assert.Equal(t, Gone, s.Liveness(uuid1, "vm1"))
}

func TestFileGoneBeforeTheProcess(t *testing.T) {
	tests := map[string]struct {
		before, after func(h *host)
		want          Liveness
	}{
		"pid of another process by now": {
			func(h *host) { h.process(3600, "S", 777, qemuArgs("vm1", uuid1)...) },
			func(h *host) { h.process(3600, "S", 888, "sh") }, Gone,
		},
		"hangs, seen only while it ended": {
			func(h *host) { h.process(3600, "D", 777) }, func(*host) {}, Unknown,
		},
		"threads hang": {
			func(h *host) { h.process(3600, "S", 777, qemuArgs("vm1", uuid1)...) },
			func(h *host) {
				h.process(3600, "Z", 777)
				h.thread(3601, "D")
			}, Unknown,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			h.write("vm1", h.status())
			tt.before(h)
			h.look()
			h.remove("vm1")
			for range 3 { // as long as it takes
				tt.after(h)
				assert.Equal(t, tt.want, h.look().Liveness(uuid1, "vm1"))
			}
			h.end(3600)
			assert.Equal(t, Gone, h.look().Liveness(uuid1, "vm1"))
		})
	}
}

func TestRestartedGuest(t *testing.T) {
	h := newHost(t)
	h.write("vm1", h.status())
	h.process(3600, "S", 777, qemuArgs("vm1", uuid1)...)
	h.look()
	h.end(3600)
	// The same pid once more, for the guest's next QEMU.
	h.process(3600, "S", 888, qemuArgs("vm1", uuid1)...)
	g := h.look().ByUUID[uuid1]
	assert.Equal(t, Alive, g.Alive)
	assert.EqualValues(t, 888, g.Start)
	// Or another one.
	h.write("vm1", h.status("pid='3600'", "pid='3700'"))
	h.process(3700, "S", 999, qemuArgs("vm1", uuid1)...)
	g = h.look().ByUUID[uuid1]
	assert.Equal(t, Alive, g.Alive)
	assert.Equal(t, 3700, g.PID)
	assert.EqualValues(t, 999, g.Start)
}

// A file that becomes unreadable does not make its guest gone, nor does the memory of it
// hide that the file is not understood.
func TestFileSpoiledWhileRunning(t *testing.T) {
	h := newHost(t)
	h.write("vm1", h.status())
	h.process(3600, "S", 777, qemuArgs("vm1", uuid1)...)
	h.look()
	h.write("vm1", "")
	s := h.look()
	assert.Equal(t, Unknown, s.Liveness(uuid1, "vm1"))
	assert.Len(t, s.Unknown, 1)
	h.write("vm1", h.status())
	assert.Equal(t, Alive, h.look().Liveness(uuid1, "vm1"))
}
