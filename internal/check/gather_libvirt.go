package check

import (
	"context"
	"encoding/xml"
	"errors"
	"io/fs"
	"path"
)

func (s *Sources) gatherLibvirt(_ context.Context, f *Facts) {
	all, err := processes(s.Proc, "libvirtd", "virtqemud")
	for i := range all {
		all[i].Began = f.since(all[i].Start)
	}
	f.Libvirt = got(all, err)
	s.gatherHook(f)
	s.gatherAppArmor(f)
	s.gatherSELinux(f)
	f.Pools = got(s.pools())
	f.Running = got(s.Guests.Observe())
}

// Where libvirt keeps its storage pools: definitions, links to those that start with it,
// and the running ones.
const (
	poolsDefined = "etc/libvirt/storage"
	poolsAuto    = "etc/libvirt/storage/autostart"
	poolsRunning = "run/libvirt/storage"
)

// poolXML is what is needed of a pool's definition (libvirt's formatstorage); a running
// one stands inside <poolstate>.
type poolXML struct {
	XMLName xml.Name
	Type    string `xml:"type,attr"`
	Name    string `xml:"name"`
	Source  struct {
		Name string `xml:"name"`
	} `xml:"source"`
	Pool *poolXML `xml:"pool"`
}

func (s *Sources) pools() ([]Pool, error) {
	found := map[string]*Pool{}
	var failed error
	for _, dir := range []string{poolsDefined, poolsRunning} {
		entries, err := fs.ReadDir(s.Root, dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			failed = errors.Join(failed, err)
		}
		for _, e := range entries {
			file := dir + "/" + e.Name()
			if e.IsDir() || path.Ext(file) != ".xml" {
				continue
			}
			data, err := fs.ReadFile(s.Root, file)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			var x poolXML
			if err == nil {
				err = xml.Unmarshal(data, &x)
			}
			if err != nil {
				failed = errors.Join(failed, errors.New("the definition /"+file+" cannot be read: "+err.Error()))
				continue
			}
			if x.Pool != nil {
				x = *x.Pool
			}
			if x.Type != "logical" || x.Name == "" {
				continue
			}
			p := found[x.Name]
			if p == nil {
				p = &Pool{Name: x.Name}
				found[x.Name] = p
			}
			if p.VG = x.Source.Name; p.VG == "" {
				p.VG = x.Name // libvirt's default
			}
			p.Running = p.Running || dir == poolsRunning
			_, err = fs.Lstat(s.Root, poolsAuto+"/"+e.Name())
			p.Autostart = p.Autostart || err == nil
		}
	}
	var all []Pool
	for _, name := range sortedKeys(found) {
		all = append(all, *found[name])
	}
	return all, failed
}
