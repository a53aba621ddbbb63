package guests

import (
	"crypto/sha256"
	"maps"
	"slices"
)

// said is what a status file says. Most files are the same at every look, and to read one
// of a real guest takes a hundred times as long as its checksum; a host with many guests
// looks at all of them in each hook call.
type said struct {
	sum   [sha256.Size]byte // of the document: neither its time nor its inode can be trusted
	guest Guest             // without the document
	err   error
}

// parsed is parseStatus, of a document that may be known.
func (o *Observer) parsed(name string, doc []byte) (Guest, error) {
	sum := sha256.Sum256(doc)
	o.mu.Lock()
	now, ok := o.said[name]
	o.mu.Unlock()
	if !ok || now.sum != sum {
		now = said{sum: sum}
		now.guest, now.err = parseStatus(doc)
		now.guest.XML = nil
		o.mu.Lock()
		o.said[name] = now
		o.mu.Unlock()
	}
	now.guest.XML = doc
	return now.guest, now.err
}

// forget drops what was said of guests other than these, which are sorted.
func (o *Observer) forget(names []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	maps.DeleteFunc(o.said, func(name string, _ said) bool {
		_, found := slices.BinarySearch(names, name)
		return !found
	})
}
