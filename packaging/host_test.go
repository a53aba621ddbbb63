// Package packaging tests what the packages run on a host: the scripts of the package
// managers, and the installation of the hook, in a scratch root with stand-ins for systemd.
package packaging

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// hookBinary is the hook as it is shipped.
var hookBinary = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "virtlvm-hook")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", dir+"/qemu", "../hooks/qemu")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, errors.New(string(out))
	}
	return os.ReadFile(dir + "/qemu")
})

// standIn is every program of the host that the scripts run, but for plain tools: it notes how it
// was called, whether the hook was visible then, and answers from files of the root.
const standIn = `#!/bin/sh
visible=no-hook
[ ! -e "$ROOT/etc/libvirt/hooks/qemu" ] && [ ! -e "$ROOT/etc/libvirt/hooks/qemu.d/50-virtlvm" ] || visible=hook
name=$(basename "$0")
echo "$visible $name $*" >>"$ROOT/calls"
case "$name $*" in
'systemctl is-active --quiet '*) grep -qx "$3" "$ROOT/active" ;;
'systemctl show '*) cat "$ROOT/show" ;;
'journalctl '*) cat "$ROOT/journal" ;;
'deb-systemd-helper --quiet was-enabled '*) [ ! -e "$ROOT/disabled" ] ;;
'deb-systemd-invoke restart '* | 'systemctl start '*) [ ! -e "$ROOT/broken" ] ;;
'systemd-tmpfiles '*) mkdir -p "$ROOT/var/lib/virtlvm/spool" ;;
'getsebool '*) echo 'virt_hooks_unconfined --> off' ;;
esac
`

// host is a scratch root in which the package's files lie already.
type host struct {
	t    *testing.T
	root string
	bin  string // of the stand-ins
	tmp  string // for temporary files
}

const (
	mainHook  = "etc/libvirt/hooks/qemu"
	extraHook = "etc/libvirt/hooks/qemu.d/50-virtlvm"
	shipped   = "usr/lib/virtlvm/qemu"
	foreign   = "#!/bin/sh\n# not virtlvm/hooks/qemu\n"
)

func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{t: t, root: t.TempDir(), bin: t.TempDir(), tmp: t.TempDir()}
	// In memory where that can be had: the hook waits for the disk when it keeps an event.
	if dir, err := os.MkdirTemp("/dev/shm", "virtlvm-packaging"); err == nil {
		h.tmp = dir
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
	}
	for _, name := range []string{"sync", "systemctl", "journalctl", "systemd-sysusers", "systemd-tmpfiles", "deb-systemd-helper", "deb-systemd-invoke"} {
		require.NoError(t, os.WriteFile(filepath.Join(h.bin, name), []byte(standIn), 0o755))
	}
	h.write(shipped, string(ours(t)), 0o755)
	for from, to := range map[string]string{"install-hook.sh": "install-hook", "notes.sh": "notes"} {
		script, err := os.ReadFile(from)
		require.NoError(t, err)
		h.write("usr/lib/virtlvm/"+to, string(script), 0o755)
	}
	for _, program := range []string{"libvirtd", "lvm", "lvmlockd", "sanlock", "qemu-img"} {
		h.write("usr/sbin/"+program, "", 0o755)
	}
	h.write("run/systemd/system/x", "", 0o644)
	h.write("active", "virtlvmd.service\n", 0o644)
	h.write("show", "", 0o644)
	h.write("journal", "", 0o644)
	h.write("calls", "", 0o644)
	return h
}

// ours is the hook as it is shipped, oldHook one of an earlier version.
func ours(t *testing.T) []byte {
	t.Helper()
	data, err := hookBinary()
	require.NoError(t, err)
	return data
}

func oldHook(t *testing.T) string { return string(ours(t)) + "earlier" }

func (h *host) path(name string) string { return filepath.Join(h.root, name) }

func (h *host) write(name, content string, mode os.FileMode) {
	h.t.Helper()
	require.NoError(h.t, os.MkdirAll(filepath.Dir(h.path(name)), 0o755))
	require.NoError(h.t, os.WriteFile(h.path(name), []byte(content), mode))
	require.NoError(h.t, os.Chmod(h.path(name), mode))
}

// age sets the time of a file to so long ago.
func (h *host) age(name string, ago time.Duration) {
	h.t.Helper()
	when := time.Now().Add(-ago)
	require.NoError(h.t, os.Chtimes(h.path(name), when, when))
}

// run is a script with its arguments, in the root, with no more of this machine than its
// ordinary tools. The script may be one without a #! line.
func (h *host) run(script string, args ...string) (code int, out string) {
	h.t.Helper()
	path, err := filepath.Abs(script)
	require.NoError(h.t, err)
	cmd := exec.Command("sh", append([]string{path}, args...)...)
	cmd.Env = []string{"PATH=" + h.bin + ":/usr/bin:/bin", "LC_ALL=C", "TZ=UTC", "TMPDIR=" + h.tmp, "ROOT=" + h.root, "DPKG_ROOT=" + h.root, "VIRTLVM_ROOT=" + h.root}
	output, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(h.t, err)
	}
	return cmd.ProcessState.ExitCode(), string(output)
}

// must is run where the script has to succeed.
func (h *host) must(script string, args ...string) string {
	h.t.Helper()
	code, out := h.run(script, args...)
	require.Zero(h.t, code, "%s %v: %s", script, args, out)
	return out
}

// calls are the stand-ins' notes since the last time, and that none was of libvirt but to
// ask.
func (h *host) calls() []string {
	h.t.Helper()
	data, err := os.ReadFile(h.path("calls"))
	require.NoError(h.t, err)
	h.write("calls", "", 0o644)
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	for _, line := range lines {
		if strings.Contains(line, "libvirtd") || strings.Contains(line, "virtqemud") {
			assert.Regexp(h.t, `systemctl (is-active|show) `, line, "libvirt is never touched")
		}
	}
	return lines
}

// hooks is what libvirt finds in its folder: names with "ours", "->" and the like.
func (h *host) hooks() map[string]string {
	h.t.Helper()
	found := map[string]string{}
	base := h.path("etc/libvirt/hooks")
	err := filepath.WalkDir(base, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(base, path)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		data, _ := os.ReadFile(path) // a link may lead nowhere
		switch {
		case !info.Mode().IsRegular():
			found[name] = info.Mode().Type().String()
		case string(data) == string(ours(h.t)) && info.Mode().Perm() == 0o755:
			found[name] = "ours"
		case string(data) == oldHook(h.t):
			found[name] = "ours of before"
		default:
			found[name] = "theirs"
		}
		return nil
	})
	if !errors.Is(err, os.ErrNotExist) {
		require.NoError(h.t, err)
	}
	return found
}
