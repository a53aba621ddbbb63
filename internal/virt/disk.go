package virt

import (
	"bytes"
	"encoding/xml"
	"fmt"
)

// replaceSource takes the <disk> element of a target out of a domain's document as it
// stands, byte by byte, but for the device in its <source>.
func replaceSource(doc []byte, target, from, to string) ([]byte, error) {
	dec := xml.NewDecoder(bytes.NewReader(doc))
	var path []string
	var begin, sourceBegin, sourceEnd int64
	name, device := "", ""
	for {
		at := dec.InputOffset()
		token, err := dec.Token()
		if err != nil {
			return nil, fmt.Errorf("it has no disk %s", target)
		}
		switch t := token.(type) {
		case xml.StartElement:
			path = append(path, t.Name.Local)
			switch {
			case is(path, "domain", "devices", "disk"):
				begin, name, device, sourceEnd = at, "", "", 0
			case is(path, "domain", "devices", "disk", "target"):
				name = attribute(t, "dev")
			case is(path, "domain", "devices", "disk", "source"):
				device, sourceBegin, sourceEnd = attribute(t, "dev"), at, dec.InputOffset()
			}
		case xml.EndElement:
			if is(path, "domain", "devices", "disk") && name == target {
				if device != from || sourceEnd == 0 {
					return nil, fmt.Errorf("it has disk %s at %q, not at %q", target, device, from)
				}
				return splice(doc, begin, sourceBegin, sourceEnd, dec.InputOffset(), from, to)
			}
			path = path[:len(path)-1]
		}
	}
}

// splice makes the element from its bytes with another device in the tag of its source.
func splice(doc []byte, begin, sourceBegin, sourceEnd, end int64, from, to string) ([]byte, error) {
	tag := doc[sourceBegin:sourceEnd]
	for _, quote := range []string{"'", `"`} {
		old := []byte("dev=" + quote + escape(from) + quote)
		if bytes.Count(tag, old) == 1 {
			changed := bytes.Replace(tag, old, []byte("dev="+quote+escape(to)+quote), 1)
			return bytes.Join([][]byte{doc[begin:sourceBegin], changed, doc[sourceEnd:end]}, nil), nil
		}
	}
	return nil, fmt.Errorf("the source %q is not understood", tag)
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
