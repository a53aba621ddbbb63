package san

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// layer is one device-mapper device of an active LV.
type layer struct {
	lv     *lvState // whose uuid and data it has
	suffix string   // "-real", "-cow", "-tpool"; empty for the LV's own device
	held   int      // how many devices above have it open
}

func (l layer) name(vg *vgState) string { return dmName(vg.Name, l.lv.Name) + l.suffix }

// layers are the devices an LV needs, in the order of their making, its own last. A thin
// volume's include those of its pool.
func (vg *vgState) layers(lv *lvState) []layer {
	if lv == vg.LockLV {
		return []layer{{lv: lv, held: 1}} // by sanlock
	}
	var out []layer
	for _, p := range vg.parts(lv) {
		out = append(out, layer{lv: p, held: 1})
	}
	switch snaps := vg.snapshots(lv); {
	case lv.Seg == "thin-pool":
		out = append(out, layer{lv: lv, suffix: "-tpool", held: 2})
	case lv.Seg == "thin":
		pool := vg.layers(vg.find(lv.Pool))
		out = append(out, pool[:len(pool)-1]...)
	case len(snaps) > 0:
		out = append(out, layer{lv: lv, suffix: "-real", held: 1 + len(snaps)})
		for _, s := range snaps {
			out = append(out, layer{lv: s, suffix: "-cow", held: 1}, layer{lv: s})
		}
	}
	return append(out, layer{lv: lv})
}

// active reports whether the LV's device is there; a pool's also when only its thin
// volumes are.
func (h *hostState) active(vg *vgState, lv *lvState) bool {
	name := dmName(vg.Name, lv.Name)
	return h.Devs[name] != nil || lv.Seg == "thin-pool" && h.Devs[name+"-tpool"] != nil
}

// activate makes what is missing of an LV's devices.
func (s *SAN) activate(h *hostState, vg *vgState, lv *lvState) error {
	for _, l := range vg.layers(lv) {
		name := l.name(vg)
		if h.Devs[name] != nil {
			continue
		}
		d := &device{
			UUID: dmUUID(vg, l.lv) + l.suffix, Minor: h.freeMinor(), VG: vg.Name, LV: l.lv.Name,
			ReadOnly: l.lv.ReadOnly, Held: l.held,
		}
		if err := s.link(h, vg, l, d); err != nil {
			return err
		}
		h.Devs[name] = d
	}
	return nil
}

// deactivate removes an LV's devices; inUse names the LV that is open, if one is.
func (s *SAN) deactivate(h *hostState, vg *vgState, lv *lvState) (inUse string, err error) {
	for _, l := range vg.layers(lv) {
		if l.suffix == "" && l.held == 0 && s.opens(h.Name, l.name(vg)) > 0 {
			return l.lv.Name, nil
		}
	}
	if pool := vg.locker(lv); pool != nil && pool.Seg == "thin-pool" {
		return "", s.deactivateThin(h, vg, lv, pool)
	}
	for _, l := range vg.layers(lv) {
		if err := s.unlink(h, l.name(vg)); err != nil {
			return "", err
		}
	}
	return "", nil
}

// deactivateThin removes one device of a pool, and the pool's layers with the last.
func (s *SAN) deactivateThin(h *hostState, vg *vgState, lv, pool *lvState) error {
	if err := s.unlink(h, dmName(vg.Name, lv.Name)); err != nil {
		return err
	}
	for _, o := range append(vg.thins(pool), pool) {
		if h.Devs[dmName(vg.Name, o.Name)] != nil {
			return nil
		}
	}
	for _, l := range vg.layers(pool) {
		if err := s.unlink(h, l.name(vg)); err != nil {
			return err
		}
	}
	return nil
}

func (h *hostState) freeMinor() int {
	used := map[int]bool{}
	for _, d := range h.Devs {
		used[d.Minor] = true
	}
	n := 0
	for used[n] {
		n++
	}
	return n
}

// link makes the files by which a device shows under /sys and /dev.
func (s *SAN) link(h *hostState, vg *vgState, l layer, d *device) error {
	dir, name, dm := s.hostDir(h.Name), l.name(vg), "dm-"+strconv.Itoa(d.Minor)
	sys := filepath.Join(dir, "sys/block", dm, "dm")
	links := s.links(h.Name, name, d)
	folders := []string{filepath.Dir(sys), sys}
	if _, named := links[filepath.Join(dir, "dev", d.VG, d.LV)]; named {
		folders = append(folders, filepath.Join(dir, "dev", d.VG))
	}
	for _, path := range folders {
		if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	for file, text := range map[string]string{"name": name, "uuid": d.UUID} {
		if err := os.WriteFile(filepath.Join(sys, file), []byte(text+"\n"), 0o644); err != nil {
			return err
		}
	}
	sectors := strconv.FormatInt(l.lv.Size/512, 10)
	if err := os.WriteFile(filepath.Join(dir, "sys/block", dm, "size"), []byte(sectors+"\n"), 0o644); err != nil {
		return err
	}
	links[filepath.Join(dir, "dev", dm)] = dataLink(vg, l.lv)
	for path, target := range links {
		if err := os.Symlink(target, path); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}

// dataLink is where a device node leads: to the data of an LV.
func dataLink(vg *vgState, lv *lvState) string {
	return filepath.Join("../../../luns", vg.Name, lv.UUID)
}

// relink lets a device node lead elsewhere; nowhere is how a device whose table gives
// errors looks to whoever opens it. (The real one can be opened, and fails then.)
func (s *SAN) relink(h *hostState, d *device, target string) error {
	node := filepath.Join(s.hostDir(h.Name), "dev", "dm-"+strconv.Itoa(d.Minor))
	if err := os.Remove(node); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.Symlink(target, node)
}

// links are udev's names of a device; hidden LVs and layers have only some of them.
func (s *SAN) links(host, name string, d *device) map[string]string {
	dev, dm := filepath.Join(s.hostDir(host), "dev"), "dm-"+strconv.Itoa(d.Minor)
	links := map[string]string{
		filepath.Join(dev, "mapper", name):                  "../" + dm,
		filepath.Join(dev, "disk/by-id", "dm-name-"+name):   "../../" + dm,
		filepath.Join(dev, "disk/by-id", "dm-uuid-"+d.UUID): "../../" + dm,
		filepath.Join(dev, d.VG, d.LV):                      "../" + dm,
	}
	if name != dmName(d.VG, d.LV) || d.Held > 0 {
		delete(links, filepath.Join(dev, d.VG, d.LV))
	}
	return links
}

func (s *SAN) unlink(h *hostState, name string) error {
	d := h.Devs[name]
	if d == nil {
		return nil
	}
	for path := range s.links(h.Name, name, d) {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	dir, dm := s.hostDir(h.Name), "dm-"+strconv.Itoa(d.Minor)
	// The VG's folder goes with its last device, as udev has it; else this fails.
	_ = os.Remove(filepath.Join(dir, "dev", d.VG))
	if err := os.Remove(filepath.Join(dir, "dev", dm)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	delete(h.Devs, name)
	sys := filepath.Join(dir, "sys/block", dm)
	for _, path := range []string{"dm/name", "dm/uuid", "dm", "size", ""} {
		if err := os.Remove(filepath.Join(sys, path)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

func (s *SAN) openDir(host, name string) string { return filepath.Join(s.hostDir(host), "open", name) }

// opens counts the processes that have a device open.
func (s *SAN) opens(host, name string) int {
	entries, err := os.ReadDir(s.openDir(host, name))
	if err != nil {
		return 0
	}
	n := 0
	for _, e := range entries {
		if s.CheckPids && !alive(s.openDir(host, name), e.Name()) {
			continue
		}
		n++
	}
	return n
}

// openCount is the open count the kernel shows.
func (s *SAN) openCount(host, name string, d *device) int { return d.Held + s.opens(host, name) }

// alive reports whether the process that a marker names is the one that made it.
func alive(dir, name string) bool {
	pid, err := strconv.Atoi(name)
	if err != nil || errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
		return false
	}
	want, err := os.ReadFile(filepath.Join(dir, name))
	return err == nil && (len(want) == 0 || string(want) == startTime(pid))
}

// startTime is field 22 of /proc/PID/stat, counted from behind the command's name.
func startTime(pid int) string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	if len(fields) < 20 {
		return ""
	}
	return fields[19]
}
