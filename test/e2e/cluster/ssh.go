package cluster

import (
	"bytes"
	"context"
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
)

// Result is what a command on a host gave.
type Result struct {
	Stdout, Stderr string
	Exit           int
	Duration       time.Duration
}

// Output is both outputs, for messages.
func (r Result) Output() string { return strings.TrimSpace(r.Stdout + r.Stderr) }

// sshArgs are the options of every ssh call. The host key is not checked: the port is on
// this machine's loopback and was opened by our own QEMU.
func (h *Host) sshArgs(extra ...string) []string {
	args := []string{
		"-F", "none", "-q", "-i", filepath.Join(h.machine.image, "id_e2e"), "-p", strconv.Itoa(h.machine.ssh),
		"-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no",
		"-o", "UserKnownHostsFile=/dev/null", "-o", "ConnectTimeout=5", "-o", "ServerAliveInterval=10",
		"-o", "ControlPath=" + h.machine.path("ssh"),
	}
	return append(args, extra...)
}

// connect waits until root can log in, and keeps that one connection for all commands:
// a new one costs more than a second under emulation.
func (h *Host) connect(ctx context.Context) error {
	for ctx.Err() == nil {
		if h.qemu.ended() {
			return fmt.Errorf("QEMU of %s has ended: %s; see %s and %s", h.Name, h.qemu.cmd.ProcessState,
				h.machine.path("console"), h.machine.path("qemu.log"))
		}
		master, err := h.launch.start(exec.Command("ssh", h.sshArgs("-o", "ControlMaster=yes", "-N", "root@127.0.0.1")...))
		if err != nil {
			return err
		}
		// The master ends by itself when the host does not answer yet; it makes its control
		// socket once it is logged in.
		for ctx.Err() == nil && !master.wait(300*time.Millisecond) {
			// Each program costs the hosts time: they share this machine's cores.
			if _, err := os.Stat(h.machine.path("ssh")); err != nil {
				continue
			}
			if exec.CommandContext(ctx, "ssh", h.sshArgs("-O", "check", "root@127.0.0.1")...).Run() == nil {
				h.ssh.Store(master)
				return nil
			}
		}
		if err := master.stop(time.Second); err != nil {
			return err
		}
		// A host that has a network and no sshd yet answers at once.
		if err := sleep(ctx, 2*time.Second); err != nil {
			break
		}
	}
	return fmt.Errorf("no ssh on %s in time; see %s: %w", h.Name, h.machine.path("console"), context.Cause(ctx))
}

// Run runs a shell command on the host and waits for its end. A non-zero exit code is a
// Result, not an error: an error means that the command's outcome is not known.
func (h *Host) Run(ctx context.Context, command string) (Result, error) {
	return h.RunInput(ctx, command, nil)
}

// RunInput is Run with something on the command's standard input.
func (h *Host) RunInput(ctx context.Context, command string, stdin io.Reader) (Result, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, "ssh", h.sshArgs("-T", "root@127.0.0.1", "--", command)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &stdout, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = 5 * time.Second
	begin := time.Now()
	err := cmd.Run()
	r := Result{Stdout: stdout.String(), Stderr: stderr.String(), Duration: time.Since(begin)}
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return r, fmt.Errorf("cannot finish %q on %s: %w", command, h.Name, context.Cause(ctx))
	case errors.As(err, &exit) && exit.ExitCode() >= 0 && (exit.ExitCode() != 255 || h.Running()):
		// 255 is ssh's code for a lost connection, but lvmlockctl uses it too.
		r.Exit = exit.ExitCode()
	case err != nil:
		return r, fmt.Errorf("cannot run %q on %s: %w: %s", command, h.Name, err, r.Output())
	}
	return r, nil
}

// Must runs a command that has to succeed and returns its standard output.
func (h *Host) Must(ctx context.Context, command string) (string, error) {
	r, err := h.Run(ctx, command)
	if err != nil {
		return "", err
	}
	if r.Exit != 0 {
		return r.Stdout, fmt.Errorf("%q on %s: exit code %d: %s", command, h.Name, r.Exit, r.Output())
	}
	return r.Stdout, nil
}

// WriteFile puts content into a file on the host.
func (h *Host) WriteFile(ctx context.Context, path string, content []byte) error {
	r, err := h.RunInput(ctx, "cat >"+Quote(path), bytes.NewReader(content))
	if err == nil && r.Exit != 0 {
		err = fmt.Errorf("cannot write %s on %s: %s", path, h.Name, r.Output())
	}
	return err
}

// Copy unpacks a local folder over the host's root, as root's files.
func (h *Host) Copy(ctx context.Context, dir string) error {
	tar := exec.CommandContext(ctx, "tar", "-C", dir, "--owner=0", "--group=0", "-cf", "-", ".")
	pipe, err := tar.StdoutPipe()
	if err != nil {
		return fmt.Errorf("cannot copy %s: %w", dir, err)
	}
	if err := tar.Start(); err != nil {
		return fmt.Errorf("cannot copy %s: %w", dir, err)
	}
	// Directories that exist keep their owner and mode.
	r, err := h.RunInput(ctx, "tar -C / --no-overwrite-dir -xf -", pipe)
	if waitErr := tar.Wait(); err == nil && waitErr != nil {
		err = fmt.Errorf("cannot copy %s: %w", dir, waitErr)
	}
	if err == nil && r.Exit != 0 {
		err = fmt.Errorf("cannot copy %s to %s: %s", dir, h.Name, r.Output())
	}
	return err
}

// Quote makes one word for the shell.
func Quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// SSH is a command line for a person who wants to look around on the host.
func (h *Host) SSH() string {
	return "ssh " + strings.Join(h.sshArgs("root@127.0.0.1"), " ")
}
