package domain

import (
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"strings"

	"libvirt.org/go/libvirtxml"
)

// DefaultPoolDirs is where libvirt's storage driver keeps its pools: the running ones,
// which it uses for a guest that starts, and the permanent definitions.
func DefaultPoolDirs() []string { return []string{"/run/libvirt/storage", "/etc/libvirt/storage"} }

// Locate turns a volume of a storage pool into a path, as libvirt does when a guest
// starts. A volume of a pool that is not on this host's devices or files (rbd, gluster,
// SCSI and iSCSI disks, ...) gives an empty source; other sources come back unchanged.
func (r *Resolver) Locate(s Source) (Source, error) {
	if s.Path != "" || s.Pool == "" {
		return s, nil
	}
	path, err := r.poolPath(s.Pool, s.Volume)
	if err != nil {
		return s, fmt.Errorf("cannot find %s: %w", s, err)
	}
	s.Path, s.Pool, s.Volume = path, "", ""
	return s, nil
}

func (r *Resolver) poolPath(name, vol string) (string, error) {
	if strings.HasPrefix(vol, "/") { // a volume's key is its path
		return vol, nil
	}
	if vol == "" || vol == "." || vol == ".." || strings.Contains(vol, "/") {
		return "", errors.New("not the name of a volume")
	}
	pool, err := r.pool(name)
	if err != nil {
		return "", err
	}
	switch pool.Type {
	case "logical":
		vg := name // libvirt's default
		if pool.Source != nil && pool.Source.Name != "" {
			vg = pool.Source.Name
		}
		if !validName(vg) || !validName(vol) {
			return "", fmt.Errorf("%q cannot be a logical volume in LVM", vg+"/"+vol)
		}
		return "/dev/" + vg + "/" + vol, nil
	case "dir", "fs", "netfs", "vstorage", "disk":
		if pool.Target == nil || !strings.HasPrefix(pool.Target.Path, "/") {
			return "", fmt.Errorf("the pool, of type %q, has no target path", pool.Type)
		}
		return pool.Target.Path + "/" + vol, nil
	case "scsi", "iscsi", "iscsi-direct", "mpath", "rbd", "sheepdog", "gluster", "zfs":
		// Their volumes are whole disks or lie elsewhere; the names of the first three are
		// not those of files in the target path.
		return "", nil
	}
	return "", fmt.Errorf("the pool is of unknown type %q", pool.Type)
}

// pool reads a pool's definition: <pool>, inside <poolstate> for a running one.
func (r *Resolver) pool(name string) (*libvirtxml.StoragePool, error) {
	if name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
		return nil, errors.New("not the name of a storage pool")
	}
	dirs := r.PoolDirs
	if dirs == nil {
		dirs = DefaultPoolDirs()
	}
	for _, dir := range dirs {
		doc, err := os.ReadFile(r.Root + dir + "/" + name + ".xml")
		if missing(err) {
			continue
		}
		var pool *libvirtxml.StoragePool
		if err == nil {
			pool, err = parsePool(doc)
		}
		if err == nil && pool.Name != name {
			err = fmt.Errorf("it defines pool %q", pool.Name)
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read the definition %q: %w", dir+"/"+name+".xml", pathReason(err))
		}
		return pool, nil
	}
	return nil, errors.New("the pool is not defined on this host; define it with `virsh pool-define`")
}

func parsePool(doc []byte) (*libvirtxml.StoragePool, error) {
	d, err := newDocument(doc)
	if err != nil {
		return nil, err
	}
	var pool *libvirtxml.StoragePool
	read := func(e xml.StartElement) error {
		if e.Name.Local != "pool" || pool != nil {
			return d.dec.Skip()
		}
		pool = &libvirtxml.StoragePool{}
		return d.dec.DecodeElement(pool, &e)
	}
	err = d.root(func(e xml.StartElement) error {
		if e.Name.Local == "poolstate" {
			return d.children(read)
		}
		return read(e)
	})
	if err == nil && pool == nil {
		err = errors.New("it has no <pool>")
	}
	return pool, err
}
