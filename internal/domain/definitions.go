package domain

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// ReadDefinitions reads the guests that libvirt's QEMU driver has defined, from its folder
// ("/etc/libvirt/qemu", a file NAME.xml each) and without calling it. A missing folder
// means that there are none; a file that cannot be read or understood is an error, since
// it may name anything.
func ReadDefinitions(dir string) ([]*Domain, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot list the guests that are defined: %w", err)
	}
	var all []*Domain
	for _, e := range entries {
		if e.IsDir() || !strings.HasSuffix(e.Name(), ".xml") {
			continue
		}
		doc, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // undefined meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read a guest's definition: %w", err)
		}
		d, err := Parse(doc)
		if err != nil {
			return nil, fmt.Errorf("cannot read the definition %s: %w", filepath.Join(dir, e.Name()), err)
		}
		all = append(all, d)
	}
	return all, nil
}
