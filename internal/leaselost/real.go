package leaselost

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"virtlvm/internal/run"
)

// New makes a Stopper for this host. outDir is a folder for the output of programs, in
// memory.
func New(outDir string, say func(string, ...any)) *Stopper {
	return &Stopper{
		Runner: run.NewExec(run.ExecOptions{OutDir: outDir, Grace: time.Second}),
		Sys:    "/sys", Proc: "/proc", Kill: kill, DeviceOf: deviceOf, Pause: 200 * time.Millisecond, Say: say,
	}
}

func kill(pid int) error {
	err := syscall.Kill(pid, syscall.SIGKILL)
	if errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return err
}

// deviceOf follows a link of /proc/PID/fd, which leads to what is open whatever its path
// says: libvirt gives each QEMU a /dev of its own.
func deviceOf(link string) string {
	info, err := os.Stat(link)
	if err != nil || info.Mode()&os.ModeDevice == 0 || info.Mode()&os.ModeCharDevice != 0 {
		return ""
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	return fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
}
