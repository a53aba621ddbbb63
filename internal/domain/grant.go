package domain

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"sort"
	"strings"
)

// GrantNamespace is the XML namespace of our element in a domain's <metadata>.
const GrantNamespace = "urn:virtlvm:1"

// Grant is the mark of a live migration: the destination's `migrate` hook puts it into
// the domain's metadata, and only a `prepare` that carries it belongs to that migration
// and not to a plain start at the same moment.
type Grant struct {
	ID   string // made by the source
	From string // the source host's name
}

// GrantOf finds the grant in a <domain> document, as a hook gets it. Old grants can stay
// behind in definitions: one is good only if its source says so.
func GrantOf(doc []byte) (Grant, bool, error) {
	l, err := locateMetadata(doc)
	if err != nil || len(l.grants) == 0 {
		return Grant{}, false, err
	}
	return l.grants[len(l.grants)-1].grant, true, nil
}

// WithGrant returns the document with this grant and no other; all else stays byte for
// byte as libvirt wrote it.
func WithGrant(doc []byte, g Grant) ([]byte, error) {
	l, err := locateMetadata(doc)
	if err != nil {
		return nil, err
	}
	var attrs bytes.Buffer
	for _, a := range [][2]string{{"id", g.ID}, {"from", g.From}} {
		fmt.Fprintf(&attrs, " %s='", a[0])
		if err := xml.EscapeText(&attrs, []byte(a[1])); err != nil {
			return nil, fmt.Errorf("cannot write a grant: %w", err)
		}
		attrs.WriteByte('\'')
	}
	element := fmt.Sprintf("<virtlvm:grant xmlns:virtlvm='%s'%s/>", GrantNamespace, attrs.String())
	edits := []edit{l.insertion(element)}
	for _, old := range l.grants {
		edits = append(edits, edit{from: old.from, to: old.to})
	}
	return apply(doc, edits), nil
}

// edit replaces a span of a document.
type edit struct {
	from, to int64
	text     string
}

func apply(doc []byte, edits []edit) []byte {
	sort.Slice(edits, func(i, j int) bool { return edits[i].from < edits[j].from })
	var out bytes.Buffer
	at := int64(0)
	for _, e := range edits {
		out.Write(doc[at:e.from])
		out.WriteString(e.text)
		at = e.to
	}
	out.Write(doc[at:])
	return out.Bytes()
}

// spot is where a grant stands, or can stand, in a document.
type spot struct {
	grants []struct {
		from, to int64
		grant    Grant
	}
	metaFrom, metaTo int64 // the start tag of <metadata>; 0, 0: there is none
	metaEmpty        bool  // <metadata/>
	afterName        int64 // behind </name>, where every domain has one
}

func (l spot) insertion(element string) edit {
	switch {
	case l.metaTo == 0:
		return edit{l.afterName, l.afterName, "<metadata>" + element + "</metadata>"}
	case l.metaEmpty:
		return edit{l.metaFrom, l.metaTo, "<metadata>" + element + "</metadata>"}
	}
	return edit{l.metaTo, l.metaTo, element}
}

// locateMetadata goes once through a <domain> document.
func locateMetadata(doc []byte) (spot, error) {
	var l spot
	if bytes.Contains(doc, []byte("<!DOCTYPE")) || bytes.Contains(doc, []byte("<!ENTITY")) {
		return l, errors.New("cannot read the domain's metadata: it declares entities")
	}
	dec := xml.NewDecoder(bytes.NewReader(doc))
	var path []string
	var open *Grant
	var openFrom int64
	for {
		from := dec.InputOffset()
		token, err := dec.Token()
		to := dec.InputOffset()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return l, fmt.Errorf("cannot read the domain's metadata: %s", oneLine(err.Error()))
		}
		switch t := token.(type) {
		case xml.StartElement:
			path = append(path, t.Name.Local)
			where := strings.Join(path, "/")
			switch {
			case where == "domain/metadata" && t.Name.Space == "":
				l.metaFrom, l.metaTo = from, to
				l.metaEmpty = bytes.HasSuffix(doc[from:to], []byte("/>"))
			case where == "domain/metadata/grant" && t.Name.Space == GrantNamespace:
				open, openFrom = &Grant{ID: attribute(t, "id"), From: attribute(t, "from")}, from
			}
		case xml.EndElement:
			switch strings.Join(path, "/") {
			case "domain/name":
				l.afterName = to
			case "domain/metadata/grant":
				if open != nil && t.Name.Space == GrantNamespace {
					l.grants = append(l.grants, struct {
						from, to int64
						grant    Grant
					}{openFrom, to, *open})
					open = nil
				}
			}
			path = path[:len(path)-1]
		}
	}
	if l.afterName == 0 {
		return l, errors.New("cannot read the domain's metadata: it has no name")
	}
	return l, nil
}
