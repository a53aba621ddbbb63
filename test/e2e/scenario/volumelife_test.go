//go:build e2e

package scenario

import (
	"fmt"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/test/e2e/cluster"
)

// volumeLife are the scenarios of TestVolumes in which a volume is made, grows, is attached,
// and is below others.
func volumeLife() []scenario {
	return []scenario{
		{"create_from_elsewhere", createFromElsewhere, true},
		{"attach_live", attachLive, true},
		{"grow_running", growRunning, true},
		{"template", template, true},
	}
}

// make makes a volume with virtlvm, asked for on B and done on a host.
func (e *env) make(on *cluster.Host, name string, options ...string) cluster.Volume {
	e.Helper()
	full := cluster.Volume{Name: name}.Full()
	e.Log(e.must(e.b, "virtlvm volume create "+full+" --host "+on.Name+" "+strings.Join(options, " ")))
	v, err := e.c.Volumes(e.ctx, name)
	require.NoError(e, err)
	e.alone(on, v[0])
	return v[0]
}

// unmake removes volumes that a scenario has made, wherever they are retained.
func (e *env) unmake(names ...string) {
	for _, name := range names {
		full := cluster.Volume{Name: name}.Full()
		for _, h := range e.hosts {
			e.must(h, "virtlvm deactivate "+full+" 2>/dev/null || true")
		}
		e.must(e.a, fmt.Sprintf("! lvs %[1]s >/dev/null 2>&1 || lvremove -qq -y %[1]s", full))
	}
}

func (e *env) size(v cluster.Volume) string {
	e.Helper()
	return e.must(e.b, "lvs --noheadings --nosuffix --units b -o lv_size "+v.Full())
}

// createFromElsewhere: asked for on B, a volume is made on A, exclusively, as it was asked for;
// what fails leaves nothing. A guest on B gets it all the same.
func createFromElsewhere(e *env) {
	defer e.unmake("made", "image")
	v := e.make(e.a, "made", "--size", "15M")
	require.Equal(e, "16777216", e.size(v), "rounded up to extents")
	require.Contains(e, e.must(e.b, "lvs --noheadings -o lv_tags "+v.Full()), "virtlvm.command=")
	require.NotContains(e, e.must(e.b, "lvs --noheadings -o lv_autoactivation "+v.Full()), "enabled")
	image := e.make(e.a, "image", "--size", "16M", "--format", "qcow2")
	require.Contains(e, e.must(e.a, "qemu-img info -f qcow2 "+image.Path()), "16777216 bytes")
	var shown api.Volume
	require.NoError(e, e.b.Ask(e.ctx, &shown, "volume", "show", image.Full()))
	require.Equal(e, "qcow2", shown.Format)

	for options, want := range map[string]string{
		"--size 900T": "too little room", "--size 8M --backing " + e.one.Full(): "is no template",
	} {
		r, err := e.b.Run(e.ctx, "virtlvm volume create vg_san/none "+options+" --host "+e.a.Name)
		require.NoError(e, err)
		require.NotZero(e, r.Exit)
		require.Contains(e, r.Stderr, want)
	}
	r, err := e.b.Run(e.ctx, "lvs vg_san/none")
	require.NoError(e, err)
	require.NotZero(e, r.Exit)

	e.define(cluster.Guest{Name: "taker", Disks: []cluster.Disk{{Source: v.Path()}, {Source: image.Path(), Format: "qcow2"}}}, e.b)
	e.start(e.b, "taker")
	e.alone(e.b, v)
	e.alone(e.b, image)
	e.destroy(e.b, "taker")
	e.released(v, image)
}

// attachLive: a disk is attached to a running guest and migrates with it.
func attachLive(e *env) {
	defer e.unmake("data")
	guest, v := e.running()
	data := e.make(e.b, "data", "--size", "16M")
	// B retains it; it is asked to let go. Asked there, it is done where the guest runs.
	e.Log(e.must(e.b, "virtlvm guest attach "+guest+" "+data.Full()+" --target vdb --live --config"))
	e.alone(e.a, data)
	require.NoError(e, e.held(guest, data))
	require.Contains(e, e.must(e.a, "virsh -q dumpxml --inactive "+guest), data.Path())
	require.NoError(e, e.a.WriteDisk(e.ctx, guest, 1, 0x3c, 1<<20, 4096))
	require.Zero(e, e.migrate(e.a, e.b, guest).Exit)
	e.alone(e.b, v)
	e.alone(e.b, data)
	require.NoError(e, e.b.CheckDisk(e.ctx, data, "raw", 0x3c, 1<<20, 4096))
	e.over(e.b, guest, v)
	e.released(data)

	// Once it is in the definition it comes with the guest, until it is taken out again.
	e.Log(e.must(e.b, "virtlvm guest detach "+guest+" "+data.Full()+" --host "+e.a.Name))
	require.NotContains(e, e.must(e.a, "virsh -q dumpxml --inactive "+guest), data.Path())

	// A plain attach-disk of a volume that is off is libvirt's to refuse; the status explains it.
	e.start(e.a, guest)
	r, err := e.a.Virsh(e.ctx, "attach-disk", guest, data.Path(), "vdb", "--live")
	require.NoError(e, err)
	require.NotZero(e, r.Exit)
	require.Contains(e, r.Stderr, "Cannot access storage file")
	require.NoError(e, cluster.Eventually(e.ctx, time.Minute, func() error {
		r, err := e.a.Run(e.ctx, "virtlvm status")
		if err == nil && !strings.Contains(r.Stdout, "'virtlvm guest attach GUEST "+data.Full()+"' does") {
			err = fmt.Errorf("the status explains nothing:\n%s", r.Output())
		}
		return err
	}))
	e.over(e.a, guest, v)
}

// growRunning: asked for on B, which does not hold it, a disk grows under its guest on A, and
// the guest writes beyond its old end.
func growRunning(e *env) {
	defer e.unmake("grow", "growq")
	raw := e.make(e.a, "grow", "--size", "16M")
	image := e.make(e.a, "growq", "--size", "16M", "--format", "qcow2")
	const guest = "grower"
	e.define(cluster.Guest{Name: guest, Disks: []cluster.Disk{{Source: raw.Path()}, {Source: image.Path(), Format: "qcow2"}}}, e.a)
	e.start(e.a, guest)
	for i, v := range []cluster.Volume{raw, image} {
		e.Log(e.must(e.b, "virtlvm volume resize "+v.Full()+" --size +16M"))
		target := []string{"vda", "vdb"}[i]
		require.Contains(e, e.must(e.a, "virsh -q domblkinfo "+guest+" "+target), "33554432")
		require.NoError(e, e.a.WriteDisk(e.ctx, guest, i, 0x47, 30<<20, 64<<10))
		require.NoError(e, e.a.CheckDisk(e.ctx, v, []string{"raw", "qcow2"}[i], 0x47, 30<<20, 64<<10))
		e.alone(e.a, v)
	}
	require.Equal(e, "33554432", e.size(raw))
	r, err := e.b.Run(e.ctx, "virtlvm volume resize "+raw.Full()+" --size 8M --shrink")
	require.NoError(e, err)
	require.NotZero(e, r.Exit)
	require.Contains(e, r.Stderr, "a disk is made smaller only while its guest is off")
	// Its content is frozen by a managed-save image.
	e.must(e.a, "virsh -q managedsave "+guest)
	e.released(raw, image)
	r, err = e.b.Run(e.ctx, "virtlvm volume resize "+raw.Full()+" --size +16M")
	require.NoError(e, err)
	require.NotZero(e, r.Exit)
	require.Contains(e, r.Stderr, "managed-save image")
	e.must(e.a, "virsh -q managedsave-remove "+guest)
	e.Log(e.must(e.b, "virtlvm volume resize "+raw.Full()+" --size 8M --shrink"))
	require.Equal(e, "8388608", e.size(raw))
}

// template: guests on both hosts run above one template, which is shared and not to be had
// away from under them.
func template(e *env) {
	defer e.unmake("kid1", "kid2", "tpl")
	tpl := e.make(e.a, "tpl", "--size", "16M", "--format", "qcow2")
	e.must(e.a, "virtlvm deactivate "+tpl.Full())
	e.must(e.b, "lvchange --addtag virtlvm.shared "+tpl.Full())
	kids := []cluster.Volume{e.make(e.a, "kid1", "--backing", tpl.Full()), e.make(e.b, "kid2", "--backing", tpl.Full(), "--size", "24M")}
	e.released(tpl)
	for i, h := range e.hosts {
		name := fmt.Sprintf("kid%d", i+1)
		e.define(cluster.Guest{Name: name, Disks: []cluster.Disk{{Source: kids[i].Path(), Format: "qcow2"}}}, h)
		e.start(h, name)
		e.holds(h, kids[i], cluster.ModeEX)
	}
	e.holds(e.a, tpl, cluster.ModeSH)
	e.holds(e.b, tpl, cluster.ModeSH)
	var shown api.Volume
	require.NoError(e, e.b.Ask(e.ctx, &shown, "volume", "show", tpl.Full()))
	require.Equal(e, []string{kids[0].Full(), kids[1].Full()}, shown.Children)
	for _, command := range []string{"virtlvm deactivate " + tpl.Full(), "lvremove -y " + tpl.Full(), "virtlvm volume resize " + tpl.Full() + " --size +16M"} {
		r, err := e.a.Run(e.ctx, command)
		require.NoError(e, err)
		require.NotZero(e, r.Exit, command)
		e.Log(r.Output())
	}
	e.destroy(e.a, "kid1")
	require.NoError(e, cluster.Eventually(e.ctx, time.Minute, func() error { return e.check(e.a, tpl, cluster.ModeOff) }))
	e.holds(e.b, tpl, cluster.ModeSH)
	// An operator's own hold on it stays while a child runs on the other host.
	e.must(e.a, "virtlvm activate --shared "+tpl.Full())
	r, err := e.a.Run(e.ctx, "virtlvm deactivate "+tpl.Full())
	require.NoError(e, err)
	require.NotZero(e, r.Exit)
	require.Contains(e, r.Stderr, "is the template below "+kids[1].Full())
	e.destroy(e.b, "kid2")
	e.released(kids...)
	e.must(e.a, "virtlvm deactivate "+tpl.Full())
	e.released(tpl)
}
