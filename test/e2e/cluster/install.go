package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"virtlvm/internal/api"
)

// Debs are the packages of two versions of virtlvm.
type Debs struct{ Old, New string }

// DebsIn finds them in a folder.
func DebsIn(dir string) Debs {
	return Debs{Old: filepath.Join(dir, "old.deb"), New: filepath.Join(dir, "new.deb")}
}

// Install puts the package on both hosts and proves that libvirt calls its hook. What the
// package said on each host is in Host.InstallLog.
func (c *Cluster) Install(ctx context.Context, deb string) error {
	return c.Both(func(h *Host) error {
		// libvirtd ends by itself after two minutes without a client.
		if _, err := h.Must(ctx, "virsh version"); err != nil {
			return err
		}
		var err error
		if h.InstallLog, err = h.InstallDeb(ctx, deb); err != nil {
			return err
		}
		// libvirtd looks for a hook in a folder that was empty only then; the package says so.
		if !strings.Contains(h.InstallLog, "systemctl reload libvirtd") {
			return fmt.Errorf("the package does not say on %s that libvirtd must be reloaded: %s", h.Name, h.InstallLog)
		}
		// An ssh log-in between two emulated hosts can take ten seconds.
		if _, err := h.Must(ctx, `printf '[peers]\nconnect_timeout = "20s"\n' >/etc/virtlvm/virtlvm.toml
systemctl reload virtlvmd libvirtd`); err != nil {
			return err
		}
		return h.ProveHook(ctx)
	})
}

// InstallDeb installs or upgrades to a package and returns what dpkg printed.
func (h *Host) InstallDeb(ctx context.Context, deb string) (string, error) {
	f, err := os.Open(deb)
	if err != nil {
		return "", fmt.Errorf("no package: %w", err)
	}
	defer f.Close()
	const to = "/var/cache/virtlvm.deb"
	if r, err := h.RunInput(ctx, "cat >"+to, f); err != nil || r.Exit != 0 {
		return "", fmt.Errorf("cannot copy the package to %s: %s: %w", h.Name, r.Output(), err)
	}
	return h.Must(ctx, "DEBIAN_FRONTEND=noninteractive dpkg -i "+to+" 2>&1")
}

// ProveHook starts and ends a guest without disks and looks for its calls in the daemon's
// records.
func (h *Host) ProveHook(ctx context.Context) error {
	g := Guest{Name: "hook-probe"}
	if err := h.Define(ctx, g); err != nil {
		return err
	}
	start, err := h.Virsh(ctx, "start", g.Name)
	if err != nil {
		return err
	}
	if err := h.RemoveGuest(ctx, g.Name); err != nil {
		return err
	}
	if start.Exit != 0 {
		return fmt.Errorf("a guest without disks does not start on %s: %s", h.Name, start.Output())
	}
	return Eventually(ctx, 20*time.Second, func() error {
		var records []api.HookRecord
		if err := h.Ask(ctx, &records, "hooks", "--guest", g.Name); err != nil {
			return err
		}
		seen := map[string]bool{}
		for _, r := range records {
			seen[r.Op] = true
		}
		for _, op := range []string{"prepare", "started", "release"} {
			if !seen[op] {
				return fmt.Errorf("libvirt on %s did not call the hook with %q", h.Name, op)
			}
		}
		return nil
	})
}

// Ask runs a subcommand of virtlvm with --json on the host and decodes its answer. The
// exit code says more than yes or no (`status` has one for "problems"): only an answer
// that is not JSON is an error.
func (h *Host) Ask(ctx context.Context, answer any, args ...string) error {
	words := []string{"virtlvm", "--json"}
	for _, a := range args {
		words = append(words, Quote(a))
	}
	r, err := h.Run(ctx, strings.Join(words, " "))
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(r.Stdout), answer); err != nil {
		return fmt.Errorf("virtlvm %s on %s: exit code %d: %s", strings.Join(args, " "), h.Name, r.Exit, r.Output())
	}
	return nil
}
