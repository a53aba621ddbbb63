package domain

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// device is what stands at the end of a path.
type device struct {
	exists bool
	dm     bool   // a device-mapper device
	uuid   string // dm uuid, "" if it has none
	name   string // dm name
}

// lookUp finds the device at the end of a path, which it follows through all links.
func (r *Resolver) lookUp(path string) (device, error) {
	end, err := newTrail(r.Root, path).end()
	if err != nil {
		return device{}, err
	}
	if kernel, ok := dmNode(end); ok {
		return r.dmDevice("/sys/block/" + kernel)
	}
	return r.node(end)
}

// dmNode recognises the kernel's name of a device-mapper device, /dev/dm-N.
func dmNode(path string) (string, bool) {
	kernel, ok := strings.CutPrefix(path, "/dev/")
	n, isDM := strings.CutPrefix(kernel, "dm-")
	if !ok || !isDM || n == "" || strings.Trim(n, "0123456789") != "" {
		return "", false
	}
	return kernel, true
}

// node looks at a file that is no link. A block device is told by its number: it may
// have been made with mknod, or stand in a chroot.
func (r *Resolver) node(path string) (device, error) {
	var st unix.Stat_t
	err := unix.Lstat(r.Root+path, &st)
	switch {
	case missing(err):
		return device{}, nil
	case err != nil:
		return device{}, fmt.Errorf("cannot look at %q: %w", path, err)
	case st.Mode&unix.S_IFMT != unix.S_IFBLK:
		return device{exists: true}, nil
	}
	d, err := r.dmDevice(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev)))
	d.exists = true
	return d, err
}

// dmDevice reads the identity of a block device from sysfs (dm/uuid and dm/name, one
// line each; kernel's Documentation/ABI/testing/sysfs-block-dm).
func (r *Resolver) dmDevice(sys string) (device, error) {
	uuid, err := os.ReadFile(r.Root + sys + "/dm/uuid")
	if missing(err) {
		return device{}, nil
	}
	if err != nil {
		return device{}, fmt.Errorf("cannot read the identity of a device: %w", err)
	}
	name, err := os.ReadFile(r.Root + sys + "/dm/name")
	if err != nil {
		return device{}, fmt.Errorf("cannot read the identity of a device: %w", err)
	}
	return device{
		exists: true,
		dm:     true,
		uuid:   strings.TrimSpace(string(uuid)),
		name:   strings.TrimSpace(string(name)),
	}, nil
}

// exists reports whether anything is at the end of a path, or cannot be ruled out.
func (r *Resolver) exists(path string) bool {
	end, err := newTrail(r.Root, path).end()
	if err != nil {
		return true
	}
	if _, err = os.Lstat(r.Root + end); err != nil {
		return !missing(err)
	}
	return true
}
