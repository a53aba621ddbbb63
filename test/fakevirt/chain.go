package fakevirt

import (
	"encoding/binary"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"libvirt.org/go/libvirtxml"
)

// maxChain is libvirt's bound on the length of a backing chain.
const maxChain = 200

// Disk is one disk of a guest as its QEMU opens it, or an image below one.
type Disk struct {
	Path     string // as on a real host, without the host's Root
	Format   string // "raw", "qcow2"
	ReadOnly bool
}

// probe looks at a domain's disks as libvirt does before `start`: each must be there, and
// chains that the definition does not give are read from the images. It puts the chains
// into dom and returns everything QEMU will open, each disk before what is below it.
func (h *Host) probe(dom *libvirtxml.Domain) ([]Disk, error) {
	all := disksOf(dom)
	perDisk := make([][]Disk, len(all))
	index := uint(0)
	// From the last to the first, as libvirt does: see the index numbers.
	for i := range slices.Backward(all) {
		d := &all[i]
		path, err := h.pathOf(d.Source)
		if err != nil {
			return nil, err
		}
		if path != "" {
			if _, err := os.Stat(h.o.Root + path); err != nil {
				return nil, fmt.Errorf("Cannot access storage file '%s': %s", path, reason(err)) //nolint:staticcheck // libvirt's words
			}
		}
		index++
		if d.Source == nil { // an empty drive
			d.Source = &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{}}
		}
		d.Source.Index = index
		if path == "" {
			continue
		}
		top := Disk{Path: path, Format: d.Driver.Type, ReadOnly: d.ReadOnly != nil || d.Device == "cdrom"}
		below, err := h.chain(&d.BackingStore, top, &index)
		if err != nil {
			return nil, err
		}
		perDisk[i] = append([]Disk{top}, below...)
	}
	return slices.Concat(perDisk...), nil
}

// chain follows what is below image, from what the definition says or else the image.
func (h *Host) chain(store **libvirtxml.DomainDiskBackingStore, image Disk, index *uint) ([]Disk, error) {
	var disks []Disk
	for range maxChain {
		below, err := h.below(*store, image)
		if err != nil {
			return nil, err
		}
		if below.Path == "" {
			*store = &libvirtxml.DomainDiskBackingStore{} // the end, said
			return disks, nil
		}
		if _, err := os.Stat(h.o.Root + below.Path); err != nil {
			//nolint:staticcheck // libvirt's words
			return nil, fmt.Errorf("Cannot access backing file '%s' of storage file '%s' (as uid:0, gid:0): %s",
				below.Path, image.Path, reason(err))
		}
		if *store == nil {
			*store = newBackingStore(below)
		}
		*index++
		(*store).Index = *index
		disks = append(disks, below)
		store, image = &(*store).BackingStore, below
	}
	return nil, fmt.Errorf("internal error: backing store for %s is too deep", image.Path)
}

// below is the image directly below another, none at the end of the chain.
func (h *Host) below(store *libvirtxml.DomainDiskBackingStore, image Disk) (Disk, error) {
	if store != nil {
		path, err := h.pathOf(store.Source)
		if err != nil || path == "" {
			return Disk{}, err
		}
		d := Disk{Path: path, Format: "raw", ReadOnly: true}
		if store.Format != nil {
			d.Format = store.Format.Type
		}
		return d, nil
	}
	if image.Format != "qcow2" {
		return Disk{}, nil
	}
	name, format, err := readBacking(h.o.Root + image.Path)
	if err != nil || name == "" {
		return Disk{}, err
	}
	if !strings.HasPrefix(name, "/") {
		name = filepath.Join(filepath.Dir(image.Path), name)
	}
	if format == "" {
		format = "raw"
	}
	return Disk{Path: name, Format: format, ReadOnly: true}, nil
}

func newBackingStore(d Disk) *libvirtxml.DomainDiskBackingStore {
	s := &libvirtxml.DomainDiskBackingStore{
		Format: &libvirtxml.DomainDiskFormat{Type: d.Format},
		Source: &libvirtxml.DomainDiskSource{},
	}
	if strings.HasPrefix(d.Path, "/dev/") {
		s.Source.Block = &libvirtxml.DomainDiskSourceBlock{Dev: d.Path}
	} else {
		s.Source.File = &libvirtxml.DomainDiskSourceFile{File: d.Path}
	}
	return s
}

// pathOf is a source's path; empty where it has none on this host (an empty drive, a
// network disk).
func (h *Host) pathOf(s *libvirtxml.DomainDiskSource) (string, error) {
	switch {
	case s == nil:
		return "", nil
	case s.Block != nil:
		return s.Block.Dev, nil
	case s.File != nil:
		return s.File.File, nil
	case s.Volume != nil:
		return h.volumePath(s.Volume.Pool, s.Volume.Volume)
	}
	return "", nil
}

// volumePath finds a volume by the pool's definition in Root/etc/libvirt/storage: in a
// VG for type "logical", else in the pool's target folder.
func (h *Host) volumePath(pool, volume string) (string, error) {
	doc, err := os.ReadFile(filepath.Join(h.o.Root, "etc/libvirt/storage", pool+".xml"))
	if err != nil {
		return "", fmt.Errorf("Storage pool not found: no storage pool with matching name '%s'", pool) //nolint:staticcheck // libvirt's words
	}
	p := &libvirtxml.StoragePool{}
	if err := xml.Unmarshal(doc, p); err != nil {
		return "", fmt.Errorf("cannot read storage pool %s: %w", pool, err)
	}
	switch {
	case p.Type == "logical" && p.Source != nil && p.Source.Name != "":
		return "/dev/" + p.Source.Name + "/" + volume, nil
	case p.Type == "logical":
		return "/dev/" + pool + "/" + volume, nil
	case p.Target != nil:
		return filepath.Join(p.Target.Path, volume), nil
	}
	return "", fmt.Errorf("cannot find volume %s: pool %s has no target", volume, pool)
}

// reason is the errno's text, as libvirt ends its messages.
func reason(err error) string {
	var errno syscall.Errno
	switch {
	case errors.As(err, &errno):
		s := errno.Error()
		return strings.ToUpper(s[:1]) + s[1:]
	case errors.Is(err, fs.ErrNotExist):
		return "No such file or directory"
	}
	return err.Error()
}

// readBacking reads the backing file's name and format from a qcow2 image (QEMU's
// docs/interop/qcow2.txt: big-endian header, extensions behind it).
func readBacking(path string) (name, format string, err error) {
	const (
		magic        = 0x514649fb
		formatMagic  = 0xe2792aca
		v2HeaderSize = 72
	)
	f, err := os.Open(path)
	if err != nil {
		return "", "", err
	}
	defer func() { _ = f.Close() }()
	head := make([]byte, 64<<10)
	n, err := io.ReadFull(f, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return "", "", err
	}
	head = head[:n]
	if n < v2HeaderSize || binary.BigEndian.Uint32(head) != magic {
		return "", "", nil // QEMU is who complains
	}
	at, size := binary.BigEndian.Uint64(head[8:]), uint64(binary.BigEndian.Uint32(head[16:]))
	if at == 0 {
		return "", "", nil
	}
	if at+size > uint64(n) {
		return "", "", fmt.Errorf("internal error: backing file name of %s lies outside its header", path)
	}
	name = string(head[at : at+size])
	next := uint64(v2HeaderSize)
	if version := binary.BigEndian.Uint32(head[4:]); version >= 3 && n >= 104 {
		next = uint64(binary.BigEndian.Uint32(head[100:]))
	}
	for next+8 <= at {
		kind, length := binary.BigEndian.Uint32(head[next:]), uint64(binary.BigEndian.Uint32(head[next+4:]))
		next += 8
		if kind == 0 || next+length > uint64(n) {
			break
		}
		if kind == formatMagic {
			format = string(head[next : next+length])
		}
		next += (length + 7) / 8 * 8
	}
	return name, format, nil
}
