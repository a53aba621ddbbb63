package domain

import (
	"encoding/xml"
	"errors"
	"fmt"
	"strings"

	"libvirt.org/go/libvirtxml"

	"virtlvm/internal/model"
)

// maxChain is the number of images in one chain; libvirt stops at 200 as well.
const maxChain = 200

// newDisk converts a <disk> element.
func newDisk(x *libvirtxml.DomainDisk) (Disk, error) {
	d := Disk{Role: diskRole(x)}
	if x.Target != nil {
		d.Target = x.Target.Dev
	}
	format := ""
	if x.Driver != nil {
		format, d.Cache = x.Driver.Type, x.Driver.Cache
	}
	d.Source = newSource(x.Source, format)
	d.File = x.Source != nil && x.Source.File != nil && x.Source.File.File != ""
	// Libvirt allows a drive without medium for these two only. Any other disk that
	// names nothing is a mistake that must not pass for "needs no volume".
	removable := x.Device == "cdrom" || x.Device == "floppy"
	if err := complete(x.Source, d.Source); err != nil && (!removable || !d.Source.Empty()) {
		return Disk{}, fmt.Errorf("disk %q: %w", d.Target, err)
	}
	var err error
	if d.Backing, d.ChainEnd, err = newBacking(x.BackingStore); err != nil {
		return Disk{}, fmt.Errorf("disk %q: %w", d.Target, err)
	}
	if x.Mirror == nil {
		return d, nil
	}
	mirror := newSource(x.Mirror.Source, formatOf(x.Mirror.Format))
	if err := complete(x.Mirror.Source, mirror); err != nil {
		return Disk{}, fmt.Errorf("disk %q: mirror: %w", d.Target, err)
	}
	d.Mirror, d.MirrorReady = &mirror, x.Mirror.Ready == "yes"
	if d.MirrorBacking, d.MirrorChainEnd, err = newBacking(x.Mirror.BackingStore); err != nil {
		return Disk{}, fmt.Errorf("disk %q: mirror: %w", d.Target, err)
	}
	return d, nil
}

// diskRole: a CD-ROM is read-only whatever is said; a floppy is not. A transient disk's
// image is not written, but its lock is that of any disk: libvirt decides where the
// writes go, and does so after us.
func diskRole(x *libvirtxml.DomainDisk) model.Role {
	switch {
	case x.ReadOnly != nil || x.Device == "cdrom":
		return model.RoleReadOnly
	case x.Shareable != nil:
		return model.RoleShareable
	}
	return model.RoleWritable
}

// newSource converts a <source>; other kinds than file, block and volume give an empty
// one.
func newSource(x *libvirtxml.DomainDiskSource, format string) Source {
	s := Source{Format: format}
	if x == nil {
		return s
	}
	switch {
	case x.File != nil:
		s.Path = x.File.File
	case x.Block != nil:
		s.Path = x.Block.Dev
	case x.Volume != nil:
		s.Pool, s.Volume = x.Volume.Pool, x.Volume.Volume
	}
	if x.Slices != nil {
		for _, slice := range x.Slices.Slices {
			s.Sliced = s.Sliced || slice.Type == "storage"
		}
	}
	if x.DataStore != nil {
		data := newSource(x.DataStore.Source, formatOf(x.DataStore.Format))
		s.Data = &data
	}
	return s
}

// complete reports a source whose kind promises a path or a volume, and gives none.
func complete(x *libvirtxml.DomainDiskSource, s Source) error {
	if s.Data != nil {
		if err := complete(x.DataStore.Source, *s.Data); err != nil {
			return fmt.Errorf("data file: %w", err)
		}
	}
	switch {
	case x == nil:
		return errors.New("no source")
	case x.Volume != nil && (s.Pool == "" || s.Volume == ""):
		return errors.New("a source of type volume without pool or volume")
	case (x.File != nil || x.Block != nil) && s.Path == "":
		return errors.New("a source without path")
	case (x.File != nil || x.Block != nil) && !strings.HasPrefix(s.Path, "/"):
		return fmt.Errorf("its path %q is not absolute", s.Path)
	}
	return nil
}

func formatOf(x *libvirtxml.DomainDiskFormat) string {
	if x == nil {
		return ""
	}
	return x.Type
}

// newBacking flattens nested <backingStore> elements. An empty one ends the chain; where
// there is none, libvirt goes on by reading headers.
func newBacking(x *libvirtxml.DomainDiskBackingStore) (chain []Source, end bool, err error) {
	for ; x != nil; x = x.BackingStore {
		if terminator(x) {
			return chain, true, nil
		}
		if len(chain) == maxChain {
			return nil, false, fmt.Errorf("its backing chain has more than %d images", maxChain)
		}
		s := newSource(x.Source, formatOf(x.Format))
		if err := complete(x.Source, s); err != nil {
			return nil, false, fmt.Errorf("backing store: %w", err)
		}
		chain = append(chain, s)
	}
	return chain, false, nil
}

// terminator: libvirtxml leaves the source of an element without type and source empty.
func terminator(x *libvirtxml.DomainDiskBackingStore) bool {
	s := x.Source
	return x.Format == nil && x.BackingStore == nil && (s == nil || s.File == nil && s.Block == nil && s.Volume == nil &&
		s.Network == nil && s.Dir == nil && s.NVME == nil && s.VHostUser == nil && s.VHostVDPA == nil && s.Ctl == nil)
}

// firmware reads a child of <os>: the flash images may be block devices. Kernel, initrd
// and device tree are files read once, before the guest runs, and are left out.
func (p *parser) firmware(e xml.StartElement) error {
	switch e.Name.Local {
	case "loader":
		var x libvirtxml.DomainLoader
		if err := p.doc.dec.DecodeElement(&x, &e); err != nil {
			return err
		}
		role := model.RoleReadOnly
		if x.Type == "pflash" && x.Readonly != "yes" {
			role = model.RoleWritable
		}
		p.add(flash("loader", Source{Path: strings.TrimSpace(x.Path), Format: x.Format}, role))
		return nil
	case "nvram":
		var x libvirtxml.DomainNVRam
		if err := p.doc.dec.DecodeElement(&x, &e); err != nil {
			return err
		}
		s := newSource(x.Source, x.Format)
		if x.Source == nil {
			s.Path = strings.TrimSpace(x.NVRam)
		}
		p.add(flash("nvram", s, model.RoleWritable))
		return nil
	}
	return p.doc.dec.Skip()
}

// flash: libvirt uses firmware images without backing chain, and creates the nvram file
// only after the `prepare` hook, so its header must not be looked for. A path that is
// not absolute is the name of a file in QEMU's own directory.
func flash(target string, s Source, role model.Role) Disk {
	if !strings.HasPrefix(s.Path, "/") {
		s.Path = ""
	}
	return Disk{Target: target, Source: s, Role: role, ChainEnd: true}
}
