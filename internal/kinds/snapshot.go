package kinds

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"virtlvm/internal/activation"
	"virtlvm/internal/api"
	"virtlvm/internal/backend"
	"virtlvm/internal/command"
	"virtlvm/internal/domain"
	"virtlvm/internal/model"
)

// volumeSnapshot is volume.snapshot: a full copy of a volume as it is at one moment, to a new
// volume or a new file. Of a disk that a running guest writes libvirt makes it (a backup in
// push mode, driven by a job); of one that nobody uses qemu-img does, and it is compared.
type volumeSnapshot struct{ Deps }

// snapshotPlan is what Plan keeps.
type snapshotPlan struct {
	api.SnapshotArgs
	SourceID model.VolumeID `json:"source_id"`
	Size     int64          `json:"size"` // of the volume, bytes
	// Of a running guest; UUID is empty where there is none.
	Guest  string `json:"guest,omitempty"`
	UUID   string `json:"uuid,omitempty"`
	Target string `json:"target,omitempty"` // "vda"
	Agent  bool   `json:"agent,omitempty"`  // its agent is connected
	// Tags say what image will be on the snapshot.
	Tags []string `json:"tags,omitempty"`
}

func (p snapshotPlan) running() bool { return p.UUID != "" }
func (p snapshotPlan) toFile() bool  { return strings.HasPrefix(p.To, "/") }

// path of what is written until it is complete; a file has a name that is this command's alone.
func (p snapshotPlan) path(key string) string {
	if p.toFile() {
		return p.To + "." + key + ".part"
	}
	return device(p.To)
}

// copy is the plan of a copy with the same ends.
func (p snapshotPlan) copy() copyPlan {
	return copyPlan{
		CopyArgs: api.CopyArgs{Source: p.Volume, Destination: p.To, Format: p.Format, ToFormat: p.ToFormat, Bandwidth: p.Bandwidth},
		SourceID: p.SourceID, Size: p.Size,
	}
}

// Plan implements command.Kind.
func (k volumeSnapshot) Plan(ctx context.Context, args json.RawMessage) (command.Plan, error) {
	var p snapshotPlan
	if err := decode(args, &p.SnapshotArgs); err != nil {
		return command.Plan{}, err
	}
	if err := checkBandwidth(p.Bandwidth); err != nil {
		return command.Plan{}, err
	}
	src, err := k.Engine.Lookup(ctx, p.Volume)
	if err != nil {
		return command.Plan{}, err
	}
	p.Volume, p.SourceID, p.Size = src.Name(), src.ID, src.Size
	if err := k.planSource(ctx, &p, src); err != nil {
		return command.Plan{}, err
	}
	if err := checkFormat(&p.ToFormat, p.Format); err != nil {
		return command.Plan{}, err
	}
	if !p.running() || p.ToFormat == formatQcow2 {
		p.Tags = p.copy().tagsOf(src)
	}
	targets := []command.Target{volumeTarget(src, true)}
	if p.running() {
		targets = append(targets, guestTarget(p.UUID, p.Guest))
	}
	if p.toFile() {
		err = k.planFile(p.To)
	} else {
		var dst command.Target
		dst, err = k.planVolume(ctx, &p)
		targets = append(targets, dst)
	}
	if err != nil {
		return command.Plan{}, err
	}
	rec, err := record(p)
	return command.Plan{Targets: targets, Record: rec, Backend: true}, err
}

// planSource finds out who uses the volume: one running guest of this host, which writes it, or
// nobody.
func (k volumeSnapshot) planSource(ctx context.Context, p *snapshotPlan, src model.Volume) error {
	for _, h := range k.Engine.HoldsOf(src.ID) {
		if model.IsGuest(h.Owner) && h.Role == model.RoleWritable {
			return k.planGuest(p, src, h)
		}
	}
	format := src.Format()
	if format == "" {
		format = formatRaw
	}
	if err := checkFormat(&p.Format, format); err != nil {
		return err
	}
	return volumeCopy(k).readable(ctx, src, false)
}

func (k volumeSnapshot) planGuest(p *snapshotPlan, src model.Volume, h model.Hold) error {
	g, err := runningGuest(k.Guests, h.Guest, k.Host)
	if err != nil {
		return err
	}
	d, err := domain.ParseStatus(g.XML)
	if err != nil {
		return notKnown("cannot read the disks of guest %s: %v", g.Name, err)
	}
	for _, disk := range d.Disks {
		at, err := k.isAt(disk.Source, src.Name(), src.ID)
		if err != nil {
			return err
		}
		if !at {
			continue
		}
		format := disk.Source.Format
		if format == "" {
			format = formatRaw
		}
		switch {
		case disk.Source.Sliced, disk.Source.Data != nil, checkFormat(&format, formatRaw) != nil:
			return api.NewError(api.KindUnsupported, fmt.Sprintf("disk %s of guest %s (%s, format %s) is not the whole of one raw or qcow2 volume: no snapshot can be made of it", disk.Target, g.Name, src.Name(), format))
		case p.Format != "" && p.Format != format:
			return badRequest("disk %s of guest %s (%s) is %s, not %s", disk.Target, g.Name, src.Name(), format, p.Format)
		case p.Bandwidth > 0:
			return badRequest("libvirt's backup of a running guest's disk knows no bandwidth; leave it out, or stop guest %s", g.Name)
		}
		p.Guest, p.UUID, p.Target, p.Format, p.Agent = g.Name, g.UUID, disk.Target, format, hasAgent(g.XML)
		return nil
	}
	return api.NewError(api.KindUnsupported, fmt.Sprintf("%s is not itself a disk of guest %s, but an image below one; take a snapshot of the disk", src.Name(), g.Name))
}

func (k volumeSnapshot) planVolume(ctx context.Context, p *snapshotPlan) (command.Target, error) {
	vg, lv, err := splitName(p.To)
	if err != nil {
		return command.Target{}, err
	}
	p.To = vg + "/" + lv
	switch _, err := k.Engine.Lookup(ctx, p.To); {
	case err == nil:
		return command.Target{}, inUse("%s exists already; name another volume for the snapshot", p.To)
	case !isNotFound(err):
		return command.Target{}, err
	}
	extent, free, err := k.Engine.ExtentSize(ctx, vg)
	if err != nil {
		return command.Target{}, err
	}
	// The size of what is on a qcow2 volume is not known before it is read.
	if p.Format == formatRaw && p.ToFormat == formatRaw {
		if need := roundUp(p.Size, extent); need > free {
			return command.Target{}, noRoom(vg, need, free)
		}
		if err := p.fits(p.Size, extent); err != nil {
			return command.Target{}, err
		}
	}
	return plannedTarget(p.To), nil
}

// fits: QEMU backs a disk up to one of the same size alone.
func (p snapshotPlan) fits(virtual, extent int64) error {
	if p.running() && p.ToFormat == formatRaw && roundUp(virtual, extent) != virtual {
		return badRequest("the disk has %d bytes, which is no multiple of the extents there (%d bytes), and while guest %s runs a raw snapshot must be as large as the disk; say --to-format qcow2, or name a file", virtual, extent, p.Guest)
	}
	return nil
}

func (k volumeSnapshot) planFile(path string) error {
	dir := filepath.Dir(path)
	if path != filepath.Clean(path) || strings.HasPrefix(path, "/dev/") || strings.ContainsFunc(path, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return badRequest("%q is not the absolute path of a file; a volume is named VG/LV", path)
	}
	if k.Writable != nil {
		if err := k.Writable(dir); err != nil {
			return badRequest("cannot write to %s: %v", dir, err)
		}
	}
	info, err := os.Stat(dir)
	if err != nil || !info.IsDir() {
		return badRequest("there is no folder %s on %s", dir, k.Host)
	}
	switch _, err := os.Lstat(path); {
	case err == nil:
		return inUse("%s exists already on %s; name another file for the snapshot", path, k.Host)
	case !errors.Is(err, fs.ErrNotExist):
		return badRequest("cannot look at %s: %v", path, err)
	}
	return nil
}

// Start implements command.Kind.
func (k volumeSnapshot) Start(ctx context.Context, c command.Command) error {
	var p snapshotPlan
	if err := recall(c, &p); err != nil {
		return err
	}
	w := activation.Work{Key: c.Key}
	src := model.Volume{ID: p.SourceID, Size: p.Size}
	if !p.running() {
		var err error
		if src, err = k.Engine.Take(ctx, w, p.Volume, model.RoleWritable); err != nil {
			return err
		}
		if src.ID != p.SourceID {
			return inUse("%s is another volume now than when it was asked for", p.Volume)
		}
	}
	virtual, need, err := k.sizes(ctx, p, src)
	if err != nil {
		return err
	}
	room := virtual
	if !p.toFile() {
		vg, _, err := splitName(p.To)
		if err != nil {
			return err
		}
		extent, _, err := k.Engine.ExtentSize(ctx, vg)
		if err == nil {
			err = p.fits(virtual, extent)
		}
		if err != nil {
			return err
		}
		dst, err := k.Engine.Create(ctx, w, p.To, roundUp(need, extent))
		if err != nil {
			return err
		}
		room = dst.Size
	}
	return k.Jobs.Start(ctx, backend.Job{
		ID: c.Key, Description: fmt.Sprintf("virtlvm: snapshot of %s to %s", p.Volume, p.To), Steps: p.steps(c.Key, virtual, room),
	})
}

// sizes are what a guest sees of the volume, and the room that a snapshot needs. QEMU puts
// together what a running guest sees of an image with others below it.
func (k volumeSnapshot) sizes(ctx context.Context, p snapshotPlan, src model.Volume) (virtual, need int64, err error) {
	if !p.running() {
		return volumeCopy(k).sizes(ctx, p.copy(), src)
	}
	virtual = p.Size
	if p.Format == formatQcow2 {
		h, err := k.Images.Inspect(ctx, domain.Source{Path: device(p.Volume), Format: p.Format})
		if err != nil {
			return 0, 0, api.NewError(api.KindBadRequest, oneLine(err.Error()))
		}
		virtual = h.Size
	}
	need = virtual
	if p.ToFormat == formatQcow2 {
		need, err = k.Images.Measure(ctx, p.ToFormat, virtual)
	}
	return virtual, need, err
}

// steps of the job; room is the size of the volume that is written to.
func (p snapshotPlan) steps(key string, virtual, room int64) [][]string {
	to, size := p.path(key), strconv.FormatInt(virtual, 10)
	create := []string{"qemu-img", "create", "-q", "-f", p.ToFormat, to, size}
	switch {
	case !p.running() && !p.toFile():
		return copySteps(p.copy(), virtual, room, hostDevice)
	case !p.running():
		// To a file qemu-img flushes nothing unless it is told to.
		convert := []string{"qemu-img", "convert", "-p", "-t", "writeback", "-T", "none", "-f", p.Format, "-O", p.ToFormat}
		if p.Bandwidth > 0 {
			convert = append(convert, "-r", strconv.FormatInt(p.Bandwidth*mebibyte, 10))
		}
		return [][]string{
			append(convert, device(p.Volume), to),
			{"qemu-img", "compare", "-p", "-f", p.Format, "-F", p.ToFormat, device(p.Volume), to},
		}
	}
	steps := [][]string{backupStep(p.UUID, p.Target, to, p.ToFormat, p.Agent)}
	if p.toFile() || p.ToFormat == formatQcow2 {
		steps = append([][]string{create}, steps...)
	}
	if p.ToFormat == formatQcow2 {
		steps = append(steps, []string{"qemu-img", "check", "-q", "-f", formatQcow2, to})
	}
	return steps
}

// Look implements command.Kind.
func (k volumeSnapshot) Look(ctx context.Context, c command.Command) (command.Sight, error) {
	var p snapshotPlan
	if err := recall(c, &p); err != nil {
		return command.Sight{}, err
	}
	s, _ := lookAtJob(ctx, k.Jobs, c.Key)
	if s.Where != command.Running {
		return s, nil
	}
	s.Progress.Total, s.Progress.Phase = p.Size, "copying"
	if p.running() {
		if j, err := k.Virt.JobStats(ctx, p.UUID); err == nil && j.Active {
			s.Progress.Done, s.Progress.Total = j.Done, j.Total
		}
		return s, nil
	}
	if out, _, err := k.Jobs.Output(c.Key); err == nil {
		s.Progress.Done = p.Size / 1000 * lastStep(out)
	}
	return s, nil
}

// Cancel implements command.Kind.
func (k volumeSnapshot) Cancel(ctx context.Context, c command.Command) error {
	return k.Jobs.Stop(ctx, c.Key)
}
