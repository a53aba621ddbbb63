package fakevirt

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"libvirt.org/go/libvirtxml"
)

// Define keeps a domain's definition, giving it a uuid where it has none, and returns
// the domain's name. A definition of the same name and uuid is replaced.
func (h *Host) Define(ctx context.Context, xml []byte) (name string, err error) {
	const what = "Failed to define domain from XML"
	dom, err := h.o.Documents.read(string(xml))
	if err != nil {
		return "", failed(what, fmt.Errorf("XML error: %w", err))
	}
	if err := validName(dom.Name); err != nil {
		return "", failed(what, err)
	}
	dom.ID = nil
	unlock, err := h.o.Lock("define")
	if err != nil {
		return "", failed(what, err)
	}
	defer unlock()
	names, err := h.defined()
	if err != nil {
		return "", failed(what, err)
	}
	for _, other := range names {
		have, err := h.definition(other)
		if err != nil {
			return "", failed(what, err)
		}
		switch same := have.UUID == dom.UUID; {
		case other == dom.Name && dom.UUID == "":
			dom.UUID = have.UUID
		case other == dom.Name && !same, other != dom.Name && same && dom.UUID != "":
			return "", failed(what, fmt.Errorf("operation failed: domain '%s' already exists with uuid %s", other, have.UUID))
		}
	}
	if dom.UUID == "" {
		dom.UUID = newUUID()
	}
	// libvirt never guesses an image's format: what is not said is raw.
	for i := range disksOf(dom) {
		d := &dom.Devices.Disks[i]
		if d.Driver == nil {
			d.Driver = &libvirtxml.DomainDiskDriver{Name: "qemu"}
		}
		if d.Driver.Type == "" {
			d.Driver.Type = "raw"
		}
	}
	doc := strings.TrimSuffix(h.o.Documents.xmlOf(dom), "\n")
	return dom.Name, failed(what, h.withGuest(ctx, dom.Name, func() error {
		return writeFile(filepath.Join(h.definitions(), dom.Name+".xml"), []byte(doc))
	}))
}

func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	s := hex.EncodeToString(b[:])
	return strings.Join([]string{s[:8], s[8:12], s[12:16], s[16:20], s[20:]}, "-")
}

// defined are the names of all definitions, sorted.
func (h *Host) defined() ([]string, error) { return namesIn(h.definitions()) }

// namesIn are the guests that have a NAME.xml in a folder, sorted.
func namesIn(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), ".xml"); ok {
			names = append(names, name)
		}
	}
	return names, nil
}

var errNotFound = errors.New("Domain not found") //nolint:staticcheck // libvirt's words

// definition reads a definition anew: the caller may change it.
func (h *Host) definition(name string) (*libvirtxml.Domain, error) {
	return h.readDomain(filepath.Join(h.definitions(), name+".xml"), name)
}

// origin is what a running guest was started from, before libvirt added anything; that
// may be another definition than today's, or one that came with a migration.
func (h *Host) origin(name string) (*libvirtxml.Domain, error) {
	return h.readDomain(h.originPath(name), name)
}

func (h *Host) originPath(name string) string { return filepath.Join(h.locks(), name+".xml") }

func (h *Host) readDomain(path, name string) (*libvirtxml.Domain, error) {
	doc, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: no domain with matching name '%s'", errNotFound, name)
	}
	if err != nil {
		return nil, err
	}
	dom, err := h.o.Documents.read(string(doc))
	if err != nil {
		return nil, fmt.Errorf("cannot read definition of %s: %w", name, err)
	}
	return dom, nil
}

// xmlOf is a domain as a hook gets it.
func (h *Host) xmlOf(dom *libvirtxml.Domain) []byte { return []byte(h.o.Documents.xmlOf(dom)) }

func disksOf(dom *libvirtxml.Domain) []libvirtxml.DomainDisk {
	if dom.Devices == nil {
		return nil
	}
	return dom.Devices.Disks
}

// live adds what libvirt knows of a domain once it is about to run: the disks' aliases
// and its security label. The chains are the business of probe.
func live(dom *libvirtxml.Domain) {
	for i := range disksOf(dom) {
		d := &dom.Devices.Disks[i]
		bus := "virtio"
		if d.Target != nil && d.Target.Bus != "" {
			bus = d.Target.Bus
		}
		alias := fmt.Sprintf("%s-disk%d", bus, i)
		if d.Address != nil && d.Address.Drive != nil {
			a := d.Address.Drive
			alias = fmt.Sprintf("%s%d-%d-%d", bus, number(a.Controller), number(a.Bus), number(a.Unit))
		}
		d.Alias = &libvirtxml.DomainAlias{Name: alias}
	}
	dom.SecLabel = []libvirtxml.DomainSecLabel{{
		Type: "dynamic", Model: "dac", Relabel: "yes", Label: "+0:+0", ImageLabel: "+0:+0",
	}}
}

func number(n *uint) uint {
	if n == nil {
		return 0
	}
	return *n
}

// ended takes away again what a domain has lost by the hook `stopped`: its id, and the
// chains that libvirt has found itself. Those it was started with stay.
func (h *Host) ended(dom *libvirtxml.Domain) {
	dom.ID = nil
	var kept []string
	if def, err := h.origin(dom.Name); err == nil {
		for _, d := range disksOf(def) {
			if d.BackingStore != nil && d.Target != nil {
				kept = append(kept, d.Target.Dev)
			}
		}
	}
	for i := range disksOf(dom) {
		d := &dom.Devices.Disks[i]
		if d.Target == nil || !slices.Contains(kept, d.Target.Dev) {
			d.BackingStore = nil
		}
	}
}

// released takes away what it has lost by the hook `release`.
func released(dom *libvirtxml.Domain) {
	for i := range dom.SecLabel {
		dom.SecLabel[i].Label, dom.SecLabel[i].ImageLabel = "", ""
	}
}
