package fakevirt

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Spec is what a QEMU is told on its command line.
type Spec struct {
	Name, UUID string
	Host       string // whose line it writes into its first disk
	Root       string // in front of every path
	Disks      []Disk
	Incoming   bool // it runs no CPUs, and so writes nothing, before QEMU.Continue
}

// args is the part of the command line that all QEMUs of libvirt share.
func (s Spec) args() []string {
	return []string{
		"-name", "guest=" + strings.ReplaceAll(s.Name, ",", ",,") + ",debug-threads=on",
		"-S", "-uuid", s.UUID,
	}
}

// Launcher makes QEMUs and ends them. A QEMU is named by its pid, so that it can outlive
// whoever made it.
type Launcher interface {
	// Launch makes the process, which waits for Run before it touches a disk.
	Launch(spec Spec) (QEMU, error)
	// Alive reports whether the process is there and the guest's.
	Alive(pid int, uuid string) bool
	// End makes the process end, by force (SIGKILL) or not (SIGTERM), and waits until it
	// has. One that is gone already is no error.
	End(pid int, uuid string, force bool) error
}

// QEMU is a process that Launcher.Launch has made.
type QEMU interface {
	PID() int
	// Run lets it open its disks and waits until it has; the error is what QEMU prints.
	// It has ended then.
	Run() error
	// Continue ends the wait of one that is Spec.Incoming, with its CPUs running or not.
	Continue(cpus bool) error
}

// Processes launches real processes: this program, or another that calls Main for the
// argument "qemu".
type Processes struct {
	Exe string // program; empty: this one
	// Life is the longest that a process lives when nobody ends it; 0: one hour.
	Life time.Duration
}

// process is a real QEMU as its maker sees it.
type process struct {
	pid      int
	incoming bool
	begin    io.WriteCloser // closing it without the words it waits for ends the process
	ready    *os.File       // a line for each word: empty, or what QEMU prints
	answers  *bufio.Reader  // of ready
}

// Words on a process's standard input.
const (
	wordOpen = "open" // the disks
	wordCont = "cont" // run the CPUs
	wordStay = "stay" // without running CPUs
)

// Launch starts the process in a session of its own, so that it stays when we end.
func (p Processes) Launch(spec Spec) (QEMU, error) {
	exe := p.Exe
	if exe == "" {
		var err error
		if exe, err = os.Executable(); err != nil {
			return nil, fmt.Errorf("cannot find QEMU: %w", err)
		}
	}
	data, err := json.Marshal(spec)
	if err != nil {
		return nil, fmt.Errorf("cannot start QEMU: %w", err)
	}
	life := p.Life
	if life == 0 {
		life = time.Hour
	}
	readyRead, readyWrite, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("cannot start QEMU: %w", err)
	}
	cmd := exec.Command(exe, append([]string{"qemu"}, append(spec.args(), "-life", life.String(), "-spec", string(data))...)...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.ExtraFiles = []*os.File{readyWrite}
	begin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	_ = readyWrite.Close()
	if err != nil {
		_ = readyRead.Close()
		return nil, fmt.Errorf("cannot start QEMU: %w", err)
	}
	go func() { _ = cmd.Wait() }()
	return &process{
		pid: cmd.Process.Pid, incoming: spec.Incoming, begin: begin, ready: readyRead, answers: bufio.NewReader(readyRead),
	}, nil
}

func (p *process) PID() int { return p.pid }

func (p *process) Run() error { return p.say(wordOpen, !p.incoming) }

func (p *process) Continue(cpus bool) error {
	if cpus {
		return p.say(wordCont, true)
	}
	return p.say(wordStay, true)
}

// say says a word and waits for the answer; after the last one nothing more is said.
func (p *process) say(word string, last bool) error {
	_, err := io.WriteString(p.begin, word+"\n")
	if last {
		defer func() { _ = p.ready.Close() }()
		err = errors.Join(err, p.begin.Close())
	}
	if err != nil {
		return fmt.Errorf("process has ended: %w", err)
	}
	line, err := p.answers.ReadString('\n')
	if err != nil {
		return errors.New("process has ended")
	}
	if line = strings.TrimSuffix(line, "\n"); line != "" {
		return errors.New(line)
	}
	return nil
}

// Alive reports whether the process is there and the guest's. One that is ending counts:
// it may have its disks open still.
func (Processes) Alive(pid int, uuid string) bool {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if pid <= 1 || err != nil || strings.HasPrefix(string(stat[bytes.LastIndexByte(stat, ')')+1:]), " Z") {
		return false
	}
	cmdline, err := os.ReadFile(filepath.Join(dir, "cmdline"))
	return err == nil && (len(cmdline) == 0 || strings.Contains(string(cmdline), uuid))
}

// End signals the process and waits up to 10 s until all of it has gone.
func (p Processes) End(pid int, uuid string, force bool) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil || !p.Alive(pid, uuid) {
		_ = unix.Close(fd)
		return nil
	}
	defer func() { _ = unix.Close(fd) }()
	sig := unix.SIGTERM
	if force {
		sig = unix.SIGKILL
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("Failed to terminate process %d with %v: %w", pid, sig, err) //nolint:staticcheck // libvirt's words
	}
	// Readable once the last thread has ended, its files closed (pidfd_open(2)).
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		if n, err := unix.Poll(fds, 100); n > 0 || (err != nil && !errors.Is(err, unix.EINTR)) {
			return err
		}
	}
	return fmt.Errorf("Failed to terminate process %d: Device or resource busy", pid) //nolint:staticcheck // libvirt's words
}
