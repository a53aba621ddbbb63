package cluster

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"
)

const qemuBinary = "qemu-system-x86_64"

// Memory of one host in MiB: 180 MiB are used after boot, a guest needs some 70 more.
const hostMemory = 1024

// machine is the virtual hardware of one host. Its ports stay the same for its life, so
// that either host can be started again while the other runs.
type machine struct {
	id      int    // 1 or 2; host_id too
	image   string // folder made by image/build.sh
	dir     string // run folder
	accel   string // "kvm" or "tcg"
	ssh     int    // TCP port on 127.0.0.1 that leads to the host's port 22
	net     int    // UDP port on 127.0.0.1 where the other host's frames arrive
	peerNet int
}

func (m *machine) path(suffix string) string {
	return filepath.Join(m.dir, fmt.Sprintf("host%d.%s", m.id, suffix))
}

// createDisk makes the host's root disk: a fresh overlay, so that the image is never
// written to.
func (m *machine) createDisk(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, "qemu-img", "create", "-q", "-f", "qcow2",
		"-b", filepath.Join(m.image, "base.ext4"), "-F", "raw", m.path("qcow2")).CombinedOutput()
	if err != nil {
		return fmt.Errorf("cannot create the root disk of host %d: %w: %s", m.id, err, out)
	}
	return nil
}

// args is QEMU's command line. The LUNs are opened by both hosts, so they have no image lock;
// both see each other's writes in this machine's page cache at once. All of it is thrown
// away in the end, so nothing waits for writes to reach a disk.
func (m *machine) args() []string {
	accel, cpu := "tcg,thread=multi,tb-size=256", "max"
	if m.accel == "kvm" {
		accel, cpu = "kvm", "host"
	}
	san, second := filepath.Join(m.dir, "san.raw"), filepath.Join(m.dir, "san2.raw")
	return []string{
		"-name", fmt.Sprintf("virtlvm-e2e-%d", m.id),
		"-machine", "q35", "-accel", accel, "-cpu", cpu, "-smp", "1", "-m", strconv.Itoa(hostMemory),
		"-uuid", fmt.Sprintf("0000000%d-e2e0-4000-8000-00000000000%d", m.id, m.id),
		"-kernel", filepath.Join(m.image, "vmlinuz"), "-initrd", filepath.Join(m.image, "initrd.img"),
		"-append", fmt.Sprintf("root=/dev/vda rw console=ttyS0 quiet net.ifnames=0 mitigations=off"+
			" tsc=reliable no_timer_check panic=-1 audit=0 init_on_alloc=0 e2e.host=%d", m.id),
		"-drive", "file=" + m.path("qcow2") + ",format=qcow2,if=none,id=root,cache=unsafe",
		"-device", "virtio-blk-pci,drive=root,serial=root",
		"-drive", "file=" + san + ",format=raw,if=none,id=san,cache=unsafe,file.locking=off",
		"-device", "virtio-blk-pci,drive=san,share-rw=on,serial=SANLUN1",
		"-drive", "file=" + second + ",format=raw,if=none,id=san2,cache=unsafe,file.locking=off",
		"-device", "virtio-blk-pci,drive=san2,share-rw=on,serial=SANLUN2",
		"-netdev", fmt.Sprintf("user,id=n0,restrict=on,hostfwd=tcp:127.0.0.1:%d-:22", m.ssh),
		"-device", fmt.Sprintf("virtio-net-pci,netdev=n0,mac=52:54:00:e2:e0:0%d,romfile=", m.id),
		"-netdev", fmt.Sprintf("socket,id=n1,udp=127.0.0.1:%d,localaddr=127.0.0.1:%d", m.peerNet, m.net),
		"-device", fmt.Sprintf("virtio-net-pci,netdev=n1,mac=52:54:00:e2:e1:0%d,romfile=", m.id),
		"-device", "virtio-rng-pci", "-nodefaults", "-vga", "none", "-display", "none", "-no-reboot",
		"-chardev", "file,id=console,append=on,path=" + m.path("console"), "-serial", "chardev:console",
		"-qmp", "unix:" + m.path("qmp") + ",server=on,wait=off",
	}
}

// freePorts finds n ports of a network ("tcp" or "udp") on the loopback address that
// nobody uses now. Between this and their use by QEMU another program may take one; QEMU
// then ends at once and says so.
func freePorts(network string, n int) ([]int, error) {
	ports := make([]int, 0, n)
	for range n {
		switch network {
		case "tcp":
			l, err := net.Listen("tcp4", "127.0.0.1:0")
			if err != nil {
				return nil, fmt.Errorf("cannot find a free port: %w", err)
			}
			defer l.Close()
			ports = append(ports, l.Addr().(*net.TCPAddr).Port)
		default:
			l, err := net.ListenPacket("udp4", "127.0.0.1:0")
			if err != nil {
				return nil, fmt.Errorf("cannot find a free port: %w", err)
			}
			defer l.Close()
			ports = append(ports, l.LocalAddr().(*net.UDPAddr).Port)
		}
	}
	return ports, nil
}

// pickAccel returns "kvm" where a small virtual machine really runs with it, else "tcg".
// An openable /dev/kvm proves nothing on machines that are themselves virtual.
func pickAccel(ctx context.Context, l *launcher, dir string) string {
	dev, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return "tcg"
	}
	dev.Close()
	disk := filepath.Join(dir, "probe.raw")
	if err := os.WriteFile(disk, probeSector(), 0o600); err != nil {
		return "tcg"
	}
	defer os.Remove(disk)
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	c, err := l.start(exec.CommandContext(ctx, qemuBinary, "-accel", "kvm", "-cpu", "host", "-m", "32",
		"-nodefaults", "-display", "none", "-no-reboot", "-device", "isa-debug-exit,iobase=0xf4,iosize=1",
		"-drive", "file="+disk+",format=raw,if=ide"))
	if err != nil {
		return "tcg"
	}
	<-c.done
	if c.cmd.ProcessState.ExitCode() == probeExit {
		return "kvm"
	}
	return "tcg"
}
