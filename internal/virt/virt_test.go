package virt

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
)

const uuid = "01020300-0000-0000-0000-000000000000"

var ctx = context.Background()

var both = []string{"libvirt-sock", "libvirt-sock-ro"}

func TestJobStats(t *testing.T) {
	f := newFake(t, both...)
	ullong := func(name string, n uint64) []byte { return xdr(name, uint32(4), n) }
	params := xdr(uint32(2), uint32(6), ullong("data_total", 100), ullong("data_processed", 40), ullong("data_remaining", 60),
		ullong("memory_bps", 7), ullong("memory_iteration", 3), xdr("auto_converge_throttle", uint32(1), uint32(20)))
	f.set(procJobStats, params)
	v := New(Options{Dir: f.dir})
	j, err := v.JobStats(ctx, uuid)
	require.NoError(t, err)
	assert.Equal(t, Job{Active: true, Total: 100, Done: 40, Remaining: 60, Speed: 7, Iteration: 3}, j)
	assert.Equal(t, "libvirt-sock-ro", f.last(procJobStats).socket)
	assert.Equal(t, xdr([16]byte{1, 2, 3}), f.last(procLookupUUID).args)

	// A backup tells of its disk alone.
	f.set(procJobStats, xdr(uint32(2), uint32(3), ullong("disk_total", 100), ullong("disk_processed", 40), ullong("disk_remaining", 60)))
	j, err = v.JobStats(ctx, uuid)
	require.NoError(t, err)
	assert.Equal(t, Job{Active: true, Total: 100, Done: 40, Remaining: 60}, j)

	f.set(procJobStats, xdr(uint32(0), uint32(0)))
	j, err = v.JobStats(ctx, uuid)
	require.NoError(t, err)
	assert.Equal(t, Job{}, j)
}

func TestThaw(t *testing.T) {
	f := newFake(t, both...)
	v := New(Options{Dir: f.dir})
	f.set(procFSThaw, xdr(uint32(2)))
	require.NoError(t, v.Thaw(ctx, uuid))
	assert.Equal(t, "libvirt-sock", f.last(procFSThaw).socket)
	f.set(procFSThaw, libvirtError{74, "QEMU guest agent is not connected"})
	require.ErrorContains(t, v.Thaw(ctx, uuid), "cannot thaw the file systems of the guest: QEMU guest agent is not connected")
}

func TestBlockJob(t *testing.T) {
	f := newFake(t, both...)
	v := New(Options{Dir: f.dir})
	f.set(procBlockJobInfo, xdr(uint32(1), uint32(2), uint64(0), uint64(10), uint64(20)))
	j, err := v.BlockJob(ctx, uuid, "vda")
	require.NoError(t, err)
	assert.Equal(t, BlockJob{Found: true, Copy: true, Done: 10, End: 20}, j)
	f.set(procBlockJobInfo, xdr(uint32(0), uint32(0), uint64(0), uint64(0), uint64(0)))
	j, err = v.BlockJob(ctx, uuid, "vda")
	require.NoError(t, err)
	assert.Equal(t, BlockJob{}, j)

	require.NoError(t, v.BlockCopy(ctx, uuid, "vda", "/dev/vg2/l&v", "raw", 1<<20))
	dom := xdr("vm1", [16]byte{1, 2, 3}, uint32(5))
	doc := "<disk type='block' device='disk'><driver name='qemu' type='raw'/><source dev='/dev/vg2/l&amp;v'/></disk>"
	assert.Equal(t, request{"libvirt-sock", procBlockCopy, xdr(dom, "vda", doc, uint32(1), "bandwidth", uint32(4), uint64(1<<20), uint32(2|4))}, f.last(procBlockCopy))
	require.NoError(t, v.Pivot(ctx, uuid, "vda"))
	assert.Equal(t, request{"libvirt-sock", procBlockJobAbort, xdr(dom, "vda", uint32(2))}, f.last(procBlockJobAbort))
	require.NoError(t, v.AbortBlockJob(ctx, uuid, "vda"))
	assert.Equal(t, xdr(dom, "vda", uint32(0)), f.last(procBlockJobAbort).args)
	require.NoError(t, v.AbortJob(ctx, uuid))
	assert.Equal(t, request{"libvirt-sock", procAbortJob, dom}, f.last(procAbortJob))
}

func TestState(t *testing.T) {
	f := newFake(t, both...)
	v := New(Options{Dir: f.dir})
	for number, want := range map[uint32]State{1: {Running: true}, 3: {}, 5: {Off: true}} {
		f.set(procGetState, xdr(number, uint32(1)))
		s, err := v.State(ctx, uuid)
		require.NoError(t, err)
		assert.Equal(t, want, s)
	}
	f.set(procGetXML, xdr("<domain/>"))
	doc, err := v.Live(ctx, uuid)
	require.NoError(t, err)
	assert.Equal(t, "<domain/>", string(doc))
	assert.Equal(t, "libvirt-sock-ro", f.last(procGetXML).socket)
}

// A read-only socket may not be there; the daemons may be modular.
func TestSockets(t *testing.T) {
	for name, tt := range map[string]struct {
		there         []string
		read, written string
	}{
		"both":            {both, "libvirt-sock-ro", "libvirt-sock"},
		"no read-only":    {[]string{"libvirt-sock"}, "libvirt-sock", "libvirt-sock"},
		"modular":         {[]string{"virtqemud-sock", "virtqemud-sock-ro"}, "virtqemud-sock-ro", "virtqemud-sock"},
		"modular, proxyd": {[]string{"virtqemud-sock", "virtqemud-sock-ro", "libvirt-sock", "libvirt-sock-ro"}, "libvirt-sock-ro", "libvirt-sock"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t, tt.there...)
			f.set(procGetState, xdr(uint32(1), uint32(1)))
			v := New(Options{Dir: f.dir})
			_, err := v.State(ctx, uuid)
			require.NoError(t, err)
			assert.Equal(t, tt.read, f.last(procGetState).socket)
			require.NoError(t, v.AbortJob(ctx, uuid))
			assert.Equal(t, tt.written, f.last(procAbortJob).socket)
		})
	}
}

func TestErrors(t *testing.T) {
	f := newFake(t, both...)
	v := New(Options{Dir: f.dir, Timeout: 20 * time.Second})
	f.set(procLookupUUID, libvirtError{42, "Domain not found: no domain with matching uuid"})
	_, err := v.JobStats(ctx, uuid)
	require.EqualError(t, err, "cannot ask how far the job of the guest has come: Domain not found: no domain with matching uuid")
	assert.Equal(t, api.KindNotFound, api.KindOf(err))

	f.set(procLookupUUID, xdr("vm1", [16]byte{}, uint32(5)))
	f.set(procAbortJob, libvirtError{55, "Requested operation is not valid: no job is active on the domain"})
	assert.Equal(t, api.KindInUse, api.KindOf(v.AbortJob(ctx, uuid)))

	f.set(procAbortJob, errBreak)
	err = v.AbortJob(ctx, uuid)
	require.EqualError(t, err, "cannot abort the job of the guest: the connection to libvirt broke before it answered")
	assert.Equal(t, api.KindUnknown, api.KindOf(err))

	err = New(Options{Dir: f.dir + "/none"}).AbortJob(ctx, uuid)
	require.ErrorContains(t, err, "libvirt cannot be reached")
	assert.Equal(t, api.KindUnreachable, api.KindOf(err))

	require.ErrorContains(t, v.AbortJob(ctx, "vm1"), "not a uuid")
}

// libvirt does not answer while a hook runs: the call gives up, and the next one works.
func TestDeadline(t *testing.T) {
	for _, proc := range []uint32{procAuthList, procOpen, procLookupUUID, procGetState} {
		f := newFake(t, both...)
		f.set(procGetState, xdr(uint32(1), uint32(1)))
		f.hang, f.hangOn = make(chan struct{}), proc
		v := New(Options{Dir: f.dir, Timeout: 50 * time.Millisecond})
		_, err := v.State(ctx, uuid)
		require.ErrorContains(t, err, "libvirt has not answered in time", proc)
		assert.Equal(t, api.KindUnknown, api.KindOf(err))
		f.mu.Lock()
		close(f.hang)
		f.hang = nil
		f.mu.Unlock()
		v = New(Options{Dir: f.dir, Timeout: 20 * time.Second})
		_, err = v.State(ctx, uuid)
		require.NoError(t, err)
	}
}

const definition = `<domain type='kvm'>
  <name>vm1</name>
  <metadata><x:note xmlns:x="u"><devices><disk><target dev='vda'/></disk></devices></x:note></metadata>
  <devices>
    <disk type='block' device='disk'>
      <driver name='qemu' type='raw' cache='none'/>
      <source dev='/dev/vg_san/vm1'>
        <encryption format='luks'/>
      </source>
      <target dev='vda' bus='virtio'/><!-- kept -->
      <future thing='yes'/>
    </disk>
    <disk type='block' device='disk'>
      <source dev="/dev/vg_san/data"/>
      <target dev='vdb' bus='virtio'/>
    </disk>
  </devices>
</domain>`

func TestRedefineDisk(t *testing.T) {
	f := newFake(t, both...)
	f.set(procGetXML, xdr(definition))
	v := New(Options{Dir: f.dir})
	require.NoError(t, v.RedefineDisk(ctx, uuid, "vda", DiskSource{Path: "/dev/vg_san/vm1"}, DiskSource{Path: "/dev/vg2/vm1"}))
	c := f.last(procUpdateDevice)
	assert.Equal(t, "libvirt-sock", c.socket)
	want := `<disk type='block' device='disk'>
      <driver name='qemu' type='raw' cache='none'/>
      <source dev='/dev/vg2/vm1'>
        <encryption format='luks'/>
      </source>
      <target dev='vda' bus='virtio'/><!-- kept -->
      <future thing='yes'/>
    </disk>`
	assert.Equal(t, xdr("vm1", [16]byte{1, 2, 3}, uint32(5), want, uint32(2)), c.args)
	assert.Equal(t, xdr("vm1", [16]byte{1, 2, 3}, uint32(5), uint32(1|2)), f.last(procGetXML).args)
}

func TestReplaceSource(t *testing.T) {
	at := func(path string) DiskSource { return DiskSource{Path: path} }
	disk, err := replaceSource([]byte(definition), "vdb", at("/dev/vg_san/data"), at("/dev/vg2/data"))
	require.NoError(t, err)
	assert.Contains(t, string(disk), `<source dev='/dev/vg2/data'/>`)
	for _, tt := range [][2]string{{"vdc", "/dev/vg_san/vm1"}, {"vda", "/dev/vg_san/other"}, {"vdb", "/dev/vg_san/vm1"}} {
		_, err := replaceSource([]byte(definition), tt[0], at(tt[1]), at("/dev/vg2/x"))
		require.Error(t, err, tt)
	}
	for _, doc := range []string{"", "<domain>", "<domain><devices><disk><target dev='vda'/></disk></devices></domain>", "<domain><devices><disk><source file='/x'/><target dev='vda'/></disk></devices></domain>"} {
		_, err := replaceSource([]byte(doc), "vda", at("/dev/vg_san/vm1"), at("/dev/vg2/x"))
		require.Error(t, err, doc)
	}
}

func TestReplaceSourceForms(t *testing.T) {
	for _, tt := range []struct {
		disk     string
		from, to DiskSource
		want     string // "": refused
	}{
		{
			"<disk device='disk' type='file'><driver name='qemu' type='raw'/><source file='/dev/vg/a' index='1'/><target dev='vda'/></disk>",
			DiskSource{Path: "/dev/vg/a"},
			DiskSource{Path: "/dev/two/a", Format: "qcow2"},
			"<disk device='disk' type='block'><driver name='qemu' type='qcow2'/><source dev='/dev/two/a' index='1'/><target dev='vda'/></disk>",
		},
		{
			"<disk type='volume'><source volume='a' mode='host' pool='old'/><driver type='qcow2'/><target dev='vda'/></disk>",
			DiskSource{Pool: "old", Volume: "a"},
			DiskSource{Pool: "n&w", Volume: "b"},
			"<disk type='volume'><source mode='host' pool='n&amp;w' volume='b'/><driver type='qcow2'/><target dev='vda'/></disk>",
		},
		{
			"<disk type='volume'><driver type='qcow2'/><source pool='old' volume='a'/><target dev='vda'/></disk>",
			DiskSource{Pool: "old", Volume: "a"},
			DiskSource{Path: "/dev/two/a", Format: "raw"},
			"<disk type='block'><driver type='raw'/><source dev='/dev/two/a'/><target dev='vda'/></disk>",
		},
		{
			"<disk type='block'><source dev='/dev/vg/a'/><target dev='vda'/></disk>",
			DiskSource{Path: "/dev/vg/a"},
			DiskSource{Pool: "p", Volume: "a", Format: "raw"},
			"<disk type='volume'><source pool='p' volume='a'/><target dev='vda'/></disk>",
		},
		{"<disk type='block'><source dev='/dev/vg/a'/><target dev='vda'/></disk>", DiskSource{Path: "/dev/vg/a"}, DiskSource{Path: "/dev/two/a", Format: "qcow2"}, ""},
		{"<disk type='volume'><source pool='old' volume='a'/><target dev='vda'/></disk>", DiskSource{Pool: "old", Volume: "b"}, DiskSource{Path: "/dev/two/a"}, ""},
	} {
		got, err := replaceSource([]byte("<domain><devices>"+tt.disk+"</devices></domain>"), "vda", tt.from, tt.to)
		if tt.want == "" {
			require.Error(t, err, tt.disk)
			continue
		}
		require.NoError(t, err, tt.disk)
		assert.Equal(t, tt.want, string(got))
	}
}
