package virt

import (
	"context"
	"encoding/xml"
	"fmt"
	"strings"

	"github.com/digitalocean/go-libvirt"

	"virtlvm/internal/api"
)

// BlockJob is a block job on one disk of a guest.
type BlockJob struct {
	Found, Copy bool  // there is one, and it copies the disk
	Done, End   int64 // bytes; equal once a copy has caught up with the guest, and at its very beginning
}

// BlockJob tells how far the block job on a disk has come; target is the disk's name in
// the guest, such as "vda".
func (v *Virt) BlockJob(ctx context.Context, uuid, target string) (BlockJob, error) {
	return ask(ctx, v, "ask how far the copy of disk "+target+" has come", uuid, readSockets, func(l *libvirt.Libvirt, dom libvirt.Domain) (BlockJob, error) {
		found, kind, _, cur, end, err := l.DomainGetBlockJobInfo(dom, target, 0)
		return BlockJob{
			Found: found != 0, Copy: libvirt.DomainBlockJobType(kind) == libvirt.DomainBlockJobTypeCopy,
			Done: int64(cur), End: int64(end), //nolint:gosec // bytes of a disk fit
		}, err
	})
}

// BlockCopy begins to copy a disk of a running guest to a block device, which has room for
// it; a qcow2 image must have been made there. It returns once the copy is under way. The
// copy catches up with the guest and then follows it, until Pivot or AbortBlockJob. Transient:
// it is not taken up again if the guest ends.
func (v *Virt) BlockCopy(ctx context.Context, uuid, target, device, format string, bandwidth int64) error {
	doc := fmt.Sprintf("<disk type='block' device='disk'><driver name='qemu' type='%s'/><source dev='%s'/></disk>", escape(format), escape(device))
	var params []libvirt.TypedParam
	if bandwidth > 0 {
		params = append(params, libvirt.TypedParam{Field: libvirt.DomainBlockCopyBandwidth, Value: *libvirt.NewTypedParamValueUllong(uint64(bandwidth))})
	}
	return tell(ctx, v, "begin to copy disk "+target, uuid, func(l *libvirt.Libvirt, dom libvirt.Domain) error {
		return l.DomainBlockCopy(dom, target, doc, params, libvirt.DomainBlockCopyReuseExt|libvirt.DomainBlockCopyTransientJob)
	})
}

// Pivot ends a copy that has caught up: the guest goes on with the copy. libvirt changes the
// persistent definition too, if that has the disk where the running guest had it.
func (v *Virt) Pivot(ctx context.Context, uuid, target string) error {
	return v.blockJobAbort(ctx, "pivot disk "+target, uuid, target, libvirt.DomainBlockJobAbortPivot)
}

// AbortBlockJob ends a copy: the guest goes on as it was.
func (v *Virt) AbortBlockJob(ctx context.Context, uuid, target string) error {
	return v.blockJobAbort(ctx, "abort the copy of disk "+target, uuid, target, 0)
}

func (v *Virt) blockJobAbort(ctx context.Context, what, uuid, target string, flags libvirt.DomainBlockJobAbortFlags) error {
	return tell(ctx, v, what, uuid, func(l *libvirt.Libvirt, dom libvirt.Domain) error {
		return l.DomainBlockJobAbort(dom, target, flags)
	})
}

// Definition is the persistent definition of a guest, secrets included: never log it.
func (v *Virt) Definition(ctx context.Context, uuid string) ([]byte, error) {
	return v.document(ctx, "read the definition of the guest", uuid, writeSockets, libvirt.DomainXMLInactive|libvirt.DomainXMLSecure)
}

// Live is the document of a running guest as it is now.
func (v *Virt) Live(ctx context.Context, uuid string) ([]byte, error) {
	return v.document(ctx, "read the guest as it runs", uuid, readSockets, 0)
}

func (v *Virt) document(ctx context.Context, what, uuid string, sockets []string, flags libvirt.DomainXMLFlags) ([]byte, error) {
	return ask(ctx, v, what, uuid, sockets, func(l *libvirt.Libvirt, dom libvirt.Domain) ([]byte, error) {
		text, err := l.DomainGetXMLDesc(dom, flags)
		return []byte(text), err
	})
}

// RedefineDisk changes where one disk of the persistent definition of a guest lies, and its
// format, and nothing else. A definition that has the disk elsewhere is refused.
func (v *Virt) RedefineDisk(ctx context.Context, uuid, target string, from, to DiskSource) error {
	what := "change disk " + target + " in the definition of the guest"
	doc, err := v.Definition(ctx, uuid)
	if err != nil {
		return err
	}
	disk, err := replaceSource(doc, target, from, to)
	if err != nil {
		return api.NewError(api.KindInUse, fmt.Sprintf("cannot %s: %v", what, err))
	}
	return tell(ctx, v, what, uuid, func(l *libvirt.Libvirt, dom libvirt.Domain) error {
		return l.DomainUpdateDeviceFlags(dom, string(disk), libvirt.DomainDeviceModifyConfig)
	})
}

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a Builder never fails
	return b.String()
}
