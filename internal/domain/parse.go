package domain

import (
	"encoding/xml"
	"errors"
	"fmt"
	"strings"

	"libvirt.org/go/libvirtxml"
)

// Parse reads a <domain> document, as a hook gets it on stdin (libvirt's formatdomain).
// Errors are one line and name the guest where its name could be read.
func Parse(doc []byte) (*Domain, error) {
	return parse(doc, "domain", (*parser).domain)
}

// errEnough ends the reading of a document.
var errEnough = errors.New("enough has been read")

// UUID reads a <domain> document no further than its <uuid>, and returns that in lower case.
func UUID(doc []byte) (string, error) {
	uuid := ""
	d, err := newDocument(doc)
	if err == nil {
		err = d.root(func(xml.StartElement) error {
			return d.children(func(e xml.StartElement) error {
				if e.Name.Local != "uuid" {
					return d.dec.Skip()
				}
				return errors.Join(d.dec.DecodeElement(&uuid, &e), errEnough)
			})
		})
	}
	if normal, ok := normalUUID(uuid); ok {
		return normal, nil
	}
	if err == nil || errors.Is(err, errEnough) {
		err = errors.New("it has none")
	}
	return "", fmt.Errorf("cannot read the <uuid> of a document: %w", err)
}

// ParseStatus reads a status file of libvirt's QEMU driver (/run/libvirt/qemu/NAME.xml,
// root <domstatus>) and returns the live domain in it, with the backing chains and
// mirrors that libvirt has found.
func ParseStatus(doc []byte) (*Domain, error) {
	return parse(doc, "domstatus", func(p *parser) error {
		found := false
		err := p.doc.children(func(e xml.StartElement) error {
			if e.Name.Local != "domain" {
				return p.doc.dec.Skip()
			}
			if found {
				return errors.New("it has more than one <domain>")
			}
			found = true
			return p.domain()
		})
		if err == nil && !found {
			err = errors.New("it has no <domain>")
		}
		return err
	})
}

// parser fills a Domain while it goes through a document once. Only the elements of
// interest are decoded: an unknown shape elsewhere must not keep a guest from starting.
type parser struct {
	doc *document
	out Domain
}

func parse(doc []byte, root string, read func(*parser) error) (*Domain, error) {
	d, err := newDocument(doc)
	if err != nil {
		return nil, fmt.Errorf("cannot read <%s> document: %w", root, err)
	}
	p := &parser{doc: d}
	err = d.root(func(e xml.StartElement) error {
		if e.Name.Space != "" || e.Name.Local != root {
			return fmt.Errorf("its root is <%s>", e.Name.Local)
		}
		return read(p)
	})
	if err == nil {
		err = p.check()
	}
	switch {
	case err != nil && p.out.Name != "":
		return nil, fmt.Errorf("cannot read <%s> document of guest %q: %w", root, p.out.Name, err)
	case err != nil:
		return nil, fmt.Errorf("cannot read <%s> document: %w", root, err)
	}
	return &p.out, nil
}

// check refuses a domain without identity: a hold must belong to somebody.
func (p *parser) check() error {
	if p.out.Name == "" {
		return errors.New("it has no <name>")
	}
	if p.out.UUID == "" {
		return errors.New("it has no <uuid>")
	}
	uuid, ok := normalUUID(p.out.UUID)
	if !ok {
		return fmt.Errorf("its <uuid> %q is not a UUID", p.out.UUID)
	}
	p.out.UUID = uuid
	return nil
}

// domain reads the content of a <domain> element.
func (p *parser) domain() error {
	return p.doc.children(func(e xml.StartElement) error {
		switch e.Name.Local {
		case "name":
			return p.once(e, &p.out.Name)
		case "uuid":
			return p.once(e, &p.out.UUID)
		case "os":
			return p.doc.children(p.firmware)
		case "devices":
			return p.doc.children(p.device)
		}
		return p.doc.dec.Skip()
	})
}

// once decodes an element's text as it stands, white space and all: a guest's name may
// consist of anything.
func (p *parser) once(e xml.StartElement, into *string) error {
	var text string
	if err := p.doc.dec.DecodeElement(&text, &e); err != nil {
		return err
	}
	if *into != "" {
		return fmt.Errorf("it has more than one <%s>", e.Name.Local)
	}
	*into = text
	return nil
}

func (p *parser) device(e xml.StartElement) error {
	if e.Name.Local != "disk" {
		return p.doc.dec.Skip()
	}
	var x libvirtxml.DomainDisk
	if err := p.doc.dec.DecodeElement(&x, &e); err != nil {
		return fmt.Errorf("a disk of type %q: %w", attribute(e, "type"), err)
	}
	d, err := newDisk(&x)
	if err != nil {
		return err
	}
	p.add(d)
	return nil
}

func attribute(e xml.StartElement, name string) string {
	for _, a := range e.Attr {
		if a.Name.Space == "" && a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}

func (p *parser) add(d Disk) {
	if d.local() {
		p.out.Disks = append(p.out.Disks, d)
	}
}

// normalUUID returns a uuid in lower case; false if s is none.
func normalUUID(s string) (string, bool) {
	s = strings.ToLower(strings.TrimSpace(s))
	if len(s) != 36 {
		return "", false
	}
	for i, c := range s {
		switch i {
		case 8, 13, 18, 23:
			if c != '-' {
				return "", false
			}
		default:
			if !strings.ContainsRune("0123456789abcdef", c) {
				return "", false
			}
		}
	}
	return s, true
}
