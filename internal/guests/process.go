package guests

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// maxCmdline is the most of a command line that is read, in bytes.
const maxCmdline = 4 << 20

// pfKthread marks a kernel thread in the flags of /proc/PID/stat (linux/sched.h).
const pfKthread = 0x00200000

// procStat is what is needed of /proc/PID/stat (proc_pid_stat(5)).
type procStat struct {
	state byte   // field 3: 'R', 'S', 'D', 'Z', 'X', ...
	flags uint64 // field 9
	start uint64 // field 22, clock ticks since boot
}

// checkProcess fills in Alive, Start and Note: whether the process the status file names
// exists and is this guest's QEMU. was is what the last look found of the guest.
func (o *Observer) checkProcess(g *Guest, was Guest) {
	hasFile := g.State != ""
	if !hasFile {
		// Only the process speaks for it now.
		g.State, g.Note = "unknown", "libvirt has removed its status file, but its process is still there"
	}
	if g.PID == 0 {
		g.Note = "libvirt names no process"
		return
	}
	dir := filepath.Join(o.proc, strconv.Itoa(g.PID))
	stat, err := readStat(filepath.Join(dir, "stat"))
	same := was.PID == g.PID && was.seen == stat.start
	switch {
	case noProcess(err):
		g.Alive = Gone
	case err != nil:
		g.Note = "its process cannot be looked at: " + err.Error()
	case !hasFile && !same:
		g.Alive = Gone
	case stat.state == 'Z' || stat.state == 'X':
		// The first thread can be dead while others hang in the kernel, disks open.
		if g.Alive = o.threads(dir, g.PID); g.Alive == Unknown {
			g.seen, g.Note = stat.start, "its process has ended, but not all of its threads have"
		}
	case same && was.Start == stat.start:
		g.Alive, g.Start, g.seen = Alive, stat.start, stat.start
	default:
		o.checkCommand(g, dir, stat)
	}
	if !hasFile && g.Alive == Gone {
		g.State = ""
	}
}

// checkCommand tells from the command line whether a process is the guest's QEMU.
func (o *Observer) checkCommand(g *Guest, dir string, stat procStat) {
	g.seen = stat.start
	cmdline, err := readLimited(filepath.Join(dir, "cmdline"), maxCmdline)
	switch {
	case noProcess(err):
		g.Alive = Gone
	case err != nil:
		g.Note = "its command line cannot be read: " + err.Error()
	case isQEMU(cmdline, g.UUID, g.Name):
		g.Alive, g.Start = Alive, stat.start
	case len(cmdline) == 0 && stat.flags&pfKthread == 0:
		// Memory goes first when a process ends, its open files last.
		g.Note = "its process is ending"
	case g.Reason == "starting up":
		// libvirt writes the file between fork and exec: the command line is its own.
		g.Note = "its process is being started"
	default:
		g.Alive, g.Note = Gone, "its pid is another process's by now"
	}
}

// threads is Gone where no thread but the dead first one exists, else Unknown.
func (o *Observer) threads(dir string, pid int) Liveness {
	entries, err := os.ReadDir(filepath.Join(dir, "task"))
	if noProcess(err) {
		return Gone
	}
	if err != nil {
		return Unknown
	}
	for _, e := range entries {
		if e.Name() == strconv.Itoa(pid) {
			continue
		}
		stat, err := readStat(filepath.Join(dir, "task", e.Name(), "stat"))
		if noProcess(err) || (err == nil && (stat.state == 'Z' || stat.state == 'X')) {
			continue
		}
		return Unknown
	}
	return Gone
}

// isQEMU reports whether a command line (arguments that each end in NUL) is that of the
// guest's QEMU: libvirt gives every QEMU -uuid UUID and -name guest=NAME,...
func isQEMU(cmdline []byte, uuid, name string) bool {
	if bytes.Contains(bytes.ToLower(cmdline), []byte(uuid)) {
		return true
	}
	// QEMU reads a doubled comma as one.
	guest := "guest=" + strings.ReplaceAll(name, ",", ",,")
	args := strings.Split(string(cmdline), "\x00")
	for i, arg := range args[:max(len(args)-1, 0)] {
		if arg == "-name" && strings.HasPrefix(args[i+1]+",", guest+",") && !strings.HasPrefix(args[i+1], guest+",,") {
			return true
		}
	}
	return false
}

func readStat(path string) (procStat, error) {
	var s procStat
	line, err := readLimited(path, 64<<10)
	if err != nil {
		return s, err
	}
	// Field 2, the command in brackets, may hold spaces and brackets itself.
	fields := strings.Fields(string(line[bytes.LastIndexByte(line, ')')+1:]))
	if len(fields) < 20 || len(fields[0]) != 1 {
		return s, errors.New("its stat file is of an unknown shape")
	}
	s.state = fields[0][0]
	var errFlags, errStart error
	s.flags, errFlags = strconv.ParseUint(fields[9-3], 10, 64)
	s.start, errStart = strconv.ParseUint(fields[22-3], 10, 64)
	return s, errors.Join(errFlags, errStart)
}

func readLimited(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(io.LimitReader(f, limit))
}

// noProcess reports whether an error under /proc says that the process is not there.
func noProcess(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH)
}
