package fakevirt

import (
	"encoding/binary"
	"fmt"
	"reflect"
	"sync"

	"libvirt.org/go/libvirtxml"
)

// maxDocuments bounds what Documents remember of each kind.
const maxDocuments = 2000

// Documents remember domains and their XML, for tests that read and write the same few very
// often: a simulation did little else. Hosts may share them. Nil remembers nothing.
type Documents struct {
	mu      sync.Mutex
	domains map[string]*libvirtxml.Domain // by their documents
	xml     map[string]string             // by all that is in a domain, see appendValue
	inFile  map[string]string             // what stands in a status file, by the document
}

// NewDocuments makes Documents.
func NewDocuments() *Documents {
	return &Documents{domains: map[string]*libvirtxml.Domain{}, xml: map[string]string{}, inFile: map[string]string{}}
}

// read parses a document. The domain is the caller's own.
func (d *Documents) read(doc string) (*libvirtxml.Domain, error) {
	if d == nil {
		dom := &libvirtxml.Domain{}
		return dom, dom.Unmarshal(doc)
	}
	known, err := remembered(d, d.domains, doc, func() (*libvirtxml.Domain, error) {
		dom := &libvirtxml.Domain{}
		return dom, dom.Unmarshal(doc)
	})
	if err != nil {
		return nil, err
	}
	dom := *known
	unshare(reflect.ValueOf(&dom).Elem())
	return &dom, nil
}

// xmlOf is a domain as a hook gets it.
func (d *Documents) xmlOf(dom *libvirtxml.Domain) string {
	write := func() (string, error) {
		doc, err := dom.Marshal()
		if err != nil {
			// What was unmarshalled by the same library; a defect of the fake.
			panic(fmt.Sprintf("cannot write domain %s: %v", dom.Name, err))
		}
		return doc + "\n", nil
	}
	var doc string
	if d == nil {
		doc, _ = write()
		return doc
	}
	doc, _ = remembered(d, d.xml, string(appendValue(nil, reflect.ValueOf(dom).Elem())), write)
	return doc
}

// inStatus is change(doc).
func (d *Documents) inStatus(doc string, change func(string) string) string {
	if d == nil {
		return change(doc)
	}
	changed, _ := remembered(d, d.inFile, doc, func() (string, error) { return change(doc), nil })
	return changed
}

// clone is a domain that has been written and read again.
func (d *Documents) clone(dom *libvirtxml.Domain) *libvirtxml.Domain {
	c, err := d.read(d.xmlOf(dom))
	if err != nil {
		// What was marshalled by the same library; a defect of the fake.
		panic(fmt.Sprintf("cannot read domain %s: %v", dom.Name, err))
	}
	return c
}

func remembered[V any](d *Documents, known map[string]V, key string, find func() (V, error)) (V, error) {
	d.mu.Lock()
	v, ok := known[key]
	d.mu.Unlock()
	if ok {
		return v, nil
	}
	v, err := find()
	if err != nil {
		return v, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(known) >= maxDocuments {
		clear(known)
	}
	known[key] = v
	return v, nil
}

// unshare copies all that v leads to.
func unshare(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			own := reflect.New(v.Type().Elem())
			own.Elem().Set(v.Elem())
			unshare(own.Elem())
			v.Set(own)
		}
	case reflect.Slice:
		if !v.IsNil() {
			own := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
			reflect.Copy(own, v)
			for i := range own.Len() {
				unshare(own.Index(i))
			}
			v.Set(own)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			unshare(v.Field(i))
		}
	case reflect.String, reflect.Int, reflect.Int64, reflect.Uint, reflect.Uint64:
	default:
		panic("a domain has a " + v.Type().String())
	}
}

// appendValue appends what tells v from other values of its type.
func appendValue(b []byte, v reflect.Value) []byte {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return append(b, 0)
		}
		return appendValue(append(b, 1), v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Field(i); !f.IsZero() {
				b = appendValue(binary.AppendUvarint(b, uint64(i+1)), f)
			}
		}
		return append(b, 0)
	case reflect.Slice:
		b = binary.AppendUvarint(b, uint64(v.Len()))
		for i := range v.Len() {
			b = appendValue(b, v.Index(i))
		}
		return b
	case reflect.String:
		return append(binary.AppendUvarint(b, uint64(v.Len())), v.String()...)
	case reflect.Int, reflect.Int64:
		return binary.AppendVarint(b, v.Int())
	case reflect.Uint, reflect.Uint64:
		return binary.AppendUvarint(b, v.Uint())
	}
	panic("a domain has a " + v.Type().String())
}
