package domain

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// A document of any content gives a domain that can be held for, or a one-line error.
func FuzzParse(f *testing.F) {
	files, err := filepath.Glob(testdata + "/hooks/*/*/*.xml")
	require.NoError(f, err)
	for _, name := range append(files, testdata+"/status/libvirt-11.3-vm1-running.xml") {
		doc, err := os.ReadFile(name)
		require.NoError(f, err)
		f.Add(doc)
	}
	f.Add([]byte(withDisks(disks(1) + "<disk type='volume'><source pool='p' volume='v'/><mirror file='/x'/></disk>")))
	id := "<domain><name>a</name><uuid>" + uuid + "</uuid>"
	for _, part := range []string{
		"<os><nvram type='block'><source dev='/a'/></nvram></os>",
		"<devices><disk type='nvme'><source type='pci'/></disk></devices>",
		"<devices><disk type='vhostuser'><source type='unix'/></disk></devices>",
		"<devices><disk><source file='/a'/><backingStore><source file='/b'/><backingStore/></backingStore></disk></devices>",
		"<devices><disk><source file='/a'><reservations><source type='x'/></reservations></source></disk></devices>",
	} {
		f.Add([]byte(id + part + "</domain>"))
	}
	f.Add([]byte("<!DOCTYPE d [<!ENTITY a 'b'>]><domain>&a;</domain>"))
	f.Fuzz(func(t *testing.T, doc []byte) {
		for _, parse := range []func([]byte) (*Domain, error){Parse, ParseStatus} {
			d, err := parse(doc)
			if err != nil {
				if d != nil || strings.Contains(err.Error(), "\n") {
					t.Fatalf("domain %v with error %q", d, err)
				}
				continue
			}
			uuid, ok := normalUUID(d.UUID)
			if d.Name == "" || !ok || uuid != d.UUID || !utf8.ValidString(d.Name) {
				t.Fatalf("%+v", d)
			}
			for _, disk := range d.Disks {
				if !disk.local() || len(disk.Backing) > maxChain {
					t.Fatalf("%+v", disk)
				}
			}
		}
	})
}

// Whatever a path is, what comes out can be given to LVM's commands.
func FuzzResolve(f *testing.F) {
	for _, path := range []string{
		"/dev/vg_san/lv1", "/dev/mapper/vg--a-lv", "/dev/mapper/vg-lv-real", "/dev/dm-0", "/dev/dm-1", "/srv/loop",
		"/\x00\n", "/dev/disk/by-id/dm-uuid-LVM-\n", "/dev/disk/by-id/dm-uuid-" + lv1, "/srv/vm1/../vm1", "//dev/./vg/../vg/lv/", "/dev/-x/lv", "/srv/../../dev/a/b",
	} {
		f.Add(path)
	}
	h := newHost(f)
	h.dm("dm-0", "vg_san-lv1", lv1)
	h.dm("dm-1", "luks-x", "CRYPT-x")
	h.link("/dev/vg_san/lv1", "../dm-0")
	h.link("/srv/vm1", "/dev/vg_san/lv1")
	h.link("/srv/loop", "loop")
	f.Fuzz(func(t *testing.T, path string) {
		ref, ok, err := h.resolver().Resolve(Source{Path: path})
		if err != nil {
			if ok || strings.Contains(err.Error(), "\n") {
				t.Fatalf("%v with error %q", ref, err)
			}
			return
		}
		_, uuid := SplitDMUUID(ref.DMUUID)
		named := validName(ref.VG) && validName(ref.LV)
		if ok != (uuid || named) || uuid && ref.VG != "" || !ok && ref != (Ref{}) {
			t.Fatalf("%q: %+v, %v", path, ref, ok)
		}
	})
}

// A reference in a header names an absolute path, something elsewhere, or is refused.
func FuzzParseBacking(f *testing.F) {
	f.Add("base", "raw")
	f.Add("nbd://h/x", "")
	f.Add(`json:{"driver":"raw","file":{"driver":"file","filename":"/dev/vg/b"}}`, "raw")
	f.Add(`json:{"file.filename":"json:{}"}`, "")
	f.Fuzz(func(t *testing.T, ref, format string) {
		s, err := parseBacking(ref, format, "/dev/vg/top")
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Fatalf("%q", err)
			}
			return
		}
		if s.Path != "" && s.Path[0] != '/' || s.Pool != "" {
			t.Fatalf("%+v", s)
		}
	})
}
