package domain

import (
	"fmt"
	"strings"
)

// Resolver tells which sources are logical volumes. It looks at links, sysfs and the
// definitions of storage pools, and needs neither LVM nor libvirt.
type Resolver struct {
	Root     string   // prefix of every file looked at; "" in production
	PoolDirs []string // where storage pools are defined, first match wins; nil: DefaultPoolDirs
}

// Ref is what a source names in LVM's terms: VG and LV where the path gives names, else
// DMUUID (see SplitDMUUID).
type Ref struct {
	VG, LV string
	DMUUID string
}

// String is "vg/lv", or the dm uuid where names are not known.
func (r Ref) String() string {
	if r.DMUUID != "" {
		return r.DMUUID
	}
	return r.VG + "/" + r.LV
}

// Resolve returns the logical volume a source names, active or not. It is false if the
// source is certainly something else: a file, another device, or nothing. A path of an
// LV's form counts as one while no device is there, whether the volume exists or not.
//
// Errors: a path that cannot be followed, a /dev/dm-N that is not there, an internal
// device of LVM, a storage pool that is not defined here.
func (r *Resolver) Resolve(s Source) (Ref, bool, error) {
	s, err := r.Locate(s)
	if err != nil || s.Path == "" {
		return Ref{}, false, err
	}
	if !strings.HasPrefix(s.Path, "/") {
		return Ref{}, false, fmt.Errorf("cannot tell what disk path %q is: it is not absolute", s.Path)
	}
	if len(s.Path) > maxPath {
		return Ref{}, false, fmt.Errorf("cannot tell what disk path %.40q... is: it is longer than %d bytes", s.Path, maxPath)
	}
	t := newTrail(r.Root, s.Path)
	for {
		// Each form is judged before its link is followed: /dev/vg/lv says more than the
		// /dev/dm-3 it leads to today.
		if t.certain() {
			ref, v, err := r.judge(t.path())
			if err != nil || v != unclear {
				return ref, v == volume, err
			}
		}
		more, err := t.next()
		if err != nil {
			return Ref{}, false, err
		}
		if !more {
			break
		}
	}
	d, err := r.node(t.path())
	if err != nil || !strings.HasPrefix(d.uuid, lvmPrefix) {
		return Ref{}, false, err
	}
	ref, err := byUUID(s.Path, d.uuid)
	return ref, err == nil, err
}

// verdict on a path's form.
type verdict int

const (
	unclear verdict = iota // no form of LVM's: follow the path
	volume
	other
)

// judge looks at the form of an absolute, clean path, and at the device behind it.
func (r *Resolver) judge(path string) (Ref, verdict, error) {
	if kernel, ok := dmNode(path); ok {
		d, err := r.dmDevice("/sys/block/" + kernel)
		if err == nil && !d.exists {
			err = fmt.Errorf("cannot tell what %q is: there is no such device; name the disk as /dev/VG/LV", path)
		}
		if err != nil {
			return Ref{}, unclear, err
		}
		return r.judgeDevice(path, d, Ref{})
	}
	if name, ok := strings.CutPrefix(path, "/dev/mapper/"); ok {
		return r.judgeMapper(path, name)
	}
	if name, ok := strings.CutPrefix(path, "/dev/disk/by-id/dm-name-"); ok {
		return r.judgeMapper(path, name)
	}
	if uuid, ok := strings.CutPrefix(path, "/dev/disk/by-id/dm-uuid-"); ok {
		// udev makes this link from the dm uuid itself: no need to look.
		return r.judgeDevice(path, device{exists: true, dm: true, uuid: uuid}, Ref{})
	}
	name, ok := strings.CutPrefix(path, "/dev/")
	vg, lv, two := strings.Cut(name, "/")
	if !ok || !two || notVG(vg) || !validName(vg) || !validName(lv) {
		return Ref{}, unclear, nil
	}
	return r.judgeNamed(path, Ref{VG: vg, LV: lv})
}

// judgeMapper judges a device-mapper name.
func (r *Resolver) judgeMapper(path, name string) (Ref, verdict, error) {
	ref, layer, ok := splitMapper(name)
	if !ok {
		return Ref{}, unclear, nil
	}
	if layer == "" {
		return r.judgeNamed(path, ref)
	}
	d, err := r.lookUp(path)
	if err == nil && !d.exists {
		err = internalDevice(path, fmt.Sprintf("%q of logical volume %s", layer, ref))
	}
	if err != nil {
		return Ref{}, unclear, err
	}
	return r.judgeDevice(path, d, Ref{})
}

// judgeNamed judges a path whose form names a volume. Where a device is there, its dm
// uuid decides, not the form: luks-x in /dev/mapper is no LV, and a link of somebody's
// own may be called anything.
func (r *Resolver) judgeNamed(path string, ref Ref) (Ref, verdict, error) {
	d, err := r.lookUp(path)
	switch {
	case err != nil:
		return Ref{}, unclear, err
	case !d.exists:
		return ref, volume, nil
	}
	return r.judgeDevice(path, d, ref)
}

// judgeDevice judges a device that is there; named is what its path says.
func (r *Resolver) judgeDevice(path string, d device, named Ref) (Ref, verdict, error) {
	switch {
	case !d.dm:
		return Ref{}, unclear, nil
	case !strings.HasPrefix(d.uuid, lvmPrefix):
		return Ref{}, other, nil
	}
	ref, err := byUUID(path, d.uuid)
	if err != nil {
		return Ref{}, unclear, err
	}
	if named.VG != "" && mapperName(named) == d.name {
		ref = named
	}
	return ref, volume, nil
}

func byUUID(path, uuid string) (Ref, error) {
	if _, ok := SplitDMUUID(uuid); !ok {
		return Ref{}, internalDevice(path, fmt.Sprintf("dm uuid %q", uuid))
	}
	return Ref{DMUUID: uuid}, nil
}

func internalDevice(path, what string) error {
	return fmt.Errorf("cannot use %q as a disk: it is an internal device of LVM (%s); name the logical volume itself", path, what)
}
