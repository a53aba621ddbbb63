package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// evidence are the commands whose output is kept when a scenario fails.
var evidence = []struct{ file, command string }{
	{"journal.txt", "journalctl -b --no-pager -o short-precise"},
	{"virtlvm-journal.txt", "journalctl -b --no-pager -o short-precise -u 'virtlvm*'"},
	{"libvirt.txt", "journalctl -b --no-pager -o short-precise -u libvirtd; tail -n 200 /var/log/libvirt/qemu/*.log"},
	{"locks.txt", "lvmlockctl --info; sanlock client status -D; sanlock client host_status -D; sanlock client gets -h 1;" +
		" sanlock direct dump /dev/mapper/" + VG + "-lvmlock:0:1048576; sanlock direct dump /dev/mapper/" + VG + "-lvmlock:68157440:33554432"},
	{"volumes.txt", "lvs -a -o +lv_uuid,lv_lockargs,lv_tags; dmsetup info -c; dmsetup ls --tree"},
	{"guests.txt", "virsh list --all; ls -l /run/libvirt/qemu; cat /run/libvirt/qemu/*.xml"},
	{"virtlvm.txt", "for c in status guests volumes 'commands --limit 200' 'hooks --limit 200'; do echo \"== $c\"; virtlvm $c; done;" +
		" ls -lR /var/lib/virtlvm /run/virtlvm /etc/virtlvm"},
	{"processes.txt", "ps axfww -o pid,ppid,stat,etime,wchan:20,args; systemctl list-units --failed --no-pager"},
}

// Collect writes what is known about both hosts into dir: consoles, journals, locks,
// volumes, guests. It takes what it can get and reports what it cannot.
func (c *Cluster) Collect(ctx context.Context, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	return c.Both(func(h *Host) error {
		to := filepath.Join(dir, h.Name)
		if err := os.MkdirAll(to, 0o755); err != nil {
			return fmt.Errorf("cannot keep logs: %w", err)
		}
		var errs []error
		for _, name := range []string{"console", "qemu.log"} {
			content, err := os.ReadFile(h.machine.path(name))
			if err == nil {
				err = os.WriteFile(filepath.Join(to, name), content, 0o644)
			}
			errs = append(errs, err)
		}
		if !h.Running() {
			return errors.Join(errs...)
		}
		// One after the other, each with its own limit: a hanging LVM command must not cost
		// us the rest.
		for _, e := range evidence {
			one, cancel := context.WithTimeout(ctx, 30*time.Second)
			r, err := h.Run(one, "exec 2>&1; "+e.command)
			cancel()
			text := r.Stdout
			if err != nil {
				text = strings.TrimRight(text, "\n") + "\n" + err.Error() + "\n"
			}
			errs = append(errs, os.WriteFile(filepath.Join(to, e.file), []byte(text), 0o644))
		}
		return errors.Join(errs...)
	})
}
