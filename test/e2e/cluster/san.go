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

// Lockspace is the name of VG's lockspace.
const Lockspace = "lvm_" + VG

// Volume is a logical volume of the shared volume group.
type Volume struct {
	Name   string // without the volume group
	UUID   string
	Offset int64 // of its lease in the hidden lvmlock volume, bytes
}

// Full is "vg/lv".
func (v Volume) Full() string { return VG + "/" + v.Name }

// Path is the device.
func (v Volume) Path() string { return "/dev/" + VG + "/" + v.Name }

// MakeVG makes the shared volume group and starts its lockspace on both hosts.
func (c *Cluster) MakeVG(ctx context.Context) error {
	// On a slow machine lvmlockd looks for the lvmlock volume before udev has made its link,
	// as it does at boot: vgcreate then takes everything back and says "init failed: -19".
	var err error
	for range 4 {
		if _, err = c.A.Must(ctx, "vgcreate -y --shared "+VG+" /dev/vdb"); err == nil {
			break
		}
		if err := sleep(ctx, 2*time.Second); err != nil {
			return err
		}
	}
	if err != nil {
		return err
	}
	return c.Both(func(h *Host) error { return h.StartLockspace(ctx) })
}

// StartLockspace starts VG's lockspace and waits until lvmlockd really has it: `vgchange
// --lockstart` exits with 0 also where it did nothing of use, and with 5 while udev has
// not yet made the link of the lvmlock volume.
func (h *Host) StartLockspace(ctx context.Context) error {
	var last string
	for range 10 {
		s, err := h.State(ctx)
		if err == nil && s.Lockspaces[Lockspace] {
			return nil
		}
		r, err := h.Run(ctx, "udevadm settle --timeout=10; vgchange --lockstart "+VG)
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
	return fmt.Errorf("the lockspace of %s does not start on %s: %s", VG, h.Name, last)
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

// Volumes finds volumes by name.
func (c *Cluster) Volumes(ctx context.Context, names ...string) ([]Volume, error) {
	out, err := c.A.Must(ctx, "lvs --reportformat json -o lv_name,lv_uuid,lv_lockargs "+VG)
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
			return nil, fmt.Errorf("no volume %s/%s", VG, name)
		}
		found = append(found, v)
	}
	return found, nil
}

func parseVolumes(out string) (map[string]Volume, error) {
	var report struct {
		Report []struct {
			LV []struct {
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
			v := Volume{Name: lv.Name, UUID: lv.UUID}
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
	_, err = c.A.Must(ctx, "lvremove -qq -y "+list)
	return err
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
