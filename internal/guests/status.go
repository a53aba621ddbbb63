package guests

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// errShape is a document that is no status file as we know them.
var errShape = errors.New("not a libvirt status file of a known shape")

// parseStatus reads a status document. On error the guest holds what could be read, its
// uuid if nothing else.
func parseStatus(doc []byte) (Guest, error) {
	g := Guest{XML: doc, Job: Job{Type: "none", Async: "none"}}
	dec := xml.NewDecoder(bytes.NewReader(doc))
	root, err := nextElement(dec)
	if err != nil {
		return g, err
	}
	if root == nil || root.Name.Local != "domstatus" {
		return g, fmt.Errorf("%w: the root is not <domstatus>", errShape)
	}
	g.State, g.Reason = attr(root, "state"), attr(root, "reason")
	pid, pidErr := strconv.ParseUint(attr(root, "pid"), 10, 31)
	g.PID = int(pid)

	domains := 0
	jobErr := error(nil)
	for {
		child, err := nextElement(dec)
		if err != nil {
			return g, err
		}
		if child == nil {
			break
		}
		switch child.Name.Local {
		case "domain":
			domains++
			err = g.parseDomain(dec)
		case "job":
			jobErr = g.parseJob(child)
			err = dec.Skip()
		case "qemuCaps":
			g.DropsCache, err = hasFlag(dec, "migration-file-drop-cache")
		case "blockjobs":
			g.BlockJobs = attr(child, "active") != "no"
			err = dec.Skip()
		default:
			err = dec.Skip()
		}
		if err != nil {
			return g, wellFormed(err)
		}
	}
	if err := atEnd(dec); err != nil {
		return g, err
	}
	switch {
	case g.State == "":
		err = fmt.Errorf("%w: no state", errShape)
	case pidErr != nil:
		err = fmt.Errorf("%w: no valid pid", errShape)
	case domains != 1:
		err = fmt.Errorf("%w: %d domains in it", errShape, domains)
	case g.Name == "":
		err = fmt.Errorf("%w: the domain has no name", errShape)
	case g.UUID == "":
		err = fmt.Errorf("%w: the domain has no valid uuid", errShape)
	case jobErr != nil:
		err = jobErr
	}
	return g, err
}

func (g *Guest) parseJob(e *xml.StartElement) error {
	g.Job = Job{Type: attr(e, "type"), Async: attr(e, "async"), Phase: attr(e, "phase")}
	flags := attr(e, "flags")
	if flags == "" {
		return nil
	}
	var err error
	if g.Job.Flags, err = strconv.ParseUint(flags, 0, 64); err != nil {
		return fmt.Errorf("%w: flags of the job", errShape)
	}
	return nil
}

// hasFlag looks for <flag name='...'/> in the element that is open, and goes past its end.
func hasFlag(dec *xml.Decoder, name string) (found bool, err error) {
	for {
		flag, err := nextElement(dec)
		if err != nil || flag == nil {
			return found, err
		}
		found = found || flag.Name.Local == "flag" && attr(flag, "name") == name
		if err := dec.Skip(); err != nil {
			return found, err
		}
	}
}

// parseDomain reads name and uuid, which stand directly below <domain>, and goes past
// its end.
func (g *Guest) parseDomain(dec *xml.Decoder) error {
	for {
		child, err := nextElement(dec)
		if err != nil || child == nil {
			return err
		}
		var into *string
		switch child.Name.Local {
		case "name":
			into = &g.Name
		case "uuid":
			into = &g.UUID
		default:
			if err := dec.Skip(); err != nil {
				return err
			}
			continue
		}
		if *into != "" {
			return fmt.Errorf("%w: more than one <%s>", errShape, child.Name.Local)
		}
		if *into, err = text(dec); err != nil {
			return err
		}
		if into == &g.UUID {
			g.UUID = canonicalUUID(g.UUID)
		}
	}
}

// nextElement is the next child of the element that is open, nil at its end.
func nextElement(dec *xml.Decoder) (*xml.StartElement, error) {
	for {
		token, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("%w: it is empty", errShape)
		}
		if err != nil {
			return nil, wellFormed(err)
		}
		switch t := token.(type) {
		case xml.StartElement:
			return &t, nil
		case xml.EndElement:
			return nil, nil
		}
	}
}

// atEnd makes sure that nothing follows the root: two documents in one file are none.
func atEnd(dec *xml.Decoder) error {
	for {
		token, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return wellFormed(err)
		}
		if data, ok := token.(xml.CharData); ok && len(bytes.TrimSpace(data)) == 0 {
			continue
		}
		if _, ok := token.(xml.Comment); ok {
			continue
		}
		return fmt.Errorf("%w: more than one document", errShape)
	}
}

// text is the content of the element that is open, up to and with its end.
func text(dec *xml.Decoder) (string, error) {
	var s strings.Builder
	for {
		token, err := dec.Token()
		if err != nil {
			return "", err
		}
		switch t := token.(type) {
		case xml.CharData:
			s.Write(t)
		case xml.StartElement:
			return "", fmt.Errorf("%w: elements where text should be", errShape)
		case xml.EndElement:
			return s.String(), nil
		}
	}
}

// wellFormed is a decoder's error without its words: they quote the document, which may
// hold secrets.
func wellFormed(err error) error {
	var syntax *xml.SyntaxError
	switch {
	case errors.Is(err, errShape):
		return err
	case errors.As(err, &syntax):
		return fmt.Errorf("it is no well-formed XML (line %d)", syntax.Line)
	}
	return errors.New("it is no well-formed XML")
}

func attr(e *xml.StartElement, name string) string {
	for _, a := range e.Attr {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}

// canonicalUUID is the uuid in lower case, empty where it is none.
func canonicalUUID(s string) string {
	s = strings.ToLower(strings.TrimSpace(s))
	if len(s) != 36 {
		return ""
	}
	for i, c := range []byte(s) {
		switch i {
		case 8, 13, 18, 23:
			if c != '-' {
				return ""
			}
		default:
			if !strings.ContainsRune("0123456789abcdef", rune(c)) {
				return ""
			}
		}
	}
	return s
}
