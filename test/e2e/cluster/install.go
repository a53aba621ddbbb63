package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"virtlvm/internal/api"
)

// installScript is what an administrator does on each host after unpacking virtlvm, plus a
// reload: libvirtd looks for a hook in a folder that was empty only then.
const installScript = `set -e
systemd-sysusers
systemctl daemon-reload
systemctl enable --now virtlvmd.socket virtlvmd-ro.socket virtlvmd-peer.socket virtlvmd.service
systemctl reload libvirtd`

// Install puts a tree made by `make install DESTDIR=` on both hosts, starts the daemon and
// proves that libvirt calls the hook.
func (c *Cluster) Install(ctx context.Context, tree string) error {
	return c.Both(func(h *Host) error {
		if err := h.Copy(ctx, tree); err != nil {
			return err
		}
		if _, err := h.Must(ctx, installScript); err != nil {
			return err
		}
		return h.proveHook(ctx)
	})
}

// proveHook starts and ends a guest without disks and looks for its calls in the daemon's
// records.
func (h *Host) proveHook(ctx context.Context) error {
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
