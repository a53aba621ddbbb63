package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// VG is the shared volume group, with sanlock leases, on the LUN that both hosts see.
const VG = "vg_san"

// Second is another such volume group, on the second LUN; scenarios that need it make it.
const Second = "vg_two"

// Units are the daemon and all that could bring it back.
const Units = "virtlvmd.socket virtlvmd-ro.socket virtlvmd-peer.socket virtlvmd.service"

// Lockspace is the name of VG's lockspace.
const Lockspace = "lvm_" + VG

// Volume is a logical volume of a shared volume group.
type Volume struct {
	Group  string // the volume group; empty: VG
	Name   string // without the volume group
	UUID   string
	Offset int64 // of its lease in the hidden lvmlock volume, bytes
}

func (v Volume) group() string { return or(v.Group, VG) }

// Full is "vg/lv".
func (v Volume) Full() string { return v.group() + "/" + v.Name }

// Path is the device.
func (v Volume) Path() string { return "/dev/" + v.Full() }

// MakeVG makes the shared volume group and starts its lockspace on both hosts.
func (c *Cluster) MakeVG(ctx context.Context) error {
	return c.makeVG(ctx, VG, "/dev/vdb")
}

// MakeSecond makes the second volume group as MakeVG makes the first, or empties the one
// that is there.
func (c *Cluster) MakeSecond(ctx context.Context) error {
	there, err := c.hasSecond(ctx)
	if err != nil || !there {
		return errors.Join(err, c.makeVG(ctx, Second, "/dev/vdc"))
	}
	if err := c.Both(func(h *Host) error { return h.startLockspace(ctx, Second) }); err != nil {
		return err
	}
	_, err = c.A.Must(ctx, "lvremove -qq -y "+Second)
	return err
}

// RemoveSecond removes it with its volumes, which nobody may use any more. One that is not
// there is fine.
func (c *Cluster) RemoveSecond(ctx context.Context) error {
	if there, err := c.hasSecond(ctx); err != nil || !there {
		return err
	}
	if _, err := c.B.Must(ctx, "vgchange --lockstop "+Second); err != nil {
		return err
	}
	// A vgremove before sanlock has seen that kvm-b is out fails; see also StopSecond.
	err := Eventually(ctx, 3*time.Minute, func() error {
		out, err := c.A.Must(ctx, "sanlock client gets -h 1 | awk '/^s / { on = index($2, \"lvm_"+Second+":\") } on && /^h 2 / && !/FREE/'")
		if err == nil && out != "" {
			err = fmt.Errorf("kvm-b has not left %s: %s", Second, out)
		}
		return err
	})
	if err == nil {
		_, err = c.A.Must(ctx, "vgremove -qq -y "+Second)
	}
	return err
}

// StopSecond removes its volumes, which nobody may use any more, and leaves its lockspace on
// both hosts. The volume group stays: a vgremove has hung in lvmlockd more than once, whether
// virtlvmd ran or not, with the global lock in its hand and its own lock of the volume group
// still in sanlock's, which then waits for lvmlockd to end.
func (c *Cluster) StopSecond(ctx context.Context) error {
	if there, err := c.hasSecond(ctx); err != nil || !there {
		return err
	}
	if _, err := c.A.Must(ctx, "lvremove -qq -y "+Second); err != nil {
		return err
	}
	return c.Both(func(h *Host) error {
		_, err := h.Must(ctx, "vgchange --lockstop "+Second)
		return err
	})
}

func (c *Cluster) hasSecond(ctx context.Context) (bool, error) {
	r, err := c.A.Run(ctx, "vgs --noheadings -o vg_name "+Second)
	return err == nil && r.Exit == 0, err
}

func (c *Cluster) makeVG(ctx context.Context, vg, device string) error {
	// On a slow machine lvmlockd looks for the lvmlock volume before udev has made its link,
	// as it does at boot: vgcreate then takes everything back and says "init failed: -19".
	var err error
	for range 4 {
		if _, err = c.A.Must(ctx, "vgcreate -y --shared "+vg+" "+device); err == nil {
			break
		}
		if err := sleep(ctx, 2*time.Second); err != nil {
			return err
		}
	}
	if err != nil {
		return err
	}
	return c.Both(func(h *Host) error { return h.startLockspace(ctx, vg) })
}

// StartLockspace starts VG's lockspace and waits until lvmlockd really has it: `vgchange
// --lockstart` exits with 0 also where it did nothing of use, and with 5 while udev has
// not yet made the link of the lvmlock volume.
func (h *Host) StartLockspace(ctx context.Context) error { return h.startLockspace(ctx, VG) }

func (h *Host) startLockspace(ctx context.Context, vg string) error {
	var last string
	for range 10 {
		s, err := h.State(ctx)
		if err == nil && s.Lockspaces["lvm_"+vg] {
			return nil
		}
		r, err := h.Run(ctx, "udevadm settle --timeout=10; vgchange --lockstart "+vg)
		if err != nil {
			return err
		}
		last = r.Output()
		if r.Exit != 0 {
			if err := sleep(ctx, time.Second); err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("the lockspace of %s does not start on %s: %s", vg, h.Name, last)
}

// CreateVolumes makes inactive volumes of so many MiB.
func (c *Cluster) CreateVolumes(ctx context.Context, mib int, names ...string) ([]Volume, error) {
	for _, name := range names {
		command := fmt.Sprintf("lvcreate -qq -y -an -Wn -Zn -L %dm -n %s %s", mib, Quote(name), VG)
		if _, err := c.A.Must(ctx, command); err != nil {
			return nil, err
		}
	}
	return c.Volumes(ctx, names...)
}

// Volumes finds volumes of VG by name.
func (c *Cluster) Volumes(ctx context.Context, names ...string) ([]Volume, error) {
	return c.volumes(ctx, VG, names)
}

// InSecond finds volumes of the second volume group by name.
func (c *Cluster) InSecond(ctx context.Context, names ...string) ([]Volume, error) {
	return c.volumes(ctx, Second, names)
}

func (c *Cluster) volumes(ctx context.Context, vg string, names []string) ([]Volume, error) {
	out, err := c.A.Must(ctx, "lvs --reportformat json -o vg_name,lv_name,lv_uuid,lv_lockargs "+vg)
	if err != nil {
		return nil, err
	}
	all, err := parseVolumes(out)
	if err != nil {
		return nil, err
	}
	found := make([]Volume, 0, len(names))
	for _, name := range names {
		v, ok := all[name]
		if !ok {
			return nil, fmt.Errorf("no volume %s/%s", vg, name)
		}
		found = append(found, v)
	}
	return found, nil
}

func parseVolumes(out string) (map[string]Volume, error) {
	var report struct {
		Report []struct {
			LV []struct {
				Group    string `json:"vg_name"`
				Name     string `json:"lv_name"`
				UUID     string `json:"lv_uuid"`
				LockArgs string `json:"lv_lockargs"`
			} `json:"lv"`
		} `json:"report"`
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		return nil, fmt.Errorf("cannot read the report of lvs: %w", err)
	}
	volumes := map[string]Volume{}
	for _, r := range report.Report {
		for _, lv := range r.LV {
			v := Volume{Group: lv.Group, Name: lv.Name, UUID: lv.UUID}
			// "1.0.0:70254592"; empty for a thin volume or a snapshot.
			if _, offset, ok := strings.Cut(lv.LockArgs, ":"); ok {
				n, err := strconv.ParseInt(offset, 10, 64)
				if err != nil {
					return nil, fmt.Errorf("cannot read lv_lockargs %q of %s: %w", lv.LockArgs, lv.Name, err)
				}
				v.Offset = n
			}
			volumes[lv.Name] = v
		}
	}
	return volumes, nil
}

// RemoveVolumes deactivates volumes on both hosts and removes them. A volume that a guest
// still uses, or that is not there, is an error.
func (c *Cluster) RemoveVolumes(ctx context.Context, volumes ...Volume) error {
	if len(volumes) == 0 {
		return nil
	}
	var names []string
	for _, v := range volumes {
		names = append(names, Quote(v.Full()))
	}
	list := strings.Join(names, " ")
	err := c.Both(func(h *Host) error {
		if !h.Running() {
			return nil
		}
		_, err := h.Must(ctx, "lvchange -an "+list)
		return err
	})
	if err != nil {
		return err
	}
	// A host that has just booted may be in the lockspace for sanlock and not yet for lvmlockd,
	// which says "lock start in progress".
	return Eventually(ctx, time.Minute, func() error {
		_, err := c.A.Must(ctx, "lvremove -qq -y "+list)
		return err
	})
}

// Eventually tries until it works, for so long; the last error is returned. What it waits
// for must be cheap to ask.
func Eventually(ctx context.Context, d time.Duration, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var last error
	for {
		err := try()
		if err == nil {
			return nil
		}
		// The error of a try that our own deadline cut off says nothing.
		if last == nil || ctx.Err() == nil {
			last = err
		}
		if sleep(ctx, 500*time.Millisecond) != nil {
			return fmt.Errorf("not within %s: %w", d, last)
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return errors.Join(ctx.Err(), context.Cause(ctx))
	}
}
