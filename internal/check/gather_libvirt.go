package check

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"virtlvm/internal/run"
)

// hookMark is in our hook's program and in no other (packaging/install-hook.sh).
const hookMark = "virtlvm/hooks/qemu"

func (s *Sources) gatherLibvirt(_ context.Context, f *Facts) {
	all, err := processes(s.Proc, "libvirtd", "virtqemud")
	for i := range all {
		all[i].Began = f.since(all[i].Start)
	}
	f.Libvirt = got(all, err)
	s.gatherHook(f)
	s.gatherAppArmor(f)
	s.gatherSELinux(f)
	f.Pools = got(s.pools())
	f.Running = got(s.Guests.Observe())
}

func (s *Sources) gatherHook(f *Facts) {
	h := &f.Hook
	paths := []string{hookMain}
	entries, err := fs.ReadDir(s.Root, path.Dir(hookExtra))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		h.Err = err
	}
	for _, e := range entries {
		paths = append(paths, path.Dir(hookExtra)+"/"+e.Name())
	}
	var ours []byte
	for _, p := range paths {
		file, ok := s.hookFile(p)
		if !ok {
			continue
		}
		data, err := fs.ReadFile(s.Root, p)
		switch {
		case err != nil && !file.Mode.IsDir():
			h.Err = err
		case bytes.HasPrefix(data, []byte("\x7fELF")) && bytes.Contains(data, []byte(hookMark)):
			if h.Ours = append(h.Ours, file); len(h.Ours) == 1 {
				ours = data
			}
		default:
			h.Others = append(h.Others, file)
		}
	}
	own, err := fs.ReadFile(s.Root, hookOwn)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		h.Unknown = "there is no /" + hookOwn + ": virtlvm was not installed from a package"
	case err != nil:
		h.Unknown = err.Error()
	default:
		h.Same = bytes.Equal(own, ours)
	}
}

// hookFile describes a file, or the one that a link leads to.
func (s *Sources) hookFile(p string) (HookFile, bool) {
	link, err := fs.Lstat(s.Root, p)
	if err != nil {
		return HookFile{}, false
	}
	file := HookFile{Path: "/" + p, Mode: link.Mode()}
	info, err := fs.Stat(s.Root, p)
	if err != nil {
		return file, true // a link that leads nowhere is there, too
	}
	file.Mode = info.Mode() | link.Mode()&fs.ModeSymlink
	file.Modified, file.Changed = info.ModTime(), info.ModTime()
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		file.UID = st.Uid
		file.Changed = time.Unix(st.Ctim.Unix())
	}
	return file, true
}

// allowsHooks is the rule of AppArmor that lets what lies in libvirt's folder of hooks be
// run, such as "/etc/libvirt/hooks/** rmix,".
var allowsHooks = regexp.MustCompile(`(?m)^\s*"?/etc/libvirt/hooks/\*\*"?\s+[a-zA-Z]*x\b`)

func (s *Sources) gatherAppArmor(f *Facts) {
	a := &f.AppArmor
	if a.Enabled = line(s.Sys, "module/apparmor/parameters/enabled") == "Y"; !a.Enabled {
		return
	}
	loaded, err := fs.ReadFile(s.Sys, "kernel/security/apparmor/profiles")
	if err != nil {
		a.Err = err
		return
	}
	a.Allows = true
	for text := range strings.Lines(string(loaded)) {
		// "libvirtd (enforce)", or the path of the program.
		name, mode, _ := strings.Cut(strings.TrimSpace(text), " ")
		daemon := path.Base(name)
		if daemon != "libvirtd" && daemon != "virtqemud" || mode != "(enforce)" {
			continue
		}
		a.Enforced = append(a.Enforced, daemon)
		rules := ""
		for _, file := range []string{"etc/apparmor.d/usr.sbin." + daemon, "etc/apparmor.d/local/usr.sbin." + daemon} {
			data, err := fs.ReadFile(s.Root, file)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				a.Err = err
			}
			rules += string(data) + "\n"
		}
		a.Allows = a.Allows && allowsHooks.MatchString(rules)
	}
}

func (s *Sources) gatherSELinux(f *Facts) {
	if f.SELinux.Enforcing = line(s.Sys, "fs/selinux/enforce") == "1"; !f.SELinux.Enforcing {
		return
	}
	// "1 1": the value, and the one that is pending.
	f.SELinux.Unconfined = strings.HasPrefix(line(s.Sys, "fs/selinux/booleans/virt_hooks_unconfined"), "1")
	if len(f.Hook.Ours) > 0 {
		f.SELinux.Label, _ = s.Label(f.Hook.Ours[0].Path[1:]) // "": not known
	}
}

// Where libvirt keeps its storage pools: definitions, links to those that start with it,
// and the running ones.
const (
	poolsDefined = "etc/libvirt/storage"
	poolsAuto    = "etc/libvirt/storage/autostart"
	poolsRunning = "run/libvirt/storage"
)

// poolXML is what is needed of a pool's definition (libvirt's formatstorage); a running
// one stands inside <poolstate>.
type poolXML struct {
	XMLName xml.Name
	Type    string `xml:"type,attr"`
	Name    string `xml:"name"`
	Source  struct {
		Name string `xml:"name"`
	} `xml:"source"`
	Pool *poolXML `xml:"pool"`
}

func (s *Sources) pools() ([]Pool, error) {
	found := map[string]*Pool{}
	var failed error
	for _, dir := range []string{poolsDefined, poolsRunning} {
		entries, err := fs.ReadDir(s.Root, dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			failed = errors.Join(failed, err)
		}
		for _, e := range entries {
			file := dir + "/" + e.Name()
			if e.IsDir() || path.Ext(file) != ".xml" {
				continue
			}
			data, err := fs.ReadFile(s.Root, file)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			var x poolXML
			if err == nil {
				err = xml.Unmarshal(data, &x)
			}
			if err != nil {
				failed = errors.Join(failed, errors.New("the definition /"+file+" cannot be read: "+err.Error()))
				continue
			}
			if x.Pool != nil {
				x = *x.Pool
			}
			if x.Type != "logical" || x.Name == "" {
				continue
			}
			p := found[x.Name]
			if p == nil {
				p = &Pool{Name: x.Name}
				found[x.Name] = p
			}
			if p.VG = x.Source.Name; p.VG == "" {
				p.VG = x.Name // libvirt's default
			}
			p.Running = p.Running || dir == poolsRunning
			_, err = fs.Lstat(s.Root, poolsAuto+"/"+e.Name())
			p.Autostart = p.Autostart || err == nil
		}
	}
	var all []Pool
	for _, name := range sortedKeys(found) {
		all = append(all, *found[name])
	}
	return all, failed
}

// unitNames are the units that are asked for.
func unitNames() []string {
	return append(bootUnits(), "wdmd.service", "libvirtd.service", "libvirtd.socket", "virtqemud.service", "virtqemud.socket")
}

func (s *Sources) gatherSystemd(ctx context.Context, f *Facts) {
	res, err := s.Runner.Run(ctx, run.Cmd{Name: "systemctl", Args: append(
		[]string{"show", "--no-pager", "--property=Id,LoadState,ActiveState,UnitFileState,After,ExecReload"}, unitNames()...,
	), Timeout: 20 * time.Second})
	var exit *run.ExitError
	if errors.As(err, &exit) && strings.TrimSpace(exit.Stderr) != "" {
		lines := strings.Split(strings.TrimSpace(exit.Stderr), "\n")
		err = errors.New(lines[0])
	}
	if err != nil {
		f.Units.Err = err
		return
	}
	f.Units.Value = parseUnits(string(res.Stdout))
}

// parseUnits reads `systemctl show`: "Key=value" lines, units apart by an empty line.
func parseUnits(out string) map[string]Unit {
	units := map[string]Unit{}
	for block := range strings.SplitSeq(out, "\n\n") {
		var u Unit
		for text := range strings.Lines(block) {
			key, value, _ := strings.Cut(strings.TrimSpace(text), "=")
			switch key {
			case "Id":
				u.Name = value
			case "LoadState":
				u.Loaded = value == "loaded" || value == "masked"
			case "ActiveState":
				u.Active = value
			case "UnitFileState":
				u.Enabled = value
			case "After":
				u.After = strings.Fields(value)
				slices.Sort(u.After)
			case "ExecReload":
				if at := reloadTime(value); at.After(u.Reloaded) {
					u.Reloaded = at
				}
			}
		}
		if u.Name != "" {
			units[u.Name] = u
		}
	}
	return units
}

// reloadTime reads "{ path=/bin/kill ; ... ; start_time=[Mon 2026-11-30 00:49:12 UTC] ; ... }",
// "[n/a]" where there was none. systemctl prints times in the zone of this host.
func reloadTime(s string) time.Time {
	_, rest, _ := strings.Cut(s, "start_time=[")
	text, _, _ := strings.Cut(rest, "]")
	at, err := time.ParseInLocation("Mon 2006-01-02 15:04:05 MST", text, time.Local)
	if err != nil {
		return time.Time{}
	}
	return at
}
