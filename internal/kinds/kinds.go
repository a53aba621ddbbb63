// Package kinds has the kinds of commands that go on by themselves: a guest migrates, a
// volume is made or copied, a disk of a running guest moves to another volume group. Their work goes on
// outside of the daemon - virsh and qemu-img in units, a copy in libvirt itself - and what
// became of it is judged by what is there: where the guest runs, which volume its disk is
// on, an exit record, tags. Nothing that a process remembers is needed.
//
// No volume that was there before is ever removed. One that a command has made and not
// completed is, if nobody else can have it (activation.Manager.RemoveMade); else it stays,
// tagged, and the command's reason names it.
package kinds

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"virtlvm/internal/activation"
	"virtlvm/internal/api"
	"virtlvm/internal/backend"
	"virtlvm/internal/command"
	"virtlvm/internal/domain"
	"virtlvm/internal/guests"
	"virtlvm/internal/model"
	"virtlvm/internal/virt"
)

// Engine is what the kinds need of the activation engine.
type Engine interface {
	Lookup(ctx context.Context, name string) (model.Volume, error)
	HoldsOf(id model.VolumeID) []model.Hold
	HoldsBy(owner string) []model.Hold
	StateOf(ctx context.Context, v model.Volume) (model.Actual, error)
	Free(ctx context.Context, w activation.Work, v model.Volume, role model.Role) error
	Take(ctx context.Context, w activation.Work, name string, role model.Role) (model.Volume, error)
	GiveBack(ctx context.Context, key string) error
	ExtentSize(ctx context.Context, vg string) (extent, free int64, err error)
	Create(ctx context.Context, w activation.Work, name string, size int64, tags ...string) (model.Volume, error)
	Resize(ctx context.Context, w activation.Work, v model.Volume, size int64) error
	Children(ctx context.Context, v model.Volume) ([]model.Volume, error)
	Unsaved(ctx context.Context, v model.Volume) error
	LeaveHere(ctx context.Context, w activation.Work, v model.Volume)
	Retag(ctx context.Context, w activation.Work, v model.Volume, add, del []string) error
	RemoveMade(ctx context.Context, w activation.Work, name string) error
	Expendable(ctx context.Context, v model.Volume, removed bool) error
	Remove(ctx context.Context, w activation.Work, v model.Volume) error
	Settle(ctx context.Context, uuid string) error
	LiveHosts(ctx context.Context, vgs ...string) ([]string, error)
	Off(ctx context.Context, host string) bool
}

// Jobs runs programs outside of the daemon.
type Jobs interface {
	Start(context.Context, backend.Job) error
	Look(ctx context.Context, id string) (backend.Report, error)
	Output(id string) (stdout, stderr string, err error)
	Revoke(id string) (begun bool, err error)
	Stop(ctx context.Context, id string) error
}

// Virt is libvirt by RPC. It may be slow, and down.
type Virt interface {
	JobStats(ctx context.Context, uuid string) (virt.Job, error)
	BlockJob(ctx context.Context, uuid, target string) (virt.BlockJob, error)
	BlockCopy(ctx context.Context, uuid, target, device, format string, bandwidth int64) error
	Pivot(ctx context.Context, uuid, target string) error
	AbortBlockJob(ctx context.Context, uuid, target string) error
	Thaw(ctx context.Context, uuid string) error
	BlockResize(ctx context.Context, uuid, target string, size int64) error
	AttachDisk(ctx context.Context, uuid string, disk virt.Disk, where virt.Where) error
	DetachDisk(ctx context.Context, uuid string, disk virt.Disk, where virt.Where) error
	RedefineDisk(ctx context.Context, uuid, target string, from, to virt.DiskSource) error
}

// Guests observes what runs here, without libvirt.
type Guests interface {
	Observe() (guests.Snapshot, error)
}

// Peers reaches the daemons of other hosts.
type Peers interface {
	Call(ctx context.Context, host, path string, in, out any) error
}

// Images looks at disk images and makes them, for a moment.
type Images interface {
	// Inspect reads the header of an image.
	Inspect(context.Context, domain.Source) (domain.Header, error)
	// Format makes an empty image on a device.
	Format(ctx context.Context, device, format string, size int64) error
	// Overlay makes an empty qcow2 image on a device, above another image.
	Overlay(ctx context.Context, device string, size int64, backing, format string) error
	// Resize changes the size of what a guest sees of an image.
	Resize(ctx context.Context, device, format string, size int64, smaller bool) error
	// Measure is the room that an image of a format and a virtual size may take at most.
	Measure(ctx context.Context, format string, size int64) (int64, error)
}

// Deps are everything the kinds are given.
type Deps struct {
	Engine      Engine
	Jobs        Jobs
	Virt        Virt
	Guests      Guests
	Definitions func() ([]*domain.Domain, error)
	Resolver    *domain.Resolver
	Images      Images
	Peers       Peers
	Locks       Locks
	Host        string
	// URI is libvirt's address of another host.
	URI func(ctx context.Context, host string) (string, error)
	// ZeroFirst reports whether volumes of a volume group are zeroed before they are removed.
	ZeroFirst func(vg string) bool
	Now       func() time.Time
	// Writable is nil if the daemon can write to a folder, or says why not; nil: to all.
	Writable func(dir string) error
	Log      *slog.Logger
}

// All is every kind by its name.
func All(d Deps) map[string]command.Kind {
	marks := newMarks()
	return map[string]command.Kind{
		api.KindGuestMigrate:   migrate{d},
		api.KindVolumeCopy:     volumeCopy{d},
		api.KindVolumeMove:     volumeMove{moving{d}},
		api.KindGuestMove:      guestMove{moving{d}},
		api.KindVolumeErase:    volumeErase{d, false, marks},
		api.KindVolumeDelete:   volumeErase{d, true, marks},
		api.KindVolumeCreate:   volumeCreate{d},
		api.KindVolumeResize:   volumeResize{d},
		api.KindGuestAttach:    guestAttach{d},
		api.KindGuestDetach:    guestDetach{d},
		api.KindVolumeSnapshot: volumeSnapshot{d},
	}
}

// decode reads the arguments of a request strictly.
func decode(args json.RawMessage, into any) error {
	dec := json.NewDecoder(bytes.NewReader(args))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return badRequest("cannot read the arguments: %v", err)
	}
	return nil
}

// recall reads what Plan has found out.
func recall(c command.Command, into any) error {
	if err := json.Unmarshal(c.Plan, into); err != nil {
		return api.NewError(api.KindInternal, fmt.Sprintf("cannot read the plan of command %s: %v", c.Key, err))
	}
	return nil
}

// recallOr is recall for an origin: where the executor was never heard of there is no plan. It
// may have accepted the request all the same, and then only what was asked for is known.
func recallOr(c command.Command, plan, args any) error {
	if len(c.Plan) == 0 {
		return decode(c.Args, args)
	}
	return recall(c, plan)
}

func record(plan any) (json.RawMessage, error) {
	doc, err := json.Marshal(plan)
	if err != nil {
		return nil, api.NewError(api.KindInternal, err.Error())
	}
	return doc, nil
}

func badRequest(format string, args ...any) error {
	return api.NewError(api.KindBadRequest, fmt.Sprintf(format, args...))
}

func inUse(format string, args ...any) error {
	return api.NewError(api.KindInUse, fmt.Sprintf(format, args...))
}

// notKnown is the error of a method that must be called again.
func notKnown(format string, args ...any) error {
	return api.NewError(api.KindUnknown, fmt.Sprintf(format, args...))
}

func done(format string, args ...any) command.Verdict {
	return command.Verdict{Outcome: command.Done, Reason: fmt.Sprintf(format, args...)}
}

func notDone(format string, args ...any) command.Verdict {
	return command.Verdict{Outcome: command.NotDone, Reason: oneLine(fmt.Sprintf(format, args...))}
}

func notYet(format string, args ...any) command.Verdict {
	return command.Verdict{Outcome: command.NotYet, Reason: oneLine(fmt.Sprintf(format, args...))}
}

// neverHeard is the verdict on a command whose executor is gone and may have accepted it, and
// of which nothing is seen from elsewhere.
func neverHeard(c command.Command, about string) command.Verdict {
	return notYet("%s never said whether it accepted this, and what it has done cannot be told from here: look at %s, and tell with 'virtlvm command resolve'", c.Executor, about)
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// guestTarget is a guest as a target of a command.
func guestTarget(uuid, name string) command.Target {
	return command.Target{Volume: model.VolumeID{LV: uuid}, Name: name}
}

func volumeTarget(v model.Volume, shared bool) command.Target {
	return command.Target{Volume: v.ID, Name: v.Name(), Shared: shared}
}

// plannedTarget is a volume that is still to be made: names stand for its uuids.
func plannedTarget(name string) command.Target {
	vg, lv, _ := strings.Cut(name, "/")
	return command.Target{Volume: model.VolumeID{VG: vg, LV: "name " + lv}, Name: name}
}

// mebibyte is the unit of --bandwidth.
const mebibyte = 1 << 20

func checkBandwidth(n int64) error {
	if n < 0 || n > 1<<30 {
		return badRequest("a bandwidth of %d MiB/s makes no sense", n)
	}
	return nil
}

// leftover says why a volume that was half made is still there: nobody else's use of it
// ends by trying again. Another error is tried again.
func leftover(volume string, err error) (note string, again error) {
	if err == nil {
		return "", nil
	}
	switch api.KindOf(err) {
	case api.KindInUse, api.KindHeld:
		return fmt.Sprintf("; %s is left half made: %v; remove it with 'lvremove %s' when nothing needs it", volume, err, volume), nil
	case api.KindOutOfScope:
		return fmt.Sprintf("; %s is left half made: %v", volume, err), nil
	}
	return "", err
}

// giveBack ends what a command holds. What is open still is noted: the engine goes on by
// itself until it is off.
func giveBack(ctx context.Context, e Engine, key string) (note string, again error) {
	err := e.GiveBack(ctx, key)
	if api.KindOf(err) == api.KindInUse {
		return "; " + err.Error(), nil
	}
	return "", err
}

// isNotFound: there is no such volume or guest. One whose volume group is not to be seen is not gone.
func isNotFound(err error) bool { return activation.IsGone(err) }

// volumeOf is the volume of a hold, as far as the hold knows it.
func volumeOf(h model.Hold) model.Volume {
	vg, lv, _ := strings.Cut(h.Name, "/")
	return model.Volume{ID: h.Volume, VG: vg, LV: lv, LockLV: h.LockLV}
}

// device is a volume's path.
func device(name string) string { return "/dev/" + name }
