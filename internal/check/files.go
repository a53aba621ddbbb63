package check

import (
	"bytes"
	"io/fs"
	"iter"
	"strconv"
	"strings"
)

// settings reads a file of "key = value" lines; comments begin with #. A file that cannot
// be read has none.
func settings(root fs.FS, path string) map[string]string {
	values := map[string]string{}
	data, err := fs.ReadFile(root, path)
	if err != nil {
		return values
	}
	for line := range strings.Lines(string(data)) {
		line, _, _ = strings.Cut(line, "#")
		if key, value, ok := strings.Cut(line, "="); ok {
			values[strings.TrimSpace(key)] = strings.Trim(strings.TrimSpace(value), `"`)
		}
	}
	return values
}

// number reads a file with one number, 0 where it cannot.
func number(root fs.FS, path string) int64 {
	data, err := fs.ReadFile(root, path)
	if err != nil {
		return 0
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// line reads a file with one line, "" where it cannot.
func line(root fs.FS, path string) string {
	data, err := fs.ReadFile(root, path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

func fields(s string) iter.Seq[string] { return strings.FieldsSeq(s) }

// processes lists the running programs of some names, by what /proc/PID/comm and stat say
// (proc_pid_stat(5)).
func processes(proc fs.FS, names ...string) ([]Process, error) {
	entries, err := fs.ReadDir(proc, ".")
	if err != nil {
		return nil, err
	}
	var all []Process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		name := line(proc, e.Name()+"/comm")
		for _, want := range names {
			if name != want {
				continue
			}
			data, err := fs.ReadFile(proc, e.Name()+"/stat")
			if err != nil {
				continue // it has ended meanwhile
			}
			all = append(all, Process{Name: name, PID: pid, Start: startOf(data)})
		}
	}
	return all, nil
}

// startOf takes the start time, field 22, from a stat file: the name, field 2, may hold
// anything but ends with the last parenthesis.
func startOf(stat []byte) uint64 {
	const start = 22 - 3
	f := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(f) <= start {
		return 0
	}
	n, err := strconv.ParseUint(string(f[start]), 10, 64)
	if err != nil {
		return 0
	}
	return n
}
