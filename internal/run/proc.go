package run

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Places in /proc/PID/stat after the closing parenthesis of the program's name, which
// is field 2 (proc_pid_stat(5)): the state is field 3, the start time field 22.
const (
	statState = 0
	statStart = 22 - 3
)

// ProcessStart returns when the process began, in clock ticks since boot. Together with
// the pid it names one process for as long as the host is up.
func ProcessStart(pid int) (uint64, error) {
	_, start, err := processStat(pid)
	return start, err
}

// ProcessAlive reports whether the very process that had pid and start still runs. A
// zombie has ended: it holds no lock and no device any more. When /proc cannot be read
// for another reason than the process being gone, it counts as alive.
func ProcessAlive(pid int, start uint64) bool {
	state, at, err := processStat(pid)
	if err != nil {
		return !gone(err)
	}
	return at == start && state != 'Z' && state != 'X'
}

// errNoProcess is a pid that no process can have.
var errNoProcess = errors.New("not a process id")

// gone tells "there is no such process" from "it could not be looked at".
func gone(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, errNoProcess) || errors.Is(err, syscall.ESRCH)
}

// processStat reads state and start time from /proc/PID/stat.
func processStat(pid int) (state byte, start uint64, err error) {
	if pid <= 0 {
		return 0, 0, fmt.Errorf("cannot look at process %d: %w", pid, errNoProcess)
	}
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, 0, fmt.Errorf("cannot look at process %d: %w", pid, err)
	}
	state, start, err = parseStat(data)
	if err != nil {
		return 0, 0, fmt.Errorf("cannot look at process %d: %w", pid, err)
	}
	return state, start, nil
}

// parseStat takes the last parenthesis as the end of the program's name: the name may
// hold spaces and parentheses, the numbers after it cannot.
func parseStat(data []byte) (state byte, start uint64, err error) {
	end := bytes.LastIndexByte(data, ')')
	if end < 0 {
		return 0, 0, errors.New("its stat file has no name")
	}
	fields := bytes.Fields(data[end+1:])
	if len(fields) <= statStart || len(fields[statState]) != 1 {
		return 0, 0, errors.New("its stat file is cut short")
	}
	start, err = strconv.ParseUint(string(fields[statStart]), 10, 64)
	if err != nil {
		return 0, 0, fmt.Errorf("its stat file has no start time: %w", err)
	}
	return fields[statState][0], start, nil
}

// Process is a running process, told from a later one of the same pid by its start time
// in clock ticks since boot.
type Process struct {
	PID   int
	Start uint64
}

// FindProcesses lists the running processes whose command line is argv, the program given
// by its name or by a path that ends in it.
func FindProcesses(argv []string) []Process {
	entries, err := os.ReadDir("/proc")
	if err != nil || len(argv) == 0 {
		return nil
	}
	var all []Process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		data, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err != nil || len(data) == 0 {
			continue
		}
		line := strings.Split(strings.TrimSuffix(string(data), "\x00"), "\x00")
		if filepath.Base(line[0]) != argv[0] || !slices.Equal(line[1:], argv[1:]) {
			continue
		}
		if start, err := ProcessStart(pid); err == nil {
			all = append(all, Process{pid, start})
		}
	}
	return all
}
