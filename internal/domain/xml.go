package domain

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"
)

// Limits of a document. Domains with hundreds of disks stay far below them; what is
// above is refused before it can cost memory or stack.
const (
	maxBytes   = 32 << 20
	maxNesting = 512
)

// document reads one XML document. Libvirt writes UTF-8 without a document type; a
// document with one could define entities, and is refused.
type document struct {
	raw     *xml.Decoder // lexical; knows the position
	dec     *xml.Decoder // matches tags, fed by Token below
	nesting int
}

func newDocument(doc []byte) (*document, error) {
	switch {
	case len(doc) > maxBytes:
		return nil, fmt.Errorf("the document has %d bytes, more than %d", len(doc), maxBytes)
	case len(bytes.TrimSpace(doc)) == 0:
		return nil, errors.New("the document is empty")
	case !utf8.Valid(doc):
		return nil, errors.New("the document is not UTF-8")
	}
	d := &document{raw: xml.NewDecoder(bytes.NewReader(doc))}
	d.dec = xml.NewTokenDecoder(d)
	return d, nil
}

// Token is the lexical layer of dec: every token passes here, also those that a
// library decodes, so that limits hold everywhere.
func (d *document) Token() (xml.Token, error) {
	t, err := d.raw.RawToken()
	switch t.(type) {
	case xml.StartElement:
		if d.nesting++; d.nesting > maxNesting {
			return nil, fmt.Errorf("elements are nested deeper than %d", maxNesting)
		}
	case xml.EndElement:
		d.nesting--
	case xml.Directive:
		return nil, errors.New("document types and entities are not accepted")
	}
	return t, err
}

// root calls read for the document's only element. Nothing but white space, comments
// and processing instructions may stand beside it.
func (d *document) root(read func(xml.StartElement) error) error {
	seen := false
	for {
		t, err := d.dec.Token()
		switch {
		case errors.Is(err, io.EOF) && seen:
			return nil
		case errors.Is(err, io.EOF):
			return errors.New("the document has no element")
		case err != nil:
			return d.at(err)
		}
		switch t := t.(type) {
		case xml.StartElement:
			if seen {
				return fmt.Errorf("the document has a second root, <%s>", t.Name.Local)
			}
			seen = true
			if err := read(t); err != nil {
				return d.at(err)
			}
		case xml.CharData:
			if len(bytes.TrimSpace(bytes.TrimPrefix(t, []byte("\ufeff")))) > 0 {
				return errors.New("the document has text outside of its root")
			}
		}
	}
}

// children calls read for each child element of the one just opened, up to its end. An
// element that belongs to a namespace is somebody's extension and is skipped.
func (d *document) children(read func(xml.StartElement) error) error {
	for {
		t, err := d.dec.Token()
		if err != nil {
			return err
		}
		switch t := t.(type) {
		case xml.StartElement:
			if t.Name.Space != "" {
				err = d.dec.Skip()
			} else {
				err = read(t)
			}
			if err != nil {
				return err
			}
		case xml.EndElement:
			return nil
		}
	}
}

// at adds the line to a syntax error: the matching layer does not know it.
func (d *document) at(err error) error {
	var syntax *xml.SyntaxError
	if !errors.As(err, &syntax) {
		return err
	}
	number, _ := d.raw.InputPos()
	return fmt.Errorf("line %d: %s", number, oneLine(syntax.Msg))
}
