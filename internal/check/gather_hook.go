package check

import (
	"bytes"
	"errors"
	"io/fs"
	"path"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// hookMark is in our hook's program and in no other (packaging/install-hook.sh).
const hookMark = "virtlvm/hooks/qemu"

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
