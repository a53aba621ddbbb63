package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// daemon is a running virtlvmd.
type daemon struct {
	host  *host
	cmd   *exec.Cmd
	ended chan struct{} // closed when it has been waited for
	log   string
	ready time.Duration // from its start to READY=1, sd_notify(3)
}

// start starts the daemon of a host and waits for READY=1. It must run on the main
// thread: see main.
func (s *stage) start(ctx context.Context, h *host) (*daemon, error) {
	path := h.path("run/notify")
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	notify, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return nil, fmt.Errorf("cannot listen for READY: %w", err)
	}
	defer func() { _ = notify.Close() }()
	d := &daemon{host: h, ended: make(chan struct{}), log: filepath.Join(s.disk, h.san.Name()+".log")}
	log, err := os.OpenFile(d.log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	d.cmd = exec.Command(s.program("virtlvmd"), "-config", h.path("virtlvm.toml"))
	d.cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "NOTIFY_SOCKET=" + path, "VIRTLVM_HOST_NAME=" + h.san.Name()}
	d.cmd.Stderr = log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	began := time.Now()
	if err := d.cmd.Start(); err != nil {
		return nil, fmt.Errorf("cannot start virtlvmd: %w", err)
	}
	s.daemons, h.daemon = append(s.daemons, d), d
	go func() {
		_ = d.cmd.Wait() // the exit code is of no interest
		close(d.ended)
	}()
	if err := awaitReady(notify); err != nil {
		text, _ := os.ReadFile(d.log)
		return nil, fmt.Errorf("virtlvmd of %s is not ready: %w\n%s", h.san.Name(), err, text)
	}
	d.ready = time.Since(began)
	return d, d.firstLook(ctx)
}

func awaitReady(notify *net.UnixConn) error {
	if err := notify.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return err
	}
	message := make([]byte, 4096)
	for {
		n, err := notify.Read(message)
		if err != nil {
			return err
		}
		if bytes.Contains(message[:n], []byte("READY=1")) {
			return nil
		}
	}
}

// firstLook waits until the daemon has looked at its host.
func (d *daemon) firstLook(ctx context.Context) error {
	for range 200 {
		s, err := d.host.api.Status(ctx)
		if err != nil {
			return err
		}
		if s.Ready {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return fmt.Errorf("virtlvmd of %s does not end its first look", d.host.san.Name())
}

// rss is the daemon's resident memory in MiB.
func (d *daemon) rss() (float64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "VmRSS:" {
			kib, err := strconv.Atoi(f[1])
			return float64(kib) / 1024, err
		}
	}
	return 0, errors.New("no VmRSS in the daemon's status")
}

// cpu is what the daemon has used of the processors so far, without the programs it has
// run (proc_pid_schedstat(5): nanoseconds, for each thread). Its threads do not end.
func (d *daemon) cpu() (time.Duration, error) {
	paths, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", d.cmd.Process.Pid))
	if err != nil || len(paths) == 0 {
		return 0, errors.Join(err, errors.New("cannot tell the daemon's processor time"))
	}
	var sum time.Duration
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return 0, err
		}
		first, _, _ := strings.Cut(string(text), " ")
		n, err := strconv.ParseInt(first, 10, 64)
		if err != nil {
			return 0, err
		}
		sum += time.Duration(n)
	}
	return sum, nil
}

// stop ends the daemon as systemd does.
func (d *daemon) stop() error {
	d.host.api.Close()
	select {
	case <-d.ended:
		return nil
	default:
	}
	_ = d.cmd.Process.Signal(syscall.SIGTERM) // where it has just ended, all is well
	select {
	case <-d.ended:
		return nil
	case <-time.After(10 * time.Second):
	}
	_ = d.cmd.Process.Kill()
	<-d.ended
	return fmt.Errorf("virtlvmd of %s had to be killed; its log was %s", d.host.san.Name(), d.log)
}
