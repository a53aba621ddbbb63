package kinds

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"virtlvm/internal/activation"
	"virtlvm/internal/api"
	"virtlvm/internal/command"
	"virtlvm/internal/model"
)

// moving is what volume.move and guest.move have in common. A move is of one of three tiers.
//
// Full: the data goes to new volumes. Of a running guest libvirt copies the disks, follows
// the guest's writes, and at last lets the guest go on there (pivot): a job of libvirt's and
// QEMU's, which do not need us for it; only the pivot is asked for by Finish, once all the
// guest's disks that move have caught up. Where a disk is, is read in libvirt's status file
// of the guest. Where no guest runs, qemu-img in a job copies and compares, and the move is
// decided when the sources are tagged as superseded.
//
// Transfer: the lock moves. Lightweight: the guest's definition names the volume otherwise.
type moving struct{ Deps }

// movePlan is what Plan keeps.
type movePlan struct {
	Tier  string `json:"tier"`            // see api.TierFull
	Guest string `json:"guest,omitempty"` // that runs with all the disks
	UUID  string `json:"uuid,omitempty"`  // empty: none runs
	// Disks move, of UUID or of their own users. Of a transfer or a lightweight move there
	// is one.
	Disks     []moveDisk `json:"disks,omitempty"`
	ToHost    string     `json:"to_host,omitempty"`
	ToPool    string     `json:"to_pool,omitempty"`
	Bandwidth int64      `json:"bandwidth,omitempty"` // MiB/s
}

// moveDisk is one volume that moves.
type moveDisk struct {
	Volume   string         `json:"volume"` // "vg/lv"
	SourceID model.VolumeID `json:"source_id"`
	Dest     string         `json:"dest,omitempty"` // "vg/lv"
	Size     int64          `json:"size"`           // bytes of the source
	// Users are the guest that runs with it, or those that are defined here with it.
	Users []diskUser `json:"users,omitempty"`
	// Formats of the images: "raw", "qcow2".
	Format   string `json:"format"`
	ToFormat string `json:"to_format"`
	// Tags that the new volume gets.
	Tags []string `json:"tags,omitempty"`
}

type diskUser struct {
	Guest  string `json:"guest"`
	UUID   string `json:"uuid"`
	Target string `json:"target"` // "vda"
}

func (p movePlan) work(key string) activation.Work { return activation.Work{Key: key, Guest: p.UUID} }

func (p movePlan) running() bool { return p.UUID != "" }

// target of the disk in the guest that runs.
func (d moveDisk) target() string {
	if len(d.Users) == 0 {
		return ""
	}
	return d.Users[0].Target
}

// tagPivot + KEY is on the destination from before the pivot is asked for until the move is
// complete: without it the source is certainly the real one.
const tagPivot = "virtlvm.pivot="

// volumeMove is volume.move.
type volumeMove struct{ moving }

// Plan implements command.Kind.
func (k volumeMove) Plan(ctx context.Context, args json.RawMessage) (command.Plan, error) {
	var a api.MoveArgs
	if err := decode(args, &a); err != nil {
		return command.Plan{}, err
	}
	if err := checkBandwidth(a.Bandwidth); err != nil {
		return command.Plan{}, err
	}
	src, err := k.Engine.Lookup(ctx, a.Volume)
	if err != nil {
		return command.Plan{}, err
	}
	if err := movableVolume(src); err != nil {
		return command.Plan{}, err
	}
	p := movePlan{ToHost: a.ToHost, ToPool: a.ToPool, Bandwidth: a.Bandwidth, Tier: api.TierFull}
	toVG := a.ToVG
	if a.ToPool != "" {
		if toVG != "" {
			return command.Plan{}, badRequest("name a volume group or a storage pool to move to, not both")
		}
		if toVG, err = k.poolVG(a.ToPool); err != nil {
			return command.Plan{}, err
		}
	}
	switch {
	case toVG == "" && a.ToHost == "":
		return command.Plan{}, badRequest("say where %s shall go: another volume group, another host, or another storage pool", src.Name())
	case a.ToHost != "" && toVG != "" && toVG != src.VG:
		return command.Plan{}, badRequest("%s goes to volume group %s first, and then its lock to %s: ask for one after the other", src.Name(), toVG, a.ToHost)
	case a.ToPool != "" && toVG == src.VG:
		p.Tier = api.TierLightweight
	case a.ToHost != "":
		p.Tier = api.TierTransfer
	}
	if p.Tier != api.TierFull && (a.Name != "" || a.Format != "" || a.FromFormat != "") {
		return command.Plan{}, badRequest("%s stays the same volume in this move (tier %s): a name or a format says nothing", src.Name(), p.Tier)
	}
	switch p.Tier {
	case api.TierTransfer:
		return k.planTransfer(ctx, p, src)
	case api.TierLightweight:
		return k.planLightweight(p, src)
	}
	d := moveDisk{Volume: src.Name(), SourceID: src.ID, Size: src.Size, Format: a.FromFormat, ToFormat: a.Format}
	name := a.Name
	if name == "" {
		name = src.LV
	}
	if err := k.planFull(ctx, &p, &d, src, toVG, name); err != nil {
		return command.Plan{}, err
	}
	return k.full(ctx, p, toVG, nil)
}

// Investigate implements command.Kind. Where the executor has never said what it plans, a new
// volume has the tag of its command from its first moment on.
func (k volumeMove) Investigate(ctx context.Context, c command.Command) (command.Verdict, error) {
	if len(c.Plan) > 0 {
		return k.moving.Investigate(ctx, c)
	}
	var a api.MoveArgs
	if err := decode(c.Args, &a); err != nil {
		return command.Verdict{}, err
	}
	vg, lv, err := splitName(a.Volume)
	if err != nil {
		return command.Verdict{}, err
	}
	d := moveDisk{Volume: vg + "/" + lv}
	if a.ToVG == "" && a.ToPool == "" {
		return k.transferred(ctx, movePlan{Disks: []moveDisk{d}, ToHost: a.ToHost}, nil)
	}
	if a.ToVG == "" || a.ToVG == vg {
		return neverHeard(c, "the definitions of its guests"), nil
	}
	if a.Name != "" {
		lv = a.Name
	}
	d.Dest = a.ToVG + "/" + lv
	dst, err := k.dest(ctx, d)
	switch {
	case err != nil:
		return command.Verdict{}, err
	case !dst.HasTag(model.TagCommand + c.Key):
		return notDone("cannot move %s to %s: %s is gone, and has made nothing", d.Volume, d.Dest, c.Executor), nil
	case !dst.HasTag(model.TagIncomplete + c.Key):
		return done("%s has the content of %s", d.Dest, d.Volume), nil
	}
	return neverHeard(c, d.Volume+" and "+d.Dest), nil
}

// movableVolume is nil for a volume whose content is somebody's own and whole.
func movableVolume(v model.Volume) error {
	if key, ok := v.HasTagOf(model.TagIncomplete); ok {
		return inUse("the content of %s is not complete: command %s is at it, or has failed; see 'virtlvm commands'", v.Name(), key)
	}
	switch {
	case v.HasTag(model.TagSuperseded):
		return inUse("%s is tagged %s: its content has been moved elsewhere already, and is old", v.Name(), model.TagSuperseded)
	case v.HasTag(model.TagShared):
		return api.NewError(api.KindUnsupported, fmt.Sprintf("%s is tagged %s (a template or cluster disk), which many guests name; copy it with 'virtlvm volume copy'", v.Name(), model.TagShared))
	}
	return nil
}

// full makes the plan of a full move out of its disks; stays are told of as well.
func (k moving) full(ctx context.Context, p movePlan, toVG string, stays []api.PlannedVolume) (command.Plan, error) {
	_, free, err := k.Engine.ExtentSize(ctx, toVG)
	if err != nil {
		return command.Plan{}, err
	}
	var targets []command.Target
	volumes := stays
	need := int64(0)
	for _, d := range p.Disks {
		targets = append(targets, command.Target{Volume: d.SourceID, Name: d.Volume}, plannedTarget(d.Dest))
		volumes = append(volumes, api.PlannedVolume{
			Volume: d.Volume, Guest: p.Guest, Disk: d.target(), Tier: p.Tier, To: d.Dest, Bytes: d.Size, Reason: p.reason(d),
		})
		need += d.Size
	}
	if len(p.Disks) > 1 && need > free {
		return command.Plan{}, noRoom(toVG, need, free)
	}
	for _, u := range p.users() {
		targets = append(targets, guestTarget(u.UUID, u.Guest))
	}
	rec, err := record(p)
	return command.Plan{Targets: targets, Record: rec, Backend: true, Volumes: volumes}, err
}

// users are the guests of all disks, each once.
func (p movePlan) users() []diskUser {
	seen := map[string]bool{}
	var all []diskUser
	for _, d := range p.Disks {
		for _, u := range d.Users {
			if !seen[u.UUID] {
				all = append(all, u)
			}
			seen[u.UUID] = true
		}
	}
	return all
}

func (p movePlan) reason(d moveDisk) string {
	how := "no guest runs with it: qemu-img copies and compares"
	switch {
	case p.running():
		how = fmt.Sprintf("guest %s runs: libvirt copies, then the guest goes on there", p.Guest)
	case len(d.Users) == 0:
		how = "no guest that is defined here has it: qemu-img copies and compares"
	}
	if d.Format != d.ToFormat {
		how += fmt.Sprintf(", from %s to %s", d.Format, d.ToFormat)
	}
	return "another volume group; " + how
}

// Start implements command.Kind.
func (k moving) Start(ctx context.Context, c command.Command) error {
	var p movePlan
	if err := recall(c, &p); err != nil {
		return err
	}
	switch {
	case p.Tier == api.TierTransfer:
		return k.transferOf(ctx, c, p.Disks[0].Volume, p.ToHost)
	case p.Tier == api.TierLightweight:
		return nil // Finish does it all
	case p.running():
		return k.startRunning(ctx, c, p)
	}
	return k.startOff(ctx, c, p)
}

// Look implements command.Kind.
func (k moving) Look(ctx context.Context, c command.Command) (command.Sight, error) {
	var p movePlan
	if err := recall(c, &p); err != nil {
		return command.Sight{}, err
	}
	switch {
	case p.Tier != api.TierFull:
		return command.Sight{Where: command.Ended}, nil
	case p.running():
		return k.lookRunning(ctx, p), nil
	}
	return k.lookOff(ctx, c, p), nil
}

// Finish implements command.Kind.
func (k moving) Finish(ctx context.Context, c command.Command, s command.Sight) (command.Verdict, error) {
	var p movePlan
	if err := recall(c, &p); err != nil {
		return command.Verdict{}, err
	}
	switch {
	case p.Tier == api.TierTransfer:
		return k.transferred(ctx, p, s.Began)
	case p.Tier == api.TierLightweight:
		return k.rename(ctx, c, p)
	case p.running():
		return k.finishRunning(ctx, c, p, s)
	}
	return k.finishOff(ctx, c, p, s)
}

// Cancel implements command.Kind. A copy that is not there any more needs no end.
func (k moving) Cancel(ctx context.Context, c command.Command) error {
	var p movePlan
	if err := recall(c, &p); err != nil {
		return err
	}
	switch {
	case p.Tier != api.TierFull:
		return nil // it is a matter of seconds
	case p.running():
		return k.abort(ctx, p)
	}
	return k.Jobs.Stop(ctx, c.Key)
}

// Investigate implements command.Kind. The tags of the volumes and the leases tell, since
// they are the same on all hosts.
func (k moving) Investigate(ctx context.Context, c command.Command) (command.Verdict, error) {
	var p movePlan
	if err := recall(c, &p); err != nil {
		return command.Verdict{}, err
	}
	switch p.Tier {
	case api.TierTransfer:
		return k.transferred(ctx, p, nil)
	case api.TierLightweight:
		return notYet("the definition of the guest is on %s: see 'virsh dumpxml --inactive' there", c.Executor), nil
	}
	return eachDisk(p, func(d moveDisk) (command.Verdict, error) { return k.investigate(ctx, c, p, d) })
}

// eachDisk judges each disk and puts the verdicts together: done is what is done with all.
func eachDisk(p movePlan, judge func(moveDisk) (command.Verdict, error)) (command.Verdict, error) {
	all := command.Verdict{Outcome: command.Done}
	var texts []string
	for _, d := range p.Disks {
		v, err := judge(d)
		if err != nil || v.Outcome == command.NotYet {
			return v, err
		}
		if v.Outcome == command.NotDone {
			all.Outcome = command.NotDone
		}
		texts = append(texts, v.Reason)
	}
	all.Reason = strings.Join(texts, "; ")
	return all, nil
}

func vgOf(volume string) string {
	vg, _, _ := strings.Cut(volume, "/")
	return vg
}
