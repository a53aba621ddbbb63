package domain

import (
	"context"
	"fmt"
	"path/filepath"

	"virtlvm/internal/model"
)

// Walker finds every volume of a disk: those the document declares, then those that the
// headers of the images name.
type Walker struct {
	Resolver  *Resolver
	Inspector *Inspector
}

// Found is an image of a disk, and the volume it lies on.
type Found struct {
	Source Source // with a path, also for a pool's volume; empty if outside this host
	Role   model.Role
	Ref    Ref
	LV     bool // Ref is set
}

// Walk is the state of one disk's walk.
type Walk struct {
	w     *Walker
	disk  Disk
	lines []line
	seen  []map[string]bool // per line
	begun bool
}

// Start begins the walk of a disk.
func (w *Walker) Start(d Disk) *Walk {
	walk := &Walk{w: w, disk: d, lines: d.lines()}
	for _, l := range walk.lines {
		walk.seen = append(walk.seen, map[string]bool{})
		for i := range l.images {
			if l.images[i].Data != nil { // the walk fills in paths, the caller's disk stays
				data := *l.images[i].Data
				l.images[i].Data = &data
			}
		}
	}
	return walk
}

// Next returns images not returned before, none when the disk is complete: first those
// the document declares, then with each call those that one more header of each chain
// names. The volumes returned must be active and locked before the call after: only
// then may a header be read. So the volumes of many disks can be activated in one step.
//
// Errors name the disk: a path that cannot be judged (Resolver.Resolve), a header that
// cannot be read or understood, a chain that leads back to itself or has no end.
func (k *Walk) Next(ctx context.Context) ([]Found, error) {
	var found []Found
	var err error
	if k.begun {
		found, err = k.follow(ctx)
	} else {
		k.begun = true
		found, err = k.declared()
	}
	if err != nil {
		return nil, fmt.Errorf("disk %q: %w", k.disk.Target, err)
	}
	return found, nil
}

func (k *Walk) declared() ([]Found, error) {
	var found []Found
	for n := range k.lines {
		l := &k.lines[n]
		for i := range l.images {
			images, err := k.take(n, &l.images[i], l.role(i))
			if err != nil {
				return nil, err
			}
			found = append(found, images...)
		}
	}
	return found, nil
}

// follow reads the header of the last image of each chain that has not ended.
func (k *Walk) follow(ctx context.Context) ([]Found, error) {
	var found []Found
	for n := range k.lines {
		l := &k.lines[n]
		last := len(l.images) - 1
		if l.ended || !k.readable(l.images[last]) {
			l.ended = true
			continue
		}
		h, err := k.w.Inspector.Inspect(ctx, l.images[last])
		if err != nil && !k.isLV(l.images[last]) {
			// A file that root may not read, as on NFS with root_squash. libvirt reads it as
			// another user and names the chain it found in the XML of `start`, so that a
			// volume below is missed for no longer than until QEMU would open it.
			l.ended = true
			continue
		}
		if err != nil {
			return nil, err
		}
		// A data file the document declares is known already, and is the one QEMU uses.
		if h.Data != nil && l.images[last].Data == nil {
			f, err := k.resolve(h.Data, l.role(last))
			if err != nil {
				return nil, err
			}
			found = append(found, f)
		}
		if l.ended = h.Backing == nil; l.ended {
			continue
		}
		if len(l.images) > maxChain {
			return nil, fmt.Errorf("its backing chain has more than %d images", maxChain)
		}
		l.images = append(l.images, *h.Backing)
		images, err := k.take(n, &l.images[last+1], model.RoleBacking)
		if err != nil {
			return nil, err
		}
		found = append(found, images...)
	}
	return found, nil
}

// readable reports whether the chain can go on below an image. A file that is missing
// names nothing: libvirt drops an optional disk, creates what a migration copies, and
// otherwise refuses the start by itself.
func (k *Walk) readable(s Source) bool {
	if s.Empty() || !HasHeader(s.Format) {
		return false
	}
	return k.isLV(s) || k.w.Resolver.exists(s.Path)
}

// isLV: the image is on a logical volume, or cannot be told from one.
func (k *Walk) isLV(s Source) bool {
	_, lv, err := k.w.Resolver.Resolve(s)
	return lv || err != nil
}

// take resolves an image of chain n and its data file. It leaves the path of a pool's
// volume in s, and refuses an image that the chain already has.
func (k *Walk) take(n int, s *Source, role model.Role) ([]Found, error) {
	f, err := k.resolve(s, role)
	if err != nil {
		return nil, err
	}
	key := ""
	switch {
	case f.LV:
		key = f.Ref.String()
	case s.Path != "":
		key = filepath.Clean(s.Path)
	}
	if key != "" && k.seen[n][key] {
		return nil, fmt.Errorf("its backing chain has a cycle: %q comes twice", key)
	}
	k.seen[n][key] = true
	found := []Found{f}
	if s.Data != nil {
		data, err := k.resolve(s.Data, role)
		if err != nil {
			return nil, err
		}
		found = append(found, data)
	}
	return found, nil
}

func (k *Walk) resolve(s *Source, role model.Role) (Found, error) {
	located, err := k.w.Resolver.Locate(*s)
	if err != nil {
		return Found{}, err
	}
	*s = located
	f := Found{Source: located, Role: role}
	f.Ref, f.LV, err = k.w.Resolver.Resolve(located)
	return f, err
}
