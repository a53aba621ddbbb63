// Package domain turns what libvirt says about a guest into the logical volumes the
// guest needs: it reads domain XML, tells which paths are logical volumes, and follows
// the backing chains of disk images. It asks LVM nothing and changes nothing.
package domain

import (
	"fmt"
	"strings"

	"virtlvm/internal/model"
)

// Domain is a guest as a <domain> document describes it.
type Domain struct {
	Name string // as libvirt has it: any characters, never empty
	UUID string // lower case, with dashes
	// Disks are those that may lie on a logical volume. Empty drives and disks of
	// another kind (network, NVMe, vhost-user, directory) are left out.
	Disks []Disk
	// Saved: it has a managed-save image, as far as MarkSaved has been asked.
	Saved bool
}

// Disk is one <disk>, or the firmware (target "loader" or "nvram") of a guest.
type Disk struct {
	Target string // "vda"
	Role   model.Role
	Cache  string // the driver's cache mode, "" when not declared
	File   bool   // declared as a file, whatever its path is

	Source Source // the image the guest writes to
	// Backing is the declared chain below Source, nearest first.
	Backing []Source
	// ChainEnd is set where the document says that nothing follows the last image, so
	// that no header need be read.
	ChainEnd bool

	// Mirror is the target of a running block job, nil without one.
	Mirror         *Source
	MirrorReady    bool // it has caught up with the disk
	MirrorBacking  []Source
	MirrorChainEnd bool
}

// Firmware reports whether the disk is a flash image of the guest's firmware.
func (d Disk) Firmware() bool { return d.Target == "loader" || d.Target == "nvram" }

// Source says where an image lies: a path, or a volume of a libvirt storage pool, or,
// with both empty, somewhere that is no business of LVM.
type Source struct {
	Path         string
	Pool, Volume string
	Format       string // "raw", "qcow2", ...; "" when not declared, which libvirt takes for raw
	// Sliced is set where the image is a part of what Path names, so that its header
	// cannot be read at offset 0.
	Sliced bool
	// Data is the external data file of a qcow2 image; the guest's data is there.
	Data *Source
}

// Empty reports whether the source names neither a path nor a pool's volume.
func (s Source) Empty() bool { return s.Path == "" && s.Pool == "" }

// String names the source in messages.
func (s Source) String() string {
	if s.Path == "" && s.Pool != "" {
		return fmt.Sprintf("volume %q of storage pool %q", s.Volume, s.Pool)
	}
	return fmt.Sprintf("%q", s.Path)
}

// Image is one image of a disk and what the guest does with it.
type Image struct {
	Source Source
	Role   model.Role
}

// Images lists every image the document declares for the disk, those outside LVM too:
// the disk with its backing chain first, then the mirror with its own.
func (d Disk) Images() []Image {
	var images []Image
	for _, l := range d.lines() {
		for i, s := range l.images {
			images = append(images, expand(s, l.role(i))...)
		}
	}
	return images
}

// line is a chain of images, top first. A disk has one, and another below its mirror.
type line struct {
	top    model.Role
	images []Source
	ended  bool
}

func (l line) role(i int) model.Role {
	if i == 0 {
		return l.top
	}
	return model.RoleBacking
}

func (d Disk) lines() []line {
	lines := []line{{d.Role, append([]Source{d.Source}, d.Backing...), d.ChainEnd}}
	if d.Mirror != nil {
		lines = append(lines, line{
			model.RoleMirror, append([]Source{*d.Mirror}, d.MirrorBacking...), d.MirrorChainEnd,
		})
	}
	return lines
}

// expand adds an image's data file, which is written whenever the image is.
func expand(s Source, role model.Role) []Image {
	images := []Image{{s, role}}
	if s.Data != nil {
		images = append(images, Image{*s.Data, role})
	}
	return images
}

// local reports whether any image of the disk can be a logical volume.
func (d Disk) local() bool {
	for _, i := range d.Images() {
		if !i.Source.Empty() {
			return true
		}
	}
	return false
}

// oneLine keeps a message of another program or library on one line.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
