package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"libvirt.org/go/libvirtxml"

	"virtlvm/internal/activation"
	"virtlvm/internal/api"
	"virtlvm/internal/backend"
	"virtlvm/internal/backend/backendtest"
	"virtlvm/internal/command"
	"virtlvm/internal/domain"
	"virtlvm/internal/guests"
	"virtlvm/internal/kinds"
	"virtlvm/internal/locks"
	"virtlvm/internal/model"
	"virtlvm/internal/run"
	"virtlvm/internal/store"
	"virtlvm/internal/virt"
	"virtlvm/test/fakevirt"
	"virtlvm/test/san"
)

// rig is a cluster whose hosts run long-running commands: programs and libvirt's jobs go on
// while a daemon is down.
type rig struct {
	t    *testing.T
	c    *Cluster
	a, b *Host
	jobs map[string]*backendtest.InProcess // by host
	kill *killer
	// step is called between the steps of a migration, see fakevirt.MigrateOptions.
	step func(fakevirt.Step) error
	// copies counts the block copies that were begun.
	copies int
	// deaf: libvirt answers no call of the daemon on host a.
	deaf atomic.Bool
	// duringBackup is called while libvirt makes a backup; ctx ends where it is aborted.
	duringBackup func(ctx context.Context) error
	// thawed counts the guests that the daemon has thawed.
	thawed int
	// clings: no running guest lets go of a disk.
	clings bool
	// zeroFirst is the volume group with zero_on_delete.
	zeroFirst string
	// asked counts the commands: each has a key of its own, the first ends in 7.
	asked int
}

// size of the volumes: small, to be copied fast.
const rigSize = 8 << 20

// newRig makes vg_san and vg_two, with vm1 defined on both hosts and its volume
// vg_san/vm1 full of a pattern. There may be more hosts.
func newRig(t *testing.T, more ...string) *rig {
	t.Helper()
	c := New(t, append([]string{"kvm-a", "kvm-b"}, more...)...)
	r := &rig{t: t, c: c, a: c.Hosts["kvm-a"], b: c.Hosts["kvm-b"], jobs: map[string]*backendtest.InProcess{}, kill: &killer{}}
	require.NoError(t, c.SAN.AddVG(san.VGSpec{Name: "vg_two"}))
	r.volume("vg_san", "vm1", rigSize)
	require.NoError(t, os.WriteFile(r.data("vg_san/vm1"), pattern(), 0o600))
	for _, h := range c.Hosts {
		_, err := h.Virt.Define(ctx, XML("vm1", UUID(1), Disk{Path: "vm1"}))
		require.NoError(t, err)
		r.jobs[h.Name] = &backendtest.InProcess{Run: r.program(h)}
	}
	t.Cleanup(func() {
		r.kill.revive()
		for _, j := range r.jobs {
			j.Wait()
		}
	})
	return r
}

func (r *rig) volume(vg, lv string, size int64) {
	r.t.Helper()
	_, err := r.c.SAN.AddLV(vg, san.LVSpec{Name: lv, Size: size})
	require.NoError(r.t, err)
}

// data is the file behind a volume.
func (r *rig) data(name string) string {
	r.t.Helper()
	vg, lv, _ := strings.Cut(name, "/")
	v, err := r.c.SAN.Volume(vg, lv)
	require.NoError(r.t, err)
	return v.Data
}

func (r *rig) content(name string) []byte {
	r.t.Helper()
	data, err := os.ReadFile(r.data(name))
	require.NoError(r.t, err)
	return data
}

func (r *rig) exists(name string) bool {
	vg, lv, _ := strings.Cut(name, "/")
	_, err := r.c.SAN.Volume(vg, lv)
	return err == nil
}

// tags of a volume as LVM on host b shows them.
func (r *rig) tags(name string) []string {
	r.t.Helper()
	out, err := r.b.Run("lvs", "--noheadings", "-o", "lv_tags", name)
	require.NoError(r.t, err, out)
	return strings.FieldsFunc(strings.TrimSpace(out), func(c rune) bool { return c == ',' })
}

func pattern() []byte {
	return bytes.Repeat([]byte("the content of vm1's disk; "), rigSize/27+1)[:rigSize]
}

// program stands in for programs in units.
func (r *rig) program(h *Host) func(context.Context, []string, io.Writer, io.Writer) int {
	return func(ctx context.Context, argv []string, stdout, stderr io.Writer) int {
		if argv[0] == "sh" {
			return r.script(ctx, h, argv[3], argv[4:], stdout, stderr)
		}
		if argv[0] != "virsh" {
			return h.LVM.Exec(ctx, argv, stdout, stderr)
		}
		// virsh -c qemu:///system migrate OPTIONS UUID qemu+ssh://HOST/system?...
		uri := argv[len(argv)-1]
		to, _, _ := strings.Cut(strings.TrimPrefix(uri, "qemu+ssh://"), "/")
		dst := r.c.Hosts[to]
		o := fakevirt.MigrateOptions{Persistent: slices.Contains(argv, "--persistent"), UndefineSource: slices.Contains(argv, "--undefinesource"), Offline: slices.Contains(argv, "--offline"), Step: r.step}
		err := fmt.Errorf("no host %q in %q", to, uri)
		if dst != nil {
			err = fakevirt.Migrate(ctx, h.Virt, dst.Virt, nameOf(h, argv[len(argv)-2]), o)
		}
		if err == nil {
			return 0
		}
		var e *fakevirt.Error
		text := "error: " + err.Error() + "\n"
		if errors.As(err, &e) {
			text = e.Virsh()
		}
		_, _ = io.WriteString(stderr, text)
		return 1
	}
}

func nameOf(h *Host, uuid string) string {
	all, err := h.Virt.List()
	if err != nil {
		return ""
	}
	for _, g := range all {
		if g.UUID == uuid {
			return g.Name
		}
	}
	return ""
}

// kind makes a kind as the daemon that runs now has it.
func (r *rig) kind(h *Host, name string) command.Kind {
	r.t.Helper()
	runner := h.LVM.Runner()
	return kinds.All(kinds.Deps{
		Engine: mortalEngine{h.Engine(), r.kill},
		Jobs:   mortalJobs{r.jobs[h.Name], r.kill},
		Virt:   mortalVirt{virtOf{h, r}, r.kill},
		Guests: guests.New(h.Virt.RunDir(), filepath.Join(h.dir, "proc")),
		Definitions: func() ([]*domain.Domain, error) {
			all, err := domain.ReadDefinitions(filepath.Join(h.dir, "etc/libvirt/qemu"))
			return all, errors.Join(err, domain.MarkSaved(all, h.savedDir()))
		},
		Resolver: &domain.Resolver{Root: h.dir},
		Images:   kinds.QemuImg{Inspector: &domain.Inspector{Runner: runner}, Runner: runner},
		Peers:    peers{h.Daemon()}, Locks: mortalLocks{h.Locks(), r.kill}, Host: h.Name,
		URI:       func(_ context.Context, host string) (string, error) { return "qemu+ssh://" + host + "/system", nil },
		ZeroFirst: func(vg string) bool { return vg == r.zeroFirst }, Now: h.now,
		Log: slog.New(slog.NewTextHandler(h.log, nil)),
	})[name]
}

// virtOf is libvirt's RPC on a fake libvirt.
type virtOf struct {
	h *Host
	r *rig
}

var errDeaf = api.NewError(api.KindUnknown, "libvirt has not answered in time")

func (v virtOf) call(uuid string, f func(name string) error) error {
	if v.r.deaf.Load() && v.h == v.r.a {
		return errDeaf
	}
	if err := f(nameOf(v.h, uuid)); err != nil {
		return api.NewError(api.KindInternal, err.Error())
	}
	return nil
}

func (v virtOf) JobStats(context.Context, string) (virt.Job, error) {
	return virt.Job{Active: true, Done: 1, Remaining: 2}, nil
}

func (v virtOf) BlockJob(context.Context, string, string) (virt.BlockJob, error) {
	return virt.BlockJob{Found: true, Copy: true, Done: 1, End: 3}, nil
}

func (v virtOf) BlockCopy(ctx context.Context, uuid, target, device, format string, _ int64) error {
	v.r.copies++
	return v.call(uuid, func(name string) error { return v.h.Virt.BlockCopy(ctx, name, target, device, format) })
}

func (v virtOf) Pivot(ctx context.Context, uuid, target string) error {
	return v.call(uuid, func(name string) error { return v.h.Virt.Pivot(ctx, name, target) })
}

func (v virtOf) AbortBlockJob(ctx context.Context, uuid, target string) error {
	return v.call(uuid, func(name string) error { return v.h.Virt.AbortCopy(ctx, name, target) })
}

func (v virtOf) Thaw(_ context.Context, uuid string) error {
	return v.call(uuid, func(string) error { v.r.thawed++; return nil })
}

func (v virtOf) BlockResize(ctx context.Context, uuid, target string, size int64) error {
	return v.call(uuid, func(name string) error { return v.h.Virt.BlockResize(ctx, name, target, size) })
}

func (v virtOf) AttachDisk(ctx context.Context, uuid string, d virt.Disk, where virt.Where) error {
	return v.call(uuid, func(name string) error {
		return v.h.Virt.Attach(ctx, name, fakevirt.Device{Path: d.Device, Target: d.Target, Format: d.Format, ReadOnly: d.ReadOnly}, where == virt.InDefinition)
	})
}

func (v virtOf) DetachDisk(ctx context.Context, uuid string, d virt.Disk, where virt.Where) error {
	if v.r.clings && where == virt.InGuest {
		return nil
	}
	return v.call(uuid, func(name string) error { return v.h.Virt.Detach(ctx, name, d.Target, where == virt.InDefinition) })
}

func (v virtOf) RedefineDisk(ctx context.Context, uuid, target string, from, to virt.DiskSource) error {
	refused := false
	err := v.call(uuid, func(name string) error {
		return v.h.Virt.Redefine(ctx, name, target, func(d *libvirtxml.DomainDisk) error {
			var at virt.DiskSource
			switch {
			case d.Source.Block != nil:
				at.Path = d.Source.Block.Dev
			case d.Source.Volume != nil:
				at.Pool, at.Volume = d.Source.Volume.Pool, d.Source.Volume.Volume
			}
			if refused = at != from; refused {
				return fmt.Errorf("it has disk %s at %q, not at %q", target, at, from)
			}
			d.Source = &libvirtxml.DomainDiskSource{Block: &libvirtxml.DomainDiskSourceBlock{Dev: to.Path}}
			if to.Pool != "" {
				d.Source = &libvirtxml.DomainDiskSource{Volume: &libvirtxml.DomainDiskSourceVolume{Pool: to.Pool, Volume: to.Volume}}
			}
			if to.Format != "" && d.Driver != nil {
				d.Driver.Type = to.Format
			}
			return nil
		})
	})
	if refused {
		return api.NewError(api.KindInUse, err.Error())
	}
	return err
}

// errKilled is the end of a daemon, as a panic through the kind that it runs.
var errKilled = errors.New("the daemon was killed")

// killer ends the daemon at one place: before or after a call that a kind makes, or a
// command that the engine runs.
type killer struct {
	mu    sync.Mutex
	at    int    // the place; 0: none
	name  string // or the first call of that name
	after bool
	n     int
	dead  bool
	hit   string // what it hit
}

func (k *killer) step(what string, after bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if after == k.after && k.hit == "" {
		if k.n++; k.n == k.at || what == k.name {
			k.dead, k.hit = true, what
		}
	}
	if k.dead {
		panic(errKilled)
	}
}

// arm sets the place where the daemon dies: the nth, or the first call of a name.
func (k *killer) arm(at int, name string, after bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.at, k.name, k.after, k.n = at, name, after, 0
}

func (k *killer) isDead() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.dead
}

func (k *killer) revive() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.dead = false
}

func guarded[T any](k *killer, what string, f func() (T, error)) (T, error) {
	k.step(what, false)
	v, err := f()
	k.step(what, true)
	return v, err
}

func guardedErr(k *killer, what string, f func() error) error {
	_, err := guarded(k, what, func() (struct{}, error) { return struct{}{}, f() })
	return err
}

// runner and journal make killer a mortal: a dead daemon runs and writes nothing.
func (k *killer) runner(r run.Runner) run.Runner { return mortalRunner{r, k} }

func (k *killer) journal(j activation.Journal) activation.Journal { return mortalJournal{j, k} }

type mortalRunner struct {
	run.Runner
	k *killer
}

func (m mortalRunner) Run(ctx context.Context, cmd run.Cmd) (res run.Result, err error) {
	if m.k.isDead() {
		return run.Result{ExitCode: -1}, errKilled
	}
	changes := cmd.Name == "lvcreate" || cmd.Name == "lvremove" || cmd.Name == "lvchange" || cmd.Name == "lvextend" || cmd.Name == "lvreduce"
	if !changes {
		return m.Runner.Run(ctx, cmd)
	}
	defer func() {
		if p := recover(); p != nil {
			res, err = run.Result{ExitCode: -1}, errKilled
		}
	}()
	return guarded(m.k, strings.Join(cmd.Argv(), " "), func() (run.Result, error) { return m.Runner.Run(ctx, cmd) })
}

type mortalJournal struct {
	activation.Journal
	k *killer
}

func (m mortalJournal) Begin(ctx context.Context, in store.Intent, change store.HoldChange) (int64, error) {
	if m.k.isDead() {
		return 0, errKilled
	}
	return m.Journal.Begin(ctx, in, change)
}

func (m mortalJournal) Finish(ctx context.Context, id int64, r store.Result, change store.HoldChange, queries ...store.Query) error {
	if m.k.isDead() {
		return errKilled
	}
	return m.Journal.Finish(ctx, id, r, change, queries...)
}

func (m mortalJournal) ChangeHolds(ctx context.Context, change store.HoldChange) error {
	if m.k.isDead() {
		return errKilled
	}
	return m.Journal.ChangeHolds(ctx, change)
}

func (m mortalJournal) ReplaceHolds(ctx context.Context, all []model.Hold) error {
	if m.k.isDead() {
		return errKilled
	}
	return m.Journal.ReplaceHolds(ctx, all)
}

type mortalEngine struct {
	*activation.Manager
	k *killer
}

func (m mortalEngine) Take(ctx context.Context, w activation.Work, name string, role model.Role) (model.Volume, error) {
	return guarded(m.k, "Take "+name, func() (model.Volume, error) { return m.Manager.Take(ctx, w, name, role) })
}

func (m mortalEngine) GiveBack(ctx context.Context, key string) error {
	return guardedErr(m.k, "GiveBack", func() error { return m.Manager.GiveBack(ctx, key) })
}

func (m mortalEngine) Create(ctx context.Context, w activation.Work, name string, size int64, tags ...string) (model.Volume, error) {
	return guarded(m.k, "Create", func() (model.Volume, error) { return m.Manager.Create(ctx, w, name, size, tags...) })
}

func (m mortalEngine) LeaveHere(ctx context.Context, w activation.Work, v model.Volume) {
	_ = guardedErr(m.k, "LeaveHere", func() error { m.Manager.LeaveHere(ctx, w, v); return nil })
}

func (m mortalEngine) Retag(ctx context.Context, w activation.Work, v model.Volume, add, del []string) error {
	return guardedErr(m.k, fmt.Sprint("Retag ", v.Name(), add, del), func() error { return m.Manager.Retag(ctx, w, v, add, del) })
}

func (m mortalEngine) RemoveMade(ctx context.Context, w activation.Work, name string) error {
	return guardedErr(m.k, "RemoveMade", func() error { return m.Manager.RemoveMade(ctx, w, name) })
}

func (m mortalEngine) Resize(ctx context.Context, w activation.Work, v model.Volume, size int64) error {
	return guardedErr(m.k, "Resize", func() error { return m.Manager.Resize(ctx, w, v, size) })
}

func (m mortalEngine) Settle(ctx context.Context, uuid string) error {
	return guardedErr(m.k, "Settle", func() error { return m.Manager.Settle(ctx, uuid) })
}

type mortalLocks struct {
	*locks.Locks
	k *killer
}

func (m mortalLocks) Transfer(ctx context.Context, req api.TransferRequest, by string) (api.TransferResult, error) {
	return guarded(m.k, "transfer", func() (api.TransferResult, error) { return m.Locks.Transfer(ctx, req, by) })
}

func (m mortalEngine) Remove(ctx context.Context, w activation.Work, v model.Volume) error {
	return guardedErr(m.k, "Remove", func() error { return m.Manager.Remove(ctx, w, v) })
}

type mortalJobs struct {
	*backendtest.InProcess
	k *killer
}

func (m mortalJobs) Start(ctx context.Context, job backend.Job) error {
	return guardedErr(m.k, "start job", func() error { return m.InProcess.Start(ctx, job) })
}

func (m mortalJobs) Revoke(id string) (bool, error) {
	return guarded(m.k, "revoke job", func() (bool, error) { return m.InProcess.Revoke(id) })
}

func (m mortalJobs) Stop(ctx context.Context, id string) error {
	return guardedErr(m.k, "stop job", func() error { return m.InProcess.Stop(ctx, id) })
}

type mortalVirt struct {
	virtOf
	k *killer
}

func (m mortalVirt) BlockCopy(ctx context.Context, uuid, target, device, format string, n int64) error {
	return guardedErr(m.k, "block copy", func() error { return m.virtOf.BlockCopy(ctx, uuid, target, device, format, n) })
}

func (m mortalVirt) BlockResize(ctx context.Context, uuid, target string, size int64) error {
	return guardedErr(m.k, "block resize", func() error { return m.virtOf.BlockResize(ctx, uuid, target, size) })
}

func (m mortalVirt) AttachDisk(ctx context.Context, uuid string, d virt.Disk, where virt.Where) error {
	return guardedErr(m.k, "attach "+string(where), func() error { return m.virtOf.AttachDisk(ctx, uuid, d, where) })
}

func (m mortalVirt) DetachDisk(ctx context.Context, uuid string, d virt.Disk, where virt.Where) error {
	return guardedErr(m.k, "detach "+string(where), func() error { return m.virtOf.DetachDisk(ctx, uuid, d, where) })
}

func (m mortalVirt) Pivot(ctx context.Context, uuid, target string) error {
	return guardedErr(m.k, "pivot", func() error { return m.virtOf.Pivot(ctx, uuid, target) })
}

func (m mortalVirt) RedefineDisk(ctx context.Context, uuid, target string, from, to virt.DiskSource) error {
	return guardedErr(m.k, "redefine disk", func() error { return m.virtOf.RedefineDisk(ctx, uuid, target, from, to) })
}

func (m mortalVirt) AbortBlockJob(ctx context.Context, uuid, target string) error {
	return guardedErr(m.k, "abort block job", func() error { return m.virtOf.AbortBlockJob(ctx, uuid, target) })
}

// mortal lets the daemon of host a die where the killer is armed.
func (r *rig) mortal() {
	r.a.StopDaemon()
	r.a.mortal = r.kill
	r.a.StartDaemon()
}

// boot brings host a back after a power cut, in both volume groups.
func (r *rig) boot() {
	r.t.Helper()
	r.a.Boot()
	require.NoError(r.t, r.a.LVM.LockStart("vg_two"))
}

// work is one command on its way, as the framework takes it: the state is written before a
// method is called, so that after a crash the next one is called.
type work struct {
	r     *rig
	h     *Host
	kind  string
	c     command.Command
	begun bool
	// tick is called each time that nothing is decided yet.
	tick func(command.Sight)
	// restart is what happens to the host when its daemon has died; nil: it is started.
	restart func()
}

// ask plans a command on a host.
func (r *rig) ask(h *Host, kind string, args any) (*work, error) {
	r.t.Helper()
	doc, err := json.Marshal(args)
	require.NoError(r.t, err)
	p, err := r.kind(h, kind).Plan(ctx, doc)
	if err != nil {
		return nil, err
	}
	r.asked++
	return &work{r: r, h: h, kind: kind, c: command.Command{
		Key: fmt.Sprint(h.Name, "-", 6+r.asked), ID: 7, Kind: kind, Args: doc, Plan: p.Record, Targets: p.Targets, Origin: h.Name, Executor: h.Name,
		State: model.StateBackend,
	}}, nil
}

func (r *rig) mustAsk(h *Host, kind string, args any) *work {
	r.t.Helper()
	w, err := r.ask(h, kind, args)
	require.NoError(r.t, err)
	return w
}

// end takes the command to its end.
func (w *work) end() command.Verdict {
	w.r.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		v, s := w.once()
		if v.Outcome == command.Done || v.Outcome == command.NotDone {
			w.r.kill.arm(0, "", false) // what is looked at afterwards is not the command's
			if w.r.kill.isDead() {
				w.die()
				continue
			}
			return v
		}
		require.True(w.r.t, time.Now().Before(deadline), "no end: %+v, %+v", s, v)
		if w.tick != nil {
			w.tick(s)
		}
		time.Sleep(time.Millisecond)
	}
}

// tries calls what the framework would for so many times.
func (w *work) tries(n int) (v command.Verdict) {
	for range n {
		var s command.Sight
		if v, s = w.once(); w.tick != nil {
			w.tick(s)
		}
	}
	return v
}

// once calls what the framework would call next. An error of a method is a verdict that
// nothing is decided yet.
func (w *work) once() (v command.Verdict, s command.Sight) {
	defer func() {
		if p := recover(); p != nil {
			if p != any(errKilled) {
				panic(p)
			}
			v = command.Verdict{Outcome: command.NotYet, Reason: "killed"}
			w.die()
		}
	}()
	k := w.r.kind(w.h, w.kind)
	var began error
	if !w.begun {
		w.begun = true
		began = k.Start(ctx, w.c)
	}
	s, err := k.Look(ctx, w.c)
	if err == nil && (s.Where == command.Ended || s.Where == command.Gone) {
		s.Began = began
		v, err = k.Finish(ctx, w.c, s)
	}
	if tender, ok := k.(command.Tender); ok && err == nil && s.Where == command.Running {
		err = tender.Tend(ctx, w.c, s)
	}
	if err != nil {
		v = command.Verdict{Outcome: command.NotYet, Reason: err.Error()}
	}
	return v, s
}

func (w *work) die() {
	w.h.StopDaemon()
	w.r.kill.revive()
	if w.restart != nil {
		w.restart()
		return
	}
	w.h.StartDaemon()
}

// cancel asks it to end.
func (w *work) cancel(why string) {
	w.r.t.Helper()
	w.c.Cancelled = why
	defer func() {
		if p := recover(); p != nil && p != any(errKilled) {
			panic(p)
		} else if p != nil {
			w.die()
		}
	}()
	_ = w.r.kind(w.h, w.kind).Cancel(ctx, w.c)
}

// eachCrash runs a story once for each place where the daemon of host a can die, before and
// after, until there is no such place. Nobody dies in what is done before. Under the race
// detector it takes every sixteenth; make test runs them all without.
func eachCrash(t *testing.T, before func(*rig), story func(*testing.T, *rig)) {
	t.Helper()
	step := 1
	if raceOn {
		step = 16
	}
	for _, after := range []bool{false, true} {
		for at := 1; ; at += step {
			hit := ""
			t.Run(fmt.Sprintf("%d after=%v", at, after), func(t *testing.T) {
				r := newRig(t)
				r.mortal()
				before(r)
				r.kill.arm(at, "", after)
				story(t, r)
				hit = r.kill.hit
				if t.Failed() {
					t.Logf("killed at: %s", hit)
				}
			})
			if t.Failed() {
				return
			}
			if hit == "" {
				require.Greater(t, at, 2, "nothing was killed")
				t.Logf("fewer than %d places, after=%v", at, after)
				break
			}
		}
	}
}

// released: no command holds anything on a host.
func (r *rig) released(h *Host) {
	r.t.Helper()
	require.Empty(r.t, h.Engine().HoldsBy(model.CommandOwner(h.Name+"-7", "")))
	require.Empty(r.t, h.Engine().HoldsBy(model.CommandOwner(h.Name+"-7", UUID(1))))
}

// locks and device of a volume on a host, as LVM has them.
func (r *rig) state(h *Host, name string) string {
	r.t.Helper()
	v, err := h.Engine().Lookup(ctx, name)
	require.NoError(r.t, err)
	a, err := h.Engine().StateOf(ctx, v)
	require.NoError(r.t, err)
	return a.String()
}
