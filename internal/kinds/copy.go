package kinds

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"virtlvm/internal/activation"
	"virtlvm/internal/api"
	"virtlvm/internal/backend"
	"virtlvm/internal/command"
	"virtlvm/internal/domain"
	"virtlvm/internal/model"
)

// volumeCopy is volume.copy: qemu-img in a job copies and compares, both volumes held by
// the command. A destination that it has made goes again if it fails; one that was there
// keeps its tag.
type volumeCopy struct{ Deps }

// copyPlan is what Plan keeps.
type copyPlan struct {
	api.CopyArgs
	SourceID model.VolumeID `json:"source_id"`
	// Existed is the destination where it was there before.
	Existed model.VolumeID `json:"existed,omitzero"`
	Size    int64          `json:"size"` // of the source, bytes
	// Tags say what image will be on the destination.
	Tags []string `json:"tags,omitempty"`
}

func (p copyPlan) makes() bool { return p.Existed == model.VolumeID{} }

const formatRaw, formatQcow2 = "raw", "qcow2"

func checkFormat(format *string, otherwise string) error {
	switch *format {
	case "":
		*format = otherwise
	case formatRaw, formatQcow2:
	default:
		return badRequest("format %q is neither raw nor qcow2", *format)
	}
	return nil
}

// Plan implements command.Kind.
func (k volumeCopy) Plan(ctx context.Context, args json.RawMessage) (command.Plan, error) {
	var p copyPlan
	if err := decode(args, &p.CopyArgs); err != nil {
		return command.Plan{}, err
	}
	asIs := p.Format == "" && p.ToFormat == ""
	if err := checkFormat(&p.Format, formatRaw); err != nil {
		return command.Plan{}, err
	}
	if err := checkFormat(&p.ToFormat, p.Format); err != nil {
		return command.Plan{}, err
	}
	if err := checkBandwidth(p.Bandwidth); err != nil {
		return command.Plan{}, err
	}
	src, err := k.Engine.Lookup(ctx, p.Source)
	if err != nil {
		return command.Plan{}, err
	}
	p.Source, p.SourceID, p.Size = src.Name(), src.ID, src.Size
	if err := k.readable(ctx, src, p.Shared); err != nil {
		return command.Plan{}, err
	}
	dst, err := k.planDestination(ctx, &p, src, asIs)
	if err != nil {
		return command.Plan{}, err
	}
	p.Tags = p.tagsOf(src)
	rec, err := record(p)
	return command.Plan{Targets: []command.Target{volumeTarget(src, true), dst}, Record: rec, Backend: true}, err
}

// tagsOf say what is on the copy of a volume: copied as it is, what is on the volume; else an
// image that has nothing below it, or none.
func (p copyPlan) tagsOf(src model.Volume) []string {
	switch {
	case p.Format == formatRaw && p.ToFormat == formatRaw:
		return contentTags(src)
	case p.ToFormat == formatQcow2:
		return []string{model.TagFormat + formatQcow2}
	}
	return nil
}

// role of the source: exclusive, so that nobody writes it meanwhile, unless the operator
// says that others only read it.
func (k volumeCopy) role(p copyPlan) model.Role {
	if p.Shared {
		return model.RoleReadOnly
	}
	return model.RoleWritable
}

// readable is nil if the source can be copied now: no guest may write it.
func (k volumeCopy) readable(ctx context.Context, src model.Volume, shared bool) error {
	if key, ok := src.HasTagOf(model.TagIncomplete); ok {
		return inUse("the content of %s is not complete: command %s is at it, or has failed; see 'virtlvm commands'", src.Name(), key)
	}
	for _, h := range k.Engine.HoldsOf(src.ID) {
		if model.IsGuest(h.Owner) && (!shared || h.Role != model.RoleReadOnly && h.Role != model.RoleBacking) {
			return inUse("%s is used on this host (%s) by %s as a %s disk; stop that guest first, or copy a running guest's disk with 'virtlvm volume move'", src.Name(), k.Host, h.Subject(), h.Role)
		}
	}
	return k.Engine.Free(ctx, activation.Work{}, src, k.role(copyPlan{CopyArgs: api.CopyArgs{Shared: shared}}))
}

// planDestination checks the destination. asIs: nobody has said how the content is copied; it
// stays what the destination's guest expects.
func (k volumeCopy) planDestination(ctx context.Context, p *copyPlan, src model.Volume, asIs bool) (command.Target, error) {
	dst, err := k.Engine.Lookup(ctx, p.Destination)
	switch {
	case isNotFound(err):
		return k.planNew(ctx, p)
	case err != nil:
		return command.Target{}, err
	case dst.ID == src.ID:
		return command.Target{}, badRequest("%s cannot be copied onto itself", src.Name())
	case !p.Overwrite:
		return command.Target{}, inUse("%s exists already; name another destination, or say --overwrite to lose what is on it", dst.Name())
	case dst.HasTag(model.TagShared):
		return command.Target{}, api.NewError(api.KindUnsupported, fmt.Sprintf("%s is tagged %s (a template or cluster disk) and is not written over", dst.Name(), model.TagShared))
	}
	p.Destination, p.Existed = dst.Name(), dst.ID
	if asIs && src.Format() != dst.Format() {
		p.Format, p.ToFormat = cmp.Or(src.Format(), formatRaw), cmp.Or(dst.Format(), formatRaw)
	}
	if p.Format == formatRaw && p.ToFormat == formatRaw && dst.Size < src.Size {
		return command.Target{}, tooSmall(dst, src.Size)
	}
	if err := k.Engine.Free(ctx, activation.Work{}, dst, model.RoleWritable); err != nil {
		return command.Target{}, err
	}
	return volumeTarget(dst, false), k.overwritable(ctx, dst)
}

// overwritable is nil for a volume whose old content nobody counts on: no guest with a
// managed-save image, on any host, and no image above it.
func (k volumeCopy) overwritable(ctx context.Context, dst model.Volume) error {
	children, err := k.Engine.Children(ctx, dst)
	switch {
	case err != nil:
		return err
	case len(children) > 0:
		return inUse("%s is the template below %s and keeps its content", dst.Name(), children[0].Name())
	}
	return k.Engine.Unsaved(ctx, dst)
}

func tooSmall(dst model.Volume, need int64) error {
	return badRequest("%s is too small: it has %d bytes and needs %d; make it larger with 'lvextend -L %db %s'", dst.Name(), dst.Size, need, need, dst.Name())
}

// planNew checks a destination that is to be made. Its size is known where both are raw;
// for qcow2 it comes out of the image's header, which is read under the lock.
func (k volumeCopy) planNew(ctx context.Context, p *copyPlan) (command.Target, error) {
	vg, lv, err := splitName(p.Destination)
	if err != nil {
		return command.Target{}, err
	}
	p.Destination = vg + "/" + lv
	extent, free, err := k.Engine.ExtentSize(ctx, vg)
	if err != nil {
		return command.Target{}, err
	}
	if need := roundUp(p.Size, extent); p.Format == formatRaw && p.ToFormat == formatRaw && need > free {
		return command.Target{}, noRoom(vg, need, free)
	}
	return plannedTarget(p.Destination), nil
}

func noRoom(vg string, need, free int64) error {
	return badRequest("volume group %s has too little room: %d bytes are needed and %d are free", vg, need, free)
}

func roundUp(n, unit int64) int64 {
	if unit <= 0 {
		return n
	}
	return (n + unit - 1) / unit * unit
}

// Start implements command.Kind.
func (k volumeCopy) Start(ctx context.Context, c command.Command) error {
	var p copyPlan
	if err := recall(c, &p); err != nil {
		return err
	}
	w := activation.Work{Key: c.Key}
	src, err := k.Engine.Take(ctx, w, p.Source, k.role(p))
	if err != nil {
		return err
	}
	if src.ID != p.SourceID {
		return inUse("%s is another volume now than when it was asked for", p.Source)
	}
	virtual, need, err := k.sizes(ctx, p, src)
	if err != nil {
		return err
	}
	dst, err := k.destination(ctx, w, p, need)
	if err != nil {
		return err
	}
	return k.Jobs.Start(ctx, backend.Job{
		ID: c.Key, Description: fmt.Sprintf("virtlvm: copy %s to %s", p.Source, p.Destination),
		Steps: copySteps(p, virtual, dst.Size, hostDevice),
	})
}

// sizes are what a guest sees of the source, and the room that its copy needs.
func (k volumeCopy) sizes(ctx context.Context, p copyPlan, src model.Volume) (virtual, need int64, err error) {
	virtual = src.Size
	if p.Format == formatQcow2 {
		h, err := k.Images.Inspect(ctx, domain.Source{Path: device(p.Source), Format: p.Format})
		if err != nil {
			return 0, 0, api.NewError(api.KindBadRequest, oneLine(err.Error()))
		}
		if h.Backing != nil || h.Data != nil {
			return 0, 0, api.NewError(api.KindUnsupported, fmt.Sprintf("the image on %s has another image below it (%s); copied as raw (--format raw) it keeps it", p.Source, below(h)))
		}
		virtual = h.Size
	}
	need = virtual
	if p.ToFormat == formatQcow2 {
		if need, err = k.Images.Measure(ctx, p.ToFormat, virtual); err != nil {
			return 0, 0, err
		}
	}
	return virtual, need, nil
}

func below(h domain.Header) string {
	if h.Backing != nil {
		return h.Backing.String()
	}
	return h.Data.String()
}

// destination makes the destination or takes the one that is there, large enough, held,
// and tagged before anything is written.
func (k volumeCopy) destination(ctx context.Context, w activation.Work, p copyPlan, need int64) (model.Volume, error) {
	if p.makes() {
		vg, _, err := splitName(p.Destination)
		if err != nil {
			return model.Volume{}, err
		}
		extent, _, err := k.Engine.ExtentSize(ctx, vg)
		if err != nil {
			return model.Volume{}, err
		}
		return k.Engine.Create(ctx, w, p.Destination, roundUp(need, extent))
	}
	dst, err := k.Engine.Take(ctx, w, p.Destination, model.RoleWritable)
	switch {
	case err != nil:
		return dst, err
	case dst.ID != p.Existed:
		return dst, inUse("%s is another volume now than when it was asked for", p.Destination)
	case dst.Size < need:
		return dst, tooSmall(dst, need)
	}
	if err := k.overwritable(ctx, dst); err != nil { // nobody takes it any more
		return dst, err
	}
	// How far it was erased counts no more.
	var erased []string
	for _, tag := range dst.Tags {
		if strings.HasPrefix(tag, model.TagErased) {
			erased = append(erased, tag)
		}
	}
	return dst, k.Engine.Retag(ctx, w, dst, []string{model.TagIncomplete + w.Key}, erased)
}

// Look implements command.Kind.
func (k volumeCopy) Look(ctx context.Context, c command.Command) (command.Sight, error) {
	var p copyPlan
	if err := recall(c, &p); err != nil {
		return command.Sight{}, err
	}
	s, r := lookAtJob(ctx, k.Jobs, c.Key)
	if s.Where != command.Running {
		return s, nil
	}
	s.Progress.Total, s.Progress.Phase = p.Size, "copying"
	if r.Step == compareStep(p) {
		s.Progress.Phase = "comparing"
	}
	out, _, err := k.Jobs.Output(c.Key)
	if err != nil {
		return s, nil //nolint:nilerr // the work goes on, only its progress is not known
	}
	s.Progress.Done = p.Size / 1000 * lastStep(out)
	return s, nil
}

// Cancel implements command.Kind.
func (k volumeCopy) Cancel(ctx context.Context, c command.Command) error {
	return k.Jobs.Stop(ctx, c.Key)
}
