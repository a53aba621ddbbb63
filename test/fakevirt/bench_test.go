package fakevirt

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"libvirt.org/go/libvirtxml"
)

// TestMain lets this program be the QEMU of its own tests.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "qemu" {
		os.Exit(QEMUMain(os.Args[2:]))
	}
	os.Exit(m.Run())
}

const (
	uuid1    = "11111111-2222-3333-4444-555555555555"
	fixtures = "../testdata/hooks/libvirt-11.3/"
)

// bench is a host whose hook notes its calls, and the status file at each.
type bench struct {
	t *testing.T
	*Host
	launcher Launcher
	dir      string

	mu     sync.Mutex
	calls  []HookCall
	status []string // domstatus line and job at each call, "" where there is no file
	// answer says how the hook ends, by operation; 0 and nothing where it is missing.
	answer map[string]HookResult
}

func newBench(t *testing.T, change ...func(*Options)) *bench {
	t.Helper()
	dir := t.TempDir()
	b := &bench{t: t, dir: dir, launcher: NewInProcess(filepath.Join(dir, "proc")), answer: map[string]HookResult{}}
	o := Options{Name: "kvm-a", Dir: dir, Launcher: b.launcher, Hook: b.hooked}
	for _, c := range change {
		c(&o)
	}
	b.launcher = o.Launcher
	var err error
	b.Host, err = New(o)
	require.NoError(t, err)
	return b
}

func (b *bench) hooked(_ context.Context, call HookCall) HookResult {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls = append(b.calls, call)
	line := ""
	if doc, err := os.ReadFile(b.statusPath(call.Guest)); err == nil {
		for l := range strings.Lines(string(doc)) {
			if strings.HasPrefix(l, "<domstatus ") || strings.HasPrefix(l, "  <job ") {
				line += strings.TrimSpace(l)
			}
		}
	}
	b.status = append(b.status, line)
	return b.answer[call.Op]
}

// args are the arguments of all calls so far, which it forgets.
func (b *bench) args() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var lines []string
	for _, c := range b.calls {
		lines = append(lines, strings.Join([]string{c.Guest, c.Op, c.SubOp, c.Extra}, " "))
	}
	b.calls, b.status = nil, nil
	return lines
}

// disk makes a volume under the host's root.
func (b *bench) disk(path string, content []byte) {
	b.t.Helper()
	full := b.dir + path
	require.NoError(b.t, os.MkdirAll(filepath.Dir(full), 0o755))
	require.NoError(b.t, os.WriteFile(full, append(content, make([]byte, 8192)...), 0o600))
}

func (b *bench) define(xml string) {
	b.t.Helper()
	_, err := b.Define(context.Background(), []byte(xml))
	require.NoError(b.t, err)
}

// vm1 is a defined guest with one raw disk, /dev/vg_san/lv1.
func (b *bench) vm1() {
	b.t.Helper()
	b.disk("/dev/vg_san/lv1", nil)
	b.define(domain("vm1", uuid1, `<disk type='block' device='disk'>
      <driver name='qemu' type='raw' cache='none' io='native'/>
      <source dev='/dev/vg_san/lv1'/><target dev='vda' bus='virtio'/></disk>`))
}

func (b *bench) start(name string) {
	b.t.Helper()
	require.NoError(b.t, b.Start(context.Background(), name))
}

func domain(name, uuid, disks string) string {
	return fmt.Sprintf(`<domain type='qemu'><name>%s</name><uuid>%s</uuid><memory unit='MiB'>48</memory><vcpu>1</vcpu>
  <os><type arch='x86_64' machine='pc-i440fx-10.0'>hvm</type></os>
  <devices><emulator>/usr/bin/qemu-system-x86_64</emulator>%s</devices></domain>`, name, uuid, disks)
}

func parse(t *testing.T, xml []byte) *libvirtxml.Domain {
	t.Helper()
	d := &libvirtxml.Domain{}
	require.NoError(t, d.Unmarshal(string(xml)))
	return d
}

// qcow2 is an image's header, with a backing file where one is named.
func qcow2(backing, format string) []byte {
	head := make([]byte, 1024)
	binary.BigEndian.PutUint32(head, 0x514649fb)
	binary.BigEndian.PutUint32(head[4:], 3)
	binary.BigEndian.PutUint32(head[100:], 104)
	at := 104
	if format != "" {
		binary.BigEndian.PutUint32(head[at:], 0xe2792aca)
		binary.BigEndian.PutUint32(head[at+4:], uint32(len(format)))
		copy(head[at+8:], format)
		at += 8 + (len(format)+7)/8*8
	}
	at += 8 // the end of the extensions
	if backing != "" {
		binary.BigEndian.PutUint64(head[8:], uint64(at))
		binary.BigEndian.PutUint32(head[16:], uint32(len(backing)))
		copy(head[at:], backing)
	}
	return head
}

// virsh is what virsh would print for an error of a command.
func virsh(t *testing.T, err error) string {
	t.Helper()
	var e *Error
	require.ErrorAs(t, err, &e)
	return e.Virsh()
}

// openMarkers are the fake SAN's files of open devices.
func (b *bench) openMarkers() []string {
	b.t.Helper()
	found, err := filepath.Glob(filepath.Join(b.dir, "open/*/*"))
	require.NoError(b.t, err)
	return found
}

func (b *bench) guest(name string) Guest {
	b.t.Helper()
	guests, err := b.List()
	require.NoError(b.t, err)
	for _, g := range guests {
		if g.Name == name {
			return g
		}
	}
	assert.Fail(b.t, "no such guest")
	return Guest{}
}
