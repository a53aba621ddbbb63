package guests

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const (
	fixture = "../../test/testdata/status/libvirt-11.3-vm1-running.xml"
	uuid1   = "11111111-2222-3333-4444-555555555555"
	uuid2   = "aaaaaaaa-2222-3333-4444-555555555555"
)

// host is a folder with status files and one with processes.
type host struct {
	t         *testing.T
	run, proc string
	*Observer
}

func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{t: t, run: filepath.Join(t.TempDir(), "run"), proc: t.TempDir()}
	require.NoError(t, os.Mkdir(h.run, 0o755))
	h.Observer = New(h.run, h.proc)
	return h
}

// status is the real status file of vm1, pid 3600, with changes.
func (h *host) status(changes ...string) string {
	h.t.Helper()
	doc, err := os.ReadFile(fixture)
	require.NoError(h.t, err)
	for i := 0; i < len(changes); i += 2 {
		require.Contains(h.t, string(doc), changes[i])
	}
	return strings.NewReplacer(changes...).Replace(string(doc))
}

// write replaces a status file as libvirt does.
func (h *host) write(name, doc string) {
	h.t.Helper()
	path := filepath.Join(h.run, name+".xml")
	require.NoError(h.t, os.WriteFile(path+".new", []byte(doc), 0o600))
	require.NoError(h.t, os.Rename(path+".new", path))
}

func (h *host) remove(name string) {
	h.t.Helper()
	require.NoError(h.t, os.Remove(filepath.Join(h.run, name+".xml")))
}

// process makes a process of the given state ("S", "Z", ...) and start time.
func (h *host) process(pid int, state string, start uint64, args ...string) {
	h.t.Helper()
	dir := filepath.Join(h.proc, strconv.Itoa(pid))
	require.NoError(h.t, os.MkdirAll(filepath.Join(dir, "task", strconv.Itoa(pid)), 0o755))
	cmdline := ""
	if len(args) > 0 {
		cmdline = strings.Join(args, "\x00") + "\x00"
	}
	require.NoError(h.t, os.WriteFile(filepath.Join(dir, "cmdline"), []byte(cmdline), 0o600))
	line := []byte(statLine(pid, state, 0x400000, start))
	require.NoError(h.t, os.WriteFile(filepath.Join(dir, "stat"), line, 0o600))
	require.NoError(h.t, os.WriteFile(filepath.Join(dir, "task", strconv.Itoa(pid), "stat"), line, 0o600))
}

// thread adds a thread to process 3600.
func (h *host) thread(tid int, state string) {
	h.t.Helper()
	dir := filepath.Join(h.proc, "3600", "task", strconv.Itoa(tid))
	require.NoError(h.t, os.MkdirAll(dir, 0o755))
	require.NoError(h.t, os.WriteFile(filepath.Join(dir, "stat"), []byte(statLine(tid, state, 0, 1)), 0o600))
}

func (h *host) end(pid int) {
	h.t.Helper()
	require.NoError(h.t, os.RemoveAll(filepath.Join(h.proc, strconv.Itoa(pid))))
}

func (h *host) look() Snapshot {
	h.t.Helper()
	s, err := h.Observe()
	require.NoError(h.t, err)
	return s
}

func statLine(pid int, state string, flags, start uint64) string {
	return fmt.Sprintf("%d (qemu) x) (y) %s 1 2 3 0 -1 %d 0 0 0 0 0 0 0 0 20 0 3 0 %d 0 0\n", pid, state, flags, start)
}

func qemuArgs(name, uuid string) []string {
	return []string{"/usr/bin/qemu-system-x86_64", "-name", "guest=" + name + ",debug-threads=on", "-S", "-uuid", uuid, "-m", "48"}
}

func TestCapabilitiesOfQEMU(t *testing.T) {
	h := newHost(t)
	h.process(3600, "S", 777, qemuArgs("vm1", uuid1)...)
	const flag = "<flag name='migration-file-drop-cache'/>"
	require.Contains(t, h.status(), flag)
	h.write("vm1", strings.Replace(h.status(), flag, "", 1))
	assert.False(t, h.look().ByUUID[uuid1].DropsCache, "an old QEMU")
	whole := h.status()
	from, to := strings.Index(whole, "<qemuCaps>"), strings.Index(whole, "</qemuCaps>")+len("</qemuCaps>")
	h.write("vm1", whole[:from]+whole[to:])
	s := h.look()
	assert.Empty(t, s.Unknown)
	assert.False(t, s.ByUUID[uuid1].DropsCache, "an old libvirt: not known")
}

func TestRunningGuest(t *testing.T) {
	h := newHost(t)
	h.write("vm1", h.status())
	h.process(3600, "S", 777, qemuArgs("vm1", uuid1)...)
	s := h.look()
	assert.Empty(t, s.Unknown)
	assert.False(t, s.NoDir)
	require.Len(t, s.ByUUID, 1)
	g := s.ByUUID[uuid1]
	assert.Equal(t, h.status(), string(g.XML))
	g.XML, g.seen = nil, 0
	assert.Equal(t, Guest{
		Name: "vm1", UUID: uuid1, State: "running", Reason: "restored", PID: 3600, Start: 777, Alive: Alive,
		Job: Job{Type: "none", Async: "none"}, DropsCache: true,
	}, g)
	assert.Equal(t, Alive, s.Liveness(uuid1, "vm1"))
	assert.Equal(t, Alive, s.Liveness(uuid1, ""))
	assert.Equal(t, Alive, s.Liveness("", "vm1"))
	assert.Equal(t, Gone, s.Liveness(uuid2, "vm2"))
}

// The lines libvirt wrote while guests started, migrated and ended, each on the real
// document.
func TestRecordedStatesAndJobs(t *testing.T) {
	data, err := os.ReadFile("../../test/testdata/status/libvirt-11.3-jobs-during-events.txt")
	require.NoError(t, err)
	tests := 0
	seen := map[string]bool{}
	for line := range strings.Lines(string(data)) {
		_, rest, found := strings.Cut(line, "<domstatus ")
		if !found {
			continue
		}
		tests++
		root, job, hasJob := strings.Cut(strings.TrimSpace(rest), "<job ")
		changes := []string{"<domstatus state='running' reason='restored' pid='3600'", "<domstatus " + strings.TrimSpace(root)}
		if hasJob {
			changes = append(changes, "</qemuCaps>", "</qemuCaps>\n  <job "+strings.TrimSuffix(job, "/")+"><disk dev='vda' migrating='yes'/></job>")
		}
		h := newHost(t)
		h.write("vm1", h.status(changes...))
		s := h.look()
		require.Empty(t, s.Unknown, line)
		g := s.ByUUID[uuid1]
		assert.Contains(t, line, fmt.Sprintf("state='%s' reason='%s' pid='%d'", g.State, g.Reason, g.PID))
		if hasJob {
			assert.Contains(t, line, fmt.Sprintf("type='%s' async='%s'", g.Job.Type, g.Job.Async))
		} else {
			assert.Equal(t, Job{Type: "none", Async: "none"}, g.Job)
		}
		if g.Job.Phase != "" {
			assert.Contains(t, line, "phase='"+g.Job.Phase+"'")
			assert.Contains(t, line, fmt.Sprintf("flags='0x%x'", g.Job.Flags))
		}
		seen[g.Job.Async+"/"+g.Job.Phase] = true
	}
	assert.Equal(t, 13, tests)
	for _, want := range []string{"none/", "start/", "migration out/begin3", "migration out/perform3", "migration in/prepare"} {
		assert.True(t, seen[want], want)
	}
}

func TestBlockJobs(t *testing.T) {
	for content, want := range map[string]bool{
		"<blockjobs active='no'/>":  false,
		"<blockjobs active='yes'/>": true,
		"<blockjobs/>":              true,
		"<blockjobs active='yes'><blockjob name='x' type='copy'/></blockjobs>": true,
		"": false,
	} {
		h := newHost(t)
		h.write("vm1", h.status("<blockjobs active='no'/>", content))
		assert.Equal(t, want, h.look().ByUUID[uuid1].BlockJobs, content)
	}
}

func TestFilesNotUnderstood(t *testing.T) {
	const root = "<domstatus state='running' reason='restored' pid='3600'>"
	h := newHost(t)
	tests := map[string]string{
		"empty":            "",
		"blank":            "\n\n",
		"truncated":        h.status()[:5000],
		"no XML":           "\x7fELF\x00\x01",
		"no UTF-8":         h.status("<name>vm1</name>", "<name>vm1</name><title>\xff\xfe</title>"),
		"a domain":         "<domain><name>vm1</name><uuid>" + uuid1 + "</uuid></domain>",
		"two documents":    h.status() + h.status(),
		"rest behind":      h.status() + "x",
		"entity":           "<!DOCTYPE d [<!ENTITY e 'x'>]>" + h.status("<name>vm1</name>", "<name>vm1</name><title>&e;</title>"),
		"no state":         h.status(root, "<domstatus pid='3600'>"),
		"no pid":           h.status(root, "<domstatus state='running' reason='booted'>"),
		"pid is no number": h.status(root, "<domstatus state='running' pid='abc'>"),
		"pid negative":     h.status(root, "<domstatus state='running' pid='-1'>"),
		"pid too large":    h.status(root, "<domstatus state='running' pid='99999999999'>"),
		"no uuid":          h.status("<uuid>"+uuid1+"</uuid>", ""),
		"uuid is none":     h.status("<uuid>"+uuid1+"</uuid>", "<uuid>11111111</uuid>"),
		"two uuids":        h.status("<uuid>"+uuid1+"</uuid>", "<uuid>"+uuid1+"</uuid><uuid>"+uuid2+"</uuid>"),
		"uuid with a tag":  h.status("<uuid>"+uuid1, "<uuid><b/>"+uuid1),
		"no name":          h.status("<name>vm1</name>", ""),
		"other name":       h.status("<name>vm1</name>", "<name>vm2</name>"),
		"no domain":        root + "</domstatus>",
		"two domains":      h.status("</domstatus>", "<domain><name>a</name><uuid>"+uuid2+"</uuid></domain></domstatus>"),
		"flags of the job": h.status("<blockjobs active='no'/>", "<job type='none' async='migration out' flags='many'/>"),
	}
	for name, doc := range tests {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			h.write("vm1", doc)
			h.process(3600, "S", 777, qemuArgs("vm1", uuid1)...)
			s := h.look()
			assert.Empty(t, s.ByUUID)
			require.Len(t, s.Unknown, 1)
			u := s.Unknown[0]
			assert.Equal(t, "vm1", u.Name)
			assert.Equal(t, filepath.Join(h.run, "vm1.xml"), u.Path)
			assert.NotEmpty(t, u.Reason)
			assert.NotContains(t, u.Reason, "\n")
			assert.Equal(t, Unknown, s.Liveness(uuid1, "vm1"), "never gone")
			assert.Equal(t, Unknown, s.Liveness("", "vm1"))
			assert.Equal(t, Gone, s.Liveness(uuid2, "vm3"), "others are not touched by it")
		})
	}
}

func TestReasonsQuoteNoSecret(t *testing.T) {
	h := newHost(t)
	h.write("vm1", h.status("<on_crash>destroy", "<graphics passwd='a&geheim;'/><on_crash>destroy"))
	s := h.look()
	require.Len(t, s.Unknown, 1)
	assert.NotContains(t, s.Unknown[0].Reason, "geheim")
}

func TestFilesThatCannotBeRead(t *testing.T) {
	tests := map[string]func(h *host, path string){
		"link": func(h *host, path string) {
			other := filepath.Join(h.t.TempDir(), "x")
			require.NoError(h.t, os.WriteFile(other, []byte(h.status()), 0o600))
			require.NoError(h.t, os.Symlink(other, path))
		},
		"directory": func(h *host, path string) { require.NoError(h.t, os.Mkdir(path, 0o755)) },
		"fifo":      func(h *host, path string) { require.NoError(h.t, unix.Mkfifo(path, 0o600)) },
		"huge": func(h *host, path string) {
			require.NoError(h.t, os.WriteFile(path, nil, 0o600))
			require.NoError(h.t, os.Truncate(path, maxStatus+1))
		},
	}
	for name, create := range tests {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			create(h, filepath.Join(h.run, "vm1.xml"))
			s := h.look()
			assert.Empty(t, s.ByUUID)
			require.Len(t, s.Unknown, 1)
			assert.Equal(t, Unknown, s.Liveness(uuid1, "vm1"))
		})
	}
}

func TestTwoFilesWithOneUUID(t *testing.T) {
	h := newHost(t)
	for _, name := range []string{"vm1", "vm2", "vm3"} {
		h.write(name, h.status("<name>vm1</name>", "<name>"+name+"</name>"))
	}
	h.process(3600, "S", 777, qemuArgs("vm1", uuid1)...)
	s := h.look()
	assert.Empty(t, s.ByUUID)
	require.Len(t, s.Unknown, 3)
	for i, u := range s.Unknown {
		assert.Equal(t, fmt.Sprintf("vm%d", i+1), u.Name)
		assert.Equal(t, filepath.Join(h.run, u.Name+".xml"), u.Path)
		assert.Equal(t, uuid1, u.UUID)
	}
	assert.Equal(t, Unknown, s.Liveness(uuid1, ""))
}

func TestOtherFilesAreIgnored(t *testing.T) {
	h := newHost(t)
	for _, name := range []string{"vm1.pid", "autostarted", "driver.pid", ".xml", "vm1.xml.bak", "vm1.xml.new"} {
		require.NoError(t, os.WriteFile(filepath.Join(h.run, name), []byte("3600"), 0o600))
	}
	for _, name := range []string{"dbus", "slirp", "channel", "swtpm"} {
		require.NoError(t, os.Mkdir(filepath.Join(h.run, name), 0o755))
	}
	s := h.look()
	assert.Empty(t, s.ByUUID)
	assert.Empty(t, s.Unknown)
	assert.False(t, s.NoDir)
}

func TestStrangeNames(t *testing.T) {
	for _, name := range []string{"a b", "'", `"`, "-x", "..", "a\nb", "ä", "a,b", "x.xml", "vm1.new"} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			h.write(name, h.status("<name>vm1</name>", "<name>"+name+"</name>"))
			h.process(3600, "S", 777, "qemu", "-name", "guest="+strings.ReplaceAll(name, ",", ",,")+",debug-threads=on")
			s := h.look()
			assert.Empty(t, s.Unknown)
			assert.Equal(t, name, s.ByUUID[uuid1].Name)
			assert.Equal(t, Alive, s.ByUUID[uuid1].Alive)
		})
	}
}

func TestNoDirectory(t *testing.T) {
	h := newHost(t)
	require.NoError(t, os.Remove(h.run))
	s := h.look()
	assert.True(t, s.NoDir)
	assert.Empty(t, s.ByUUID)

	require.NoError(t, os.WriteFile(h.run, nil, 0o600)) // a file in its place
	_, err := h.Observe()
	require.Error(t, err)
}

// What a listing may have missed is asked for by name all the same.
func TestNamesBeyondTheListing(t *testing.T) {
	h := newHost(t)
	h.write("listed", h.status())
	require.NoError(t, os.WriteFile(filepath.Join(h.run, "coming.xml.new"), nil, 0o600))
	names, noDir, err := h.names(map[string]Guest{uuid1: {Name: "seen before"}})
	require.NoError(t, err)
	assert.False(t, noDir)
	assert.Equal(t, []string{"coming", "listed", "seen before"}, names)
}

func TestManyGuestsWhileFilesAreReplaced(t *testing.T) {
	h := newHost(t)
	const guests = 20
	docs := map[string]string{}
	for i := range guests {
		name, pid := fmt.Sprintf("vm%d", i), strconv.Itoa(5000+i)
		uuid := fmt.Sprintf("11111111-2222-3333-4444-%012d", i)
		docs[name] = h.status("<name>vm1</name>", "<name>"+name+"</name>", uuid1, uuid, "pid='3600'", "pid='"+pid+"'")
		h.write(name, docs[name])
		h.process(5000+i, "S", 1, qemuArgs(name, uuid)...)
	}
	// Enough for the kernel to hand the listing over in several parts.
	for i := range 1000 {
		require.NoError(t, os.WriteFile(filepath.Join(h.run, fmt.Sprintf("some-other-guest-%d.pid", i)), nil, 0o600))
	}
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			for name, doc := range docs {
				select {
				case <-stop:
					return
				default:
					path := filepath.Join(h.run, name+".xml")
					assert.NoError(t, os.WriteFile(path+".new", []byte(doc), 0o600))
					assert.NoError(t, os.Rename(path+".new", path))
				}
			}
		}
	}()
	for end := time.Now().Add(500 * time.Millisecond); time.Now().Before(end); {
		s := h.look()
		assert.Len(t, s.ByUUID, guests)
		assert.Empty(t, s.Unknown)
	}
	close(stop)
	<-done
}

// What a status file says is read again only where its text has changed; nothing else of
// the file tells that it has not.
func TestTextOfAStatusFileCounts(t *testing.T) {
	h := newHost(t)
	path := filepath.Join(h.run, "vm1.xml")
	write := func(doc string) {
		require.NoError(t, os.WriteFile(path, []byte(doc), 0o600)) // the same inode
		require.NoError(t, os.Chtimes(path, time.Unix(1, 0), time.Unix(1, 0)))
	}
	first, second := h.status(), h.status("state='running'", "state='crashed'")
	require.Len(t, second, len(first))
	h.process(3600, "S", 4711, qemuArgs("vm1", uuid1)...)
	for _, doc := range []string{first, first, second, first} {
		write(doc)
		g := h.look().ByUUID[uuid1]
		assert.Equal(t, doc == second, g.State == "crashed", g.State)
		assert.Equal(t, doc, string(g.XML))
	}
	write("<domstatus")
	for range 2 {
		assert.Equal(t, Unknown, h.look().Liveness(uuid1, "vm1"))
	}
	require.NoError(t, os.Remove(path))
	h.look() // its process is known of
	require.NoError(t, os.RemoveAll(h.proc))
	h.look()
	assert.Empty(t, h.said)
}
