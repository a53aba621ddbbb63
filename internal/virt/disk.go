package virt

import (
	"bytes"
	"cmp"
	"encoding/xml"
	"fmt"
	"regexp"
	"slices"
)

// DiskSource is where a disk lies: on a block device, or on a volume of a storage pool.
type DiskSource struct {
	Path         string
	Pool, Volume string
	// Format of the image, "raw" or "qcow2"; "": any, or as it is.
	Format string
}

// String is for messages.
func (s DiskSource) String() string {
	if s.Pool != "" {
		return s.Pool + "/" + s.Volume
	}
	return s.Path
}

func (s DiskSource) at(o DiskSource) bool {
	return s.Path == o.Path && s.Pool == o.Pool && s.Volume == o.Volume
}

// spans of an element's start tags, as offsets into the document.
type span struct{ begin, end int64 }

type diskElement struct {
	disk, driver, source span
	target               string
	at                   DiskSource
}

// replaceSource takes the <disk> element of a target out of a domain's document as it
// stands, byte by byte, but for where it lies and its format.
func replaceSource(doc []byte, target string, from, to DiskSource) ([]byte, error) {
	dec := xml.NewDecoder(bytes.NewReader(doc))
	var path []string
	var e diskElement
	for {
		at := dec.InputOffset()
		token, err := dec.Token()
		if err != nil {
			return nil, fmt.Errorf("it has no disk %s", target)
		}
		switch t := token.(type) {
		case xml.StartElement:
			path = append(path, t.Name.Local)
			e.begin(path, t, span{at, dec.InputOffset()})
		case xml.EndElement:
			if is(path, "domain", "devices", "disk") && e.target == target {
				if !e.at.at(from) || e.source.end == 0 {
					return nil, fmt.Errorf("it has disk %s at %q, not at %q", target, e.at, from)
				}
				return e.splice(doc, dec.InputOffset(), to)
			}
			path = path[:len(path)-1]
		}
	}
}

func (e *diskElement) begin(path []string, t xml.StartElement, s span) {
	switch {
	case is(path, "domain", "devices", "disk"):
		*e = diskElement{disk: s}
	case is(path, "domain", "devices", "disk", "target"):
		e.target = attribute(t, "dev")
	case is(path, "domain", "devices", "disk", "driver"):
		e.driver, e.at.Format = s, attribute(t, "type")
	case is(path, "domain", "devices", "disk", "source"):
		e.source = s
		e.at.Path, e.at.Pool, e.at.Volume = attribute(t, "dev"), attribute(t, "pool"), attribute(t, "volume")
		if e.at.Path == "" {
			e.at.Path = attribute(t, "file")
		}
	}
}

// tagEdit changes a start tag.
type tagEdit struct {
	span
	change func([]byte) ([]byte, error)
}

// splice makes the element from its bytes, with other attributes in some of its tags.
func (e *diskElement) splice(doc []byte, end int64, to DiskSource) ([]byte, error) {
	kind, place := "block", "dev="+quoted(to.Path)
	if to.Pool != "" {
		kind, place = "volume", "pool="+quoted(to.Pool)+" volume="+quoted(to.Volume)
	}
	out := append([]byte(nil), doc[e.disk.begin:end]...)
	edit := func(s span, change func([]byte) ([]byte, error)) error {
		at, to := s.begin-e.disk.begin, s.end-e.disk.begin
		tag, err := change(out[at:to:to])
		if err == nil {
			out = bytes.Join([][]byte{out[:at], tag, out[to:]}, nil)
		}
		return err
	}
	edits := []tagEdit{
		{e.disk, func(tag []byte) ([]byte, error) { return setAttribute(tag, "type", "type="+quoted(kind)) }},
		{e.driver, func(tag []byte) ([]byte, error) { return setAttribute(tag, "type", "type="+quoted(to.Format)) }},
		{e.source, func(tag []byte) ([]byte, error) {
			if e.at.Pool != "" {
				tag = attributeOf("volume").ReplaceAll(tag, nil)
			}
			return setAttribute(tag, "dev|file|pool", place)
		}},
	}
	if to.Format == "" || to.Format == e.at.Format || to.Format == "raw" && e.at.Format == "" {
		edits[1].change = nil
	} else if e.driver.end == 0 {
		return nil, fmt.Errorf("its <driver> with the format is missing")
	}
	// The last tag of the document first: the offsets of the others stay.
	slices.SortFunc(edits, func(a, b tagEdit) int { return cmp.Compare(b.begin, a.begin) })
	for _, each := range edits {
		if each.change == nil {
			continue
		}
		if err := edit(each.span, each.change); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func quoted(s string) string { return "'" + escape(s) + "'" }

// attributeOf matches one attribute of a start tag with the blank before it.
func attributeOf(names string) *regexp.Regexp {
	return regexp.MustCompile(`\s+(?:` + names + `)\s*=\s*(?:'[^']*'|"[^"]*")`)
}

// setAttribute replaces an attribute of a start tag that is there once.
func setAttribute(tag []byte, names, with string) ([]byte, error) {
	found := attributeOf(names).FindAllIndex(tag, -1)
	if len(found) != 1 {
		return nil, fmt.Errorf("%q is not understood", tag)
	}
	return bytes.Join([][]byte{tag[:found[0][0]], []byte(" " + with), tag[found[0][1]:]}, nil), nil
}

func is(path []string, want ...string) bool {
	if len(path) != len(want) {
		return false
	}
	for i, name := range want {
		if path[i] != name {
			return false
		}
	}
	return true
}

func attribute(e xml.StartElement, name string) string {
	for _, a := range e.Attr {
		if a.Name.Space == "" && a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}
