package guests

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// maxStatus is the largest status file that is read, in bytes.
const maxStatus = 64 << 20

const statusSuffix = ".xml"

// Observe looks at all guests now. The error is about the directory as a whole; then
// nothing is known of any guest. What is wrong with a single file is in Snapshot.Unknown.
func (o *Observer) Observe() (Snapshot, error) {
	s := Snapshot{ByUUID: map[string]Guest{}}
	known := o.known()
	names, noDir, err := o.names(known)
	if err != nil {
		return Snapshot{}, err
	}
	s.NoDir = noDir
	o.forget(names)
	for _, name := range names {
		path := filepath.Join(o.dir, name+statusSuffix)
		doc, err := readStatus(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var g Guest
		if err == nil {
			g, err = o.parsed(name, doc)
		}
		if err == nil && g.Name != name {
			err = fmt.Errorf("%w: the guest in it has another name", errShape)
		}
		if err != nil {
			s.Unknown = append(s.Unknown, UnknownFile{Path: path, Name: name, UUID: g.UUID, Reason: err.Error()})
			continue
		}
		s.add(g, path)
	}
	o.outlived(&s, known)
	for uuid, g := range s.ByUUID {
		o.checkProcess(&g, known[uuid])
		if g.Alive == Gone && g.State == "" {
			delete(s.ByUUID, uuid)
			continue
		}
		s.ByUUID[uuid] = g
	}
	o.remember(s)
	return s, nil
}

// add puts a guest into the snapshot. Of two files with one uuid neither is believed.
func (s *Snapshot) add(g Guest, path string) {
	const reason = "two status files have the same uuid"
	unknown := func(name, path string) {
		s.Unknown = append(s.Unknown, UnknownFile{Path: path, Name: name, UUID: g.UUID, Reason: reason})
	}
	if twin, found := s.ByUUID[g.UUID]; found {
		delete(s.ByUUID, g.UUID)
		unknown(twin.Name, filepath.Join(filepath.Dir(path), twin.Name+statusSuffix))
		unknown(g.Name, path)
		return
	}
	for _, u := range s.Unknown {
		if u.UUID == g.UUID {
			unknown(g.Name, path)
			return
		}
	}
	s.ByUUID[g.UUID] = g
}

// outlived adds the guests that had a status file at the last look and have none now, to
// see whether their QEMU is really gone: libvirt removes the file even if it could not
// kill the process. Their State is empty.
func (o *Observer) outlived(s *Snapshot, known map[string]Guest) {
	for uuid, g := range known {
		_, found := s.ByUUID[uuid]
		unknown := slices.ContainsFunc(s.Unknown, func(u UnknownFile) bool { return u.UUID == uuid || u.Name == g.Name })
		if found || unknown {
			continue
		}
		s.ByUUID[uuid] = Guest{Name: g.Name, UUID: uuid, PID: g.PID}
	}
}

// names are the guests that may have a status file, sorted. Whoever asks opens each file
// by its name, which libvirt's rename never makes fail.
func (o *Observer) names(known map[string]Guest) (names []string, noDir bool, err error) {
	set := map[string]struct{}{}
	for _, g := range known {
		set[g.Name] = struct{}{}
	}
	// A listing made while a file is replaced can miss both its old and its new entry.
	// So list twice, take a file on its way in (NAME.xml.new) for the file itself, and
	// ask for those of the last look anyway.
	entries, err := listTwice(o.dir)
	if noDir = errors.Is(err, fs.ErrNotExist); err != nil && !noDir {
		return nil, false, fmt.Errorf("cannot list guests: %w", err)
	}
	for _, name := range entries {
		base := strings.TrimSuffix(name, ".new")
		if name, ok := strings.CutSuffix(base, statusSuffix); ok && name != "" {
			set[name] = struct{}{}
		}
	}
	return slices.Sorted(maps.Keys(set)), noDir, nil
}

// listTwice is what a folder holds at one moment or the next, in no order.
func listTwice(dir string) ([]string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	first, err := f.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	second, err := f.Readdirnames(-1)
	return append(first, second...), err
}

// readStatus reads one file whole. A link is refused: libvirt makes none.
func readStatus(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ELOOP) {
		return nil, errors.New("it is a symbolic link")
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read status file: %w", err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("cannot read status file: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("it is no plain file")
	}
	if info.Size() > maxStatus {
		return nil, fmt.Errorf("it is larger than %d MiB", maxStatus>>20)
	}
	// Replaced, never written to: its size stays.
	doc := bytes.NewBuffer(make([]byte, 0, info.Size()+bytes.MinRead))
	if _, err := doc.ReadFrom(io.LimitReader(f, maxStatus)); err != nil {
		return nil, fmt.Errorf("cannot read status file: %w", err)
	}
	return doc.Bytes(), nil
}
