package check

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"virtlvm/internal/domain"
	"virtlvm/internal/guests"
	"virtlvm/internal/lvm"
)

// guestsDefined is where libvirt keeps the definitions of guests.
const guestsDefined = "etc/libvirt/qemu"

// gatherDefinitions reads what is defined, and what runs without a definition.
func (s *Sources) gatherDefinitions(f *Facts) {
	known := map[string]bool{}
	add := func(d *domain.Domain) {
		if known[d.UUID] {
			return
		}
		known[d.UUID] = true
		f.Guests = append(f.Guests, Guest{d.Name, d.UUID, s.disks(f, d)})
	}
	entries, err := fs.ReadDir(s.Root, guestsDefined)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		f.Unreadable = append(f.Unreadable, err.Error())
	}
	for _, e := range entries {
		if e.IsDir() || path.Ext(e.Name()) != ".xml" {
			continue
		}
		data, err := fs.ReadFile(s.Root, guestsDefined+"/"+e.Name())
		if errors.Is(err, fs.ErrNotExist) {
			continue // undefined meanwhile
		}
		var d *domain.Domain
		if err == nil {
			d, err = domain.Parse(data)
		}
		if err != nil {
			f.Unreadable = append(f.Unreadable, fmt.Sprintf("/%s/%s: %v", guestsDefined, e.Name(), err))
			continue
		}
		add(d)
	}
	for _, u := range f.Running.Value.Unknown {
		f.Unreadable = append(f.Unreadable, u.Path+": "+u.Reason)
	}
	for _, uuid := range sortedKeys(f.Running.Value.ByUUID) {
		g := f.Running.Value.ByUUID[uuid]
		if g.Alive == guests.Gone || len(g.XML) == 0 {
			continue
		}
		d, err := domain.ParseStatus(g.XML)
		if err != nil {
			f.Unreadable = append(f.Unreadable, err.Error())
			continue
		}
		add(d)
	}
}

// disks are the images of a guest that are logical volumes.
func (s *Sources) disks(f *Facts, d *domain.Domain) []Disk {
	var all []Disk
	for _, disk := range d.Disks {
		for _, image := range disk.Images() {
			if image.Source.Empty() {
				continue
			}
			vg, lv, ok, err := s.named(f, image.Source)
			if err != nil {
				f.Unreadable = append(f.Unreadable, fmt.Sprintf("guest %s, disk %s: %v", show(d.Name), disk.Target, err))
			}
			if ok {
				all = append(all, Disk{disk.Target, sourcePath(image.Source), image.Role, disk.Cache, vg, lv})
			}
		}
	}
	return all
}

func sourcePath(s domain.Source) string {
	if s.Path != "" {
		return s.Path
	}
	return s.String()
}

// named finds the names of the volume that a source is on.
func (s *Sources) named(f *Facts, source domain.Source) (vg, lv string, ok bool, err error) {
	ref, ok, err := s.Resolver.Resolve(source)
	if err != nil || !ok {
		return "", "", false, err
	}
	if ref.VG == "" {
		d, active := f.Devices.Value[ref.DMUUID]
		if vg, lv, ok = lvm.SplitMapperName(d.Name); !active || !ok {
			return "", "", false, fmt.Errorf("%s names a volume by a device that is not there", source)
		}
		return vg, lv, true, nil
	}
	return ref.VG, ref.LV, true, nil
}

// statusJobs is what is needed of a status file to tell what its block jobs write to
// (libvirt's qemu_domain.c, qemuDomainObjPrivateXMLFormatBlockjobs). The base of a commit is
// named by a node such as "libvirt-11-format", whose number is the index of the image.
type statusJobs struct {
	Jobs []struct {
		Type   string `xml:"type,attr"`
		Broken string `xml:"brokentype,attr"`
		Disk   struct {
			Dst string `xml:"dst,attr"`
		} `xml:"disk"`
		Base struct {
			Node string `xml:"node,attr"`
		} `xml:"base"`
	} `xml:"blockjobs>blockjob"`
	Disks []struct {
		Target struct {
			Dev string `xml:"dev,attr"`
		} `xml:"target"`
		Backing *backingXML `xml:"backingStore"`
	} `xml:"domain>devices>disk"`
}

type backingXML struct {
	Index  string `xml:"index,attr"`
	Source struct {
		Dev    string `xml:"dev,attr"`
		File   string `xml:"file,attr"`
		Pool   string `xml:"pool,attr"`
		Volume string `xml:"volume,attr"`
	} `xml:"source"`
	Backing *backingXML `xml:"backingStore"`
}

func (s *Sources) gatherJobs(f *Facts) {
	for _, uuid := range sortedKeys(f.Running.Value.ByUUID) {
		g := f.Running.Value.ByUUID[uuid]
		if !g.BlockJobs || g.Alive == guests.Gone {
			continue
		}
		var x statusJobs
		if err := xml.Unmarshal(g.XML, &x); err != nil {
			f.Jobs = append(f.Jobs, BlockJob{Guest: g.Name, Type: "unknown", Disk: "unknown", Err: errors.New("its status file is not understood")})
			continue
		}
		for _, j := range x.Jobs {
			kind := j.Type
			if kind == "broken" && j.Broken != "" {
				kind = j.Broken
			}
			switch kind {
			case "commit", "active-commit", "broken", "":
			default:
				continue // pull, copy and backup write images that are held exclusively
			}
			job := BlockJob{Guest: g.Name, Disk: j.Disk.Dst, Type: kind}
			job.Base, job.Err = s.base(f, x, j.Disk.Dst, j.Base.Node)
			f.Jobs = append(f.Jobs, job)
		}
	}
}

// base finds the volume of the image that a commit writes into.
func (s *Sources) base(f *Facts, x statusJobs, disk, node string) (Disk, error) {
	index := strings.TrimPrefix(node, "libvirt-")
	index, _, _ = strings.Cut(index, "-")
	if _, err := strconv.Atoi(index); err != nil {
		return Disk{}, fmt.Errorf("the node %q is not known", node)
	}
	for _, d := range x.Disks {
		if d.Target.Dev != disk {
			continue
		}
		for b := d.Backing; b != nil; b = b.Backing {
			if b.Index != index {
				continue
			}
			source := domain.Source{Path: b.Source.Dev + b.Source.File, Pool: b.Source.Pool, Volume: b.Source.Volume}
			vg, lv, ok, err := s.named(f, source)
			if err != nil || !ok {
				return Disk{}, err
			}
			return Disk{Target: disk, Path: sourcePath(source), VG: vg, LV: lv}, nil
		}
	}
	return Disk{}, fmt.Errorf("there is no image of the node %q", node)
}
