package domain

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// MarkSaved notes which guests have a managed-save image: a file NAME.save in libvirt's
// folder of them ("/var/lib/libvirt/qemu/save"). Such a guest goes on at its next start where
// it was, with what its memory knows of its disks' content.
func MarkSaved(guests []*Domain, dir string) error {
	for _, d := range guests {
		_, err := os.Lstat(filepath.Join(dir, d.Name+".save"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("cannot tell whether guest %s has a managed-save image: %w", d.Name, err)
		}
		d.Saved = err == nil
	}
	return nil
}
