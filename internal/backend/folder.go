package backend

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// record is job.json.
type record struct {
	BootID     string     `json:"boot_id"`
	Created    time.Time  `json:"created"`
	Steps      [][]string `json:"steps"`
	StopSignal int        `json:"stop_signal"`
}

// folder is the folder of one job.
type folder string

func (f folder) path(name string) string { return filepath.Join(string(f), name) }

// make writes the folder whole, on disk when it returns, or finds it there already: then
// it must be of the same job. found are its steps with the paths of their programs.
func (f folder) make(r record, found [][]string) error {
	have, err := f.read()
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case !slices.EqualFunc(have.Steps, r.Steps, func(a, b []string) bool { return slices.Equal(a, b) }):
		return fmt.Errorf("there is another job of that name in %s", f)
	default:
		begun, err := f.begun()
		if err != nil || begun || have.BootID == r.BootID {
			return err
		}
		// Made before a reboot, and never begun.
		if err := os.RemoveAll(string(f)); err != nil {
			return err
		}
	}
	temp := folder(string(f) + ".new")
	if err := errors.Join(os.RemoveAll(string(temp)), os.MkdirAll(temp.path("ready"), 0o700)); err != nil {
		return err
	}
	doc, err := json.Marshal(r)
	if err != nil {
		return err
	}
	files := map[string]string{
		"job.json": string(doc), "job.sh": script(string(f), found), "lock": "", "out": "", "err": "",
		// Made now, so that a disk that is full then has room for them.
		"step": "0\n", "end.new": strings.Repeat(" ", 64),
	}
	for name, content := range files {
		if err := writeSynced(temp.path(name), content); err != nil {
			return err
		}
	}
	if err := syncDir(string(temp)); err != nil {
		return err
	}
	if err := os.Rename(string(temp), string(f)); err != nil {
		return err
	}
	return syncDir(filepath.Dir(string(f)))
}

func writeSynced(path, content string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.WriteString(content)
	return errors.Join(err, file.Sync(), file.Close())
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func (f folder) read() (record, error) {
	var r record
	doc, err := os.ReadFile(f.path("job.json"))
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(doc, &r); err != nil {
		return r, fmt.Errorf("cannot read %s: %w", f.path("job.json"), err)
	}
	return r, nil
}

// begun: job.sh has begun once.
func (f folder) begun() (bool, error) {
	for _, name := range []string{"ready", "revoked"} {
		if _, err := os.Stat(f.path(name)); !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
	}
	return true, nil
}

// locked: a process of the job lives.
func (f folder) locked() (bool, error) {
	file, err := os.Open(f.path("lock"))
	if err != nil {
		return false, err
	}
	defer func() { _ = file.Close() }()
	err = unix.Flock(int(file.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, nil
	}
	return false, err // the lock goes with the file
}

// end reads the exit record; found is false where there is none yet.
func (f folder) end() (code int, at time.Time, found bool, err error) {
	text, err := os.ReadFile(f.path("end"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, at, false, nil
	}
	if err != nil {
		return 0, at, false, err
	}
	words := strings.Fields(string(text))
	if len(words) != 2 {
		return 0, at, false, fmt.Errorf("cannot read the exit record %s: %q", f.path("end"), text)
	}
	code, err = strconv.Atoi(words[0])
	seconds, err2 := strconv.ParseInt(words[1], 10, 64)
	if err := errors.Join(err, err2); err != nil {
		return 0, at, false, fmt.Errorf("cannot read the exit record %s: %w", f.path("end"), err)
	}
	return code, time.Unix(seconds, 0), true, nil
}

// step is the step that has begun last; 0 where none has, or it cannot be told.
func (f folder) step() int {
	text, err := os.ReadFile(f.path("step"))
	if err != nil {
		return 0
	}
	n, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return n
}

// tail reads the end of a file of output.
func (f folder) tail(name string) (string, error) {
	file, err := os.Open(f.path(name))
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return "", err
	}
	from := max(0, info.Size()-maxTail)
	data, err := io.ReadAll(io.NewSectionReader(file, from, maxTail))
	return string(data), err
}

// maxTail is how much of a job's output is read back, in bytes: its last words.
const maxTail = 16 << 10
