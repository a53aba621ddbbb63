package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

// luns are the shared LUNs with their sizes in bytes: /dev/vdb, which has the volume group
// of all scenarios, and /dev/vdc, which is empty. The files are sparse.
var luns = map[string]int64{"san.raw": 4 << 30, "san2.raw": 1 << 30}

// bootTime bounds the boot of a host up to ssh. Under emulation on a busy machine it
// takes one to two minutes.
const bootTime = 5 * time.Minute

// Options say where things are.
type Options struct {
	Image string // folder made by image/build.sh
	Dir   string // run folder: overlays, LUN, consoles, sockets; the caller removes it
	Log   func(format string, args ...any)
}

// Cluster is two KVM hosts on one SAN.
type Cluster struct {
	A, B *Host
	opts Options
}

// Host is one emulated KVM host.
type Host struct {
	Name string // "kvm-a" or "kvm-b"
	ID   int    // sanlock host id

	// InstallLog is what dpkg printed when virtlvm was installed.
	InstallLog string

	machine *machine
	launch  *launcher
	qemu    *child
	ssh     atomic.Pointer[child] // the kept connection; nil while there is none
	log     func(format string, args ...any)
}

// Start boots both hosts at once and waits for ssh on both. On an error nothing is left
// running.
func Start(ctx context.Context, opts Options) (*Cluster, error) {
	for _, file := range []string{"base.ext4", "vmlinuz", "initrd.img", "id_e2e"} {
		if _, err := os.Stat(filepath.Join(opts.Image, file)); err != nil {
			return nil, fmt.Errorf("no guest image: %w", err)
		}
	}
	// A unix socket's path has at most 107 bytes, and ssh adds 17 while it makes one.
	if len(opts.Dir) > 75 {
		return nil, fmt.Errorf("the path of the run folder is too long for sockets: %s", opts.Dir)
	}
	launch := newLauncher()
	accel := pickAccel(ctx, launch, opts.Dir)
	tcp, err := freePorts("tcp", 2)
	if err != nil {
		return nil, err
	}
	udp, err := freePorts("udp", 2)
	if err != nil {
		return nil, err
	}
	for name, size := range luns {
		if err := makeLUN(filepath.Join(opts.Dir, name), size); err != nil {
			return nil, err
		}
	}

	c := &Cluster{opts: opts}
	for i, name := range []string{"kvm-a", "kvm-b"} {
		h := &Host{Name: name, ID: i + 1, launch: launch, log: opts.Log, machine: &machine{
			id: i + 1, image: opts.Image, dir: opts.Dir, accel: accel,
			ssh: tcp[i], net: udp[i], peerNet: udp[1-i],
		}}
		if i == 0 {
			c.A = h
		} else {
			c.B = h
		}
	}
	opts.Log("booting kvm-a and kvm-b (accelerator %s)", accel)
	begin := time.Now()
	err = c.Both(func(h *Host) error {
		if err := h.machine.createDisk(ctx); err != nil {
			return err
		}
		return h.Boot(ctx)
	})
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	opts.Log("both hosts are up after %.0f s", time.Since(begin).Seconds())
	return c, nil
}

func makeLUN(path string, size int64) error {
	f, err := os.Create(path)
	if err == nil {
		err = errors.Join(f.Truncate(size), f.Close())
	}
	if err != nil {
		return fmt.Errorf("cannot create a shared LUN: %w", err)
	}
	return nil
}

// Together does several things at the same time and waits for all of them.
func Together(do ...func() error) error {
	var wg sync.WaitGroup
	errs := make([]error, len(do))
	for i, f := range do {
		wg.Go(func() { errs[i] = f() })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Both does something on both hosts at the same time.
func (c *Cluster) Both(do func(h *Host) error) error {
	return Together(func() error { return do(c.A) }, func() error { return do(c.B) })
}

// Close ends both hosts at once, as a power cut would.
func (c *Cluster) Close() error { return c.Both((*Host).Kill) }

// Boot starts the host's machine and waits for ssh. The root disk is as the last run
// left it.
func (h *Host) Boot(ctx context.Context) error {
	if h.qemu != nil && !h.qemu.ended() {
		return fmt.Errorf("%s is already running", h.Name)
	}
	log, err := os.OpenFile(h.machine.path("qemu.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("cannot start %s: %w", h.Name, err)
	}
	defer log.Close()
	cmd := exec.Command(qemuBinary, h.machine.args()...)
	cmd.Stdout, cmd.Stderr = log, log
	if h.qemu, err = h.launch.start(cmd); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, bootTime)
	defer cancel()
	return h.connect(ctx)
}

// Kill cuts the host's power: its system gets no chance to do anything. Writes that it
// had seen complete stay, as on a disk without a volatile cache.
func (h *Host) Kill() error {
	var errs []error
	if master := h.ssh.Swap(nil); master != nil {
		errs = append(errs, master.stop(2*time.Second))
	}
	if h.qemu != nil && !h.qemu.ended() {
		// "quit" ends the machine at once but closes the overlay in order; if the monitor
		// does not answer, the process is killed all the same.
		if err := qmpQuit(h.machine.path("qmp")); err != nil {
			h.log("%s: %v; killing QEMU", h.Name, err)
		} else {
			h.qemu.wait(5 * time.Second)
		}
		errs = append(errs, h.qemu.stop(2*time.Second))
	}
	// A stale control socket would make the next connection hang.
	if err := os.Remove(h.machine.path("ssh")); err != nil && !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// GoDown runs a command that ends the host in order, such as "systemctl reboot", and waits
// until its machine has ended; it returns how long that took. The host does not come back
// by itself: see Boot.
func (h *Host) GoDown(ctx context.Context, command string) (time.Duration, error) {
	begin := time.Now()
	// The connection may end before the command's end is known.
	if r, err := h.Run(ctx, command); err == nil && r.Exit != 0 && r.Exit != 255 {
		return 0, fmt.Errorf("%q on %s: %s", command, h.Name, r.Output())
	}
	return h.Ended(ctx, begin)
}

// Ended waits until the host's machine has ended by itself; it returns the time since begin.
func (h *Host) Ended(ctx context.Context, begin time.Time) (time.Duration, error) {
	select {
	case <-h.qemu.done:
		return time.Since(begin), h.Kill() // what is left is the connection
	case <-ctx.Done():
		return 0, fmt.Errorf("%s does not go down: %w", h.Name, context.Cause(ctx))
	}
}

// Running reports whether commands can be run on the host: it has booted, and nobody has
// cut its power since.
func (h *Host) Running() bool {
	master := h.ssh.Load()
	return master != nil && !master.ended()
}
