package packaging

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// steps are what a package manager runs, in its order.
type steps struct {
	install, upgrade, remove, purge [][]string
	start, restart, stop            string // the call of the stand-ins
}

func managers() map[string]steps {
	return map[string]steps{
		"deb": {
			install: [][]string{{"deb/postinst", "configure", ""}},
			upgrade: [][]string{{"deb/prerm", "upgrade", "2"}, {"deb/postrm", "upgrade", "2"}, {"deb/postinst", "configure", "1"}},
			remove:  [][]string{{"deb/prerm", "remove"}, {"deb/postrm", "remove"}},
			purge:   [][]string{{"deb/postrm", "purge"}},
			start:   "deb-systemd-invoke restart virtlvmd.service", restart: "deb-systemd-invoke restart virtlvmd.service",
			stop: "deb-systemd-invoke stop virtlvmd.socket ",
		},
		"rpm": {
			install: [][]string{{"rpm/post", "1"}},
			upgrade: [][]string{{"rpm/post", "2"}, {"rpm/preun", "1"}, {"rpm/postun", "1"}},
			remove:  [][]string{{"rpm/preun", "0"}, {"rpm/postun", "0"}},
			start:   "systemctl start virtlvmd.service ", restart: "systemctl try-restart virtlvmd.service",
			stop: "systemctl stop virtlvmd.socket ",
		},
	}
}

func (h *host) do(scripts [][]string) string {
	h.t.Helper()
	out := ""
	for _, s := range scripts {
		out += h.must(s[0], s[1:]...)
	}
	return out
}

// contains reports whether a call begins so.
func contains(calls []string, begin string) bool {
	for _, c := range calls {
		if strings.HasPrefix(c, begin) {
			return true
		}
	}
	return false
}

func TestLifeOfAPackage(t *testing.T) {
	for name, m := range managers() {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			out := h.do(m.install)
			calls := h.calls()
			assert.True(t, contains(calls, "no-hook "+m.start), "the daemon runs before libvirt finds the hook: %v", calls)
			assert.Equal(t, map[string]string{"qemu": "ours"}, h.hooks())
			assert.Equal(t, "virtlvm: hook installed as "+h.path(mainHook)+"\n", out, "and there is nothing else to say")

			h.write("var/lib/virtlvm/virtlvm.db", "journal", 0o600)
			h.write("etc/virtlvm/virtlvm.toml", "# mine", 0o644)
			h.write(mainHook, oldHook(t), 0o755)
			h.do(m.upgrade)
			calls = h.calls()
			assert.True(t, contains(calls, "hook "+m.restart), "%v", calls)
			assert.False(t, contains(calls, "hook "+m.stop), "an upgrade only restarts: %v", calls)
			assert.Equal(t, map[string]string{"qemu": "ours"}, h.hooks())

			h.write("run/virtlvm/hook.json", "{}", 0o644)
			h.do(m.remove)
			calls = h.calls()
			assert.True(t, contains(calls, "no-hook "+m.stop), "the hook goes before the daemon: %v", calls)
			assert.Empty(t, h.hooks())
			assert.NoDirExists(t, h.path("run/virtlvm"))
			assert.FileExists(t, h.path("var/lib/virtlvm/virtlvm.db"))
			assert.FileExists(t, h.path("etc/virtlvm/virtlvm.toml"))

			// A removal that stopped half-way, and once more.
			h.do(m.remove)
		})
	}
}

func TestPurgeTakesWhatIsOurs(t *testing.T) {
	h := newHost(t)
	h.do(managers()["deb"].install)
	h.write("var/lib/virtlvm/virtlvm.db", "journal", 0o600)
	h.write("etc/virtlvm/break-glass", "", 0o644)
	h.write("etc/virtlvm/notes-of-mine", "", 0o644)
	h.do(managers()["deb"].remove)
	h.do(managers()["deb"].purge)
	assert.NoDirExists(t, h.path("var/lib/virtlvm"))
	assert.NoFileExists(t, h.path("etc/virtlvm/break-glass"))
	assert.FileExists(t, h.path("etc/virtlvm/notes-of-mine"))
	require.NoError(t, os.Remove(h.path("etc/virtlvm/notes-of-mine")))
	h.do(managers()["deb"].purge)
	assert.NoDirExists(t, h.path("etc/virtlvm"))
}

func TestAdministratorsHookLivesThroughEverything(t *testing.T) {
	for name, m := range managers() {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			h.write(mainHook, foreign, 0o755)
			h.do(m.install)
			h.do(m.upgrade)
			assert.Equal(t, map[string]string{"qemu": "theirs", "qemu.d/50-virtlvm": "ours"}, h.hooks())
			h.do(m.remove)
			h.do(m.purge)
			assert.Equal(t, map[string]string{"qemu": "theirs"}, h.hooks())
		})
	}
}

// In a container or while an image is built nothing can be started.
func TestWithoutSystemd(t *testing.T) {
	for name, m := range managers() {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			require.NoError(t, os.RemoveAll(h.path("run/systemd")))
			out := h.do(m.install) + h.do(m.upgrade)
			assert.Equal(t, map[string]string{"qemu": "ours"}, h.hooks())
			assert.Contains(t, out, "virtlvmd starts at the next boot")
			h.do(m.remove)
			for _, call := range h.calls() {
				assert.NotRegexp(t, `systemd-invoke|systemctl (daemon-reload|start|stop|try-restart)`, call)
			}
			assert.Empty(t, h.hooks())
		})
	}
}

// After a downgrade the daemon refuses the newer database. The package is configured all
// the same, and says what to do.
func TestDaemonThatDoesNotStart(t *testing.T) {
	for name, m := range managers() {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			h.write("broken", "", 0o644)
			h.write("active", "\n", 0o644)
			const why = "virtlvmd: the journal has schema 2, this virtlvm knows 1: install that version again"
			h.write("journal", "Starting\nvirtlvmd: older words\n"+why+"\nFailed\n", 0o644)
			for _, when := range [][][]string{m.install, m.upgrade} {
				out := h.do(when)
				assert.Contains(t, out, "NO GUEST STARTS on this host")
				assert.Contains(t, out, "the last it said: "+why+"\n")
				assert.NotContains(t, out, "older words")
				assert.Equal(t, map[string]string{"qemu": "ours"}, h.hooks(), "in doubt no guest starts")
			}
		})
	}
}

func TestHookThatDoesNotRunFailsThePackage(t *testing.T) {
	for name, m := range managers() {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			h.write(mainHook, oldHook(t), 0o755)
			h.write(shipped, string(ours(t)[:4096]), 0o755)
			code, out := h.run(m.install[0][0], m.install[0][1:]...)
			assert.Equal(t, 1, code)
			assert.Contains(t, out, "does not run on this host")
			assert.Equal(t, map[string]string{"qemu": "ours of before"}, h.hooks())

			// Repaired, the same step goes through.
			h.write(shipped, string(ours(t)), 0o755)
			h.do(m.install)
			assert.Equal(t, map[string]string{"qemu": "ours"}, h.hooks())
		})
	}
}

func TestDebRollsBack(t *testing.T) {
	h := newHost(t)
	h.do(managers()["deb"].install)
	h.must("deb/prerm", "remove")
	assert.Empty(t, h.hooks())
	h.must("deb/postinst", "abort-remove")
	assert.Equal(t, map[string]string{"qemu": "ours"}, h.hooks(), "a removal that is given up brings the hook back")
	for _, args := range [][]string{{"deb/prerm", "deconfigure"}, {"deb/prerm", "failed-upgrade", "1"}, {"deb/postrm", "abort-install"}, {"deb/postrm", "abort-upgrade", "1"}} {
		h.must(args[0], args[1:]...)
		assert.Equal(t, map[string]string{"qemu": "ours"}, h.hooks(), "%v", args)
	}
	for _, script := range []string{"deb/postinst", "deb/prerm", "deb/postrm"} {
		code, _ := h.run(script, "frobnicate")
		assert.Equal(t, 1, code, script)
	}
}

func TestDebKeepsDisabled(t *testing.T) {
	h := newHost(t)
	h.write("disabled", "", 0o644)
	h.do(managers()["deb"].install)
	assert.False(t, contains(h.calls(), "no-hook deb-systemd-helper enable"))
}

func TestNotesOnReload(t *testing.T) {
	const started = "ActiveEnterTimestamp=Mon 2026-03-02 10:00:00 UTC\n"
	at := time.Date(2026, 3, 2, 10, 0, 0, 0, time.UTC)
	reloaded := func(when string) string {
		return started + "ExecReload={ path=/bin/kill ; argv[]=/bin/kill -HUP $MAINPID ; ignore_errors=no ; start_time=[" + when + "] ; stop_time=[n/a] ; pid=0 }\n"
	}
	for name, tt := range map[string]struct {
		active, show string
		hook         time.Time
		want         bool
	}{
		"libvirt does not run":             {"", "", at.Add(time.Hour), false},
		"there was none at its start":      {"libvirtd.service", started, at.Add(time.Hour), true},
		"there was one at its start":       {"libvirtd.service", started, at.Add(-time.Hour), false},
		"the same second is not before":    {"libvirtd.service", started, at, true},
		"never reloaded":                   {"libvirtd.service", reloaded("n/a"), at.Add(time.Hour), true},
		"reloaded since":                   {"libvirtd.service", reloaded("Mon 2026-03-02 12:00:00 UTC"), at.Add(time.Hour), false},
		"reloaded before":                  {"libvirtd.service", reloaded("Mon 2026-03-02 10:30:00 UTC"), at.Add(time.Hour), true},
		"nobody knows when it was started": {"libvirtd.service", "", at.Add(-time.Hour), true},
		"the modular daemon":               {"virtqemud.service", started, at.Add(time.Hour), true},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			h.write("active", "virtlvmd.service\n"+tt.active+"\n", 0o644)
			h.write("show", tt.show, 0o644)
			h.write(mainHook, string(ours(t)), 0o755)
			require.NoError(t, os.Chtimes(h.path(mainHook), tt.hook, tt.hook))
			out := h.must("notes.sh", h.root)
			if !tt.want {
				assert.Empty(t, out)
				return
			}
			assert.Contains(t, out, "systemctl reload "+strings.TrimSuffix(tt.active, ".service")+"\n")
			assert.Equal(t, 1, strings.Count(out, "\n"))
		})
	}
}

// Where somebody else's hook was there, libvirt looks into qemu.d at each call.
func TestNotesOnReloadBesideAnotherHook(t *testing.T) {
	h := newHost(t)
	h.write("active", "virtlvmd.service\nlibvirtd.service\n", 0o644)
	h.write(mainHook, foreign, 0o755)
	h.write(extraHook, string(ours(t)), 0o755)
	show := func(when time.Time) {
		h.write("show", "ActiveEnterTimestamp="+when.UTC().Format("Mon 2006-01-02 15:04:05 MST")+"\n", 0o644)
	}
	show(time.Now().Add(time.Hour))
	assert.Empty(t, h.must("notes.sh", h.root))
	// Its own time may be anything: the file may have been moved there today.
	show(time.Now().Add(-time.Hour))
	h.age(mainHook, 1000*time.Hour)
	assert.Contains(t, h.must("notes.sh", h.root), "systemctl reload libvirtd")
	// A file that cannot be run is no hook.
	show(time.Now().Add(time.Hour))
	require.NoError(t, os.Chmod(h.path(mainHook), 0o644))
	require.NoError(t, os.Remove(h.path(extraHook)))
	assert.Contains(t, h.must("notes.sh", h.root), "systemctl reload libvirtd")
}

func TestNotesOnWhatIsMissing(t *testing.T) {
	for program, want := range map[string]string{
		"libvirtd": "libvirt is not installed", "lvm": "LVM is not installed", "lvmlockd": "lvmlockd is not installed",
		"sanlock": "sanlock is not installed", "qemu-img": "qemu-img is not installed",
	} {
		h := newHost(t)
		require.NoError(t, os.Remove(h.path("usr/sbin/"+program)))
		out := h.must("notes.sh", h.root)
		assert.Contains(t, out, want)
		assert.Equal(t, 1, strings.Count(out, "\n"), out)
	}
	h := newHost(t)
	h.write("usr/sbin/virtqemud", "", 0o755)
	require.NoError(t, os.Remove(h.path("usr/sbin/libvirtd")))
	assert.Empty(t, h.must("notes.sh", h.root))
	require.NoError(t, os.WriteFile(filepath.Join(h.bin, "getsebool"), []byte(standIn), 0o755))
	assert.Contains(t, h.must("notes.sh", h.root), "README.SELinux")
}

// What is listed in several places is the same in all of them.
func TestEveryUnitIsPackaged(t *testing.T) {
	read := func(name string) string {
		data, err := os.ReadFile(name)
		require.NoError(t, err)
		return string(data)
	}
	config, makefile := read("../nfpm.yaml"), read("../Makefile")
	units, err := filepath.Glob("../systemd/*")
	require.NoError(t, err)
	require.Greater(t, len(units), 3)
	for _, path := range units {
		unit := filepath.Base(path)
		if drop, err := filepath.Glob(path + "/*.conf"); err == nil && len(drop) > 0 {
			unit += "/" + filepath.Base(drop[0])
		}
		assert.Contains(t, config, "src: systemd/"+unit+",", "nfpm.yaml")
		assert.Contains(t, makefile, "systemd/"+unit, "Makefile")
		if strings.HasPrefix(unit, "virtlvmd") {
			for _, script := range []string{"deb/postinst", "deb/prerm", "deb/postrm", "rpm/post", "rpm/preun"} {
				assert.Contains(t, read(script), unit, script)
			}
		}
	}
}

// What the daemon gives up while the host goes down needs the lock manager and the way to the
// storage, and the guests and libvirt must have ended: units stop in the opposite order.
func TestOrderOfUnits(t *testing.T) {
	of := func(key, file string) []string {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		var all []string
		for _, line := range strings.Split(string(data), "\n") {
			if units, ok := strings.CutPrefix(line, key+"="); ok {
				all = append(all, strings.Fields(units)...)
			}
		}
		return all
	}
	assert.ElementsMatch(t, []string{"sanlock.service", "lvmlockd.service", "lvmlocks.service", "network.target", "remote-fs-pre.target"},
		of("After", "../systemd/virtlvmd.service"))
	assert.Equal(t, []string{"libvirt-guests.service"}, of("Before", "../systemd/virtlvmd.service"))
	for _, libvirt := range []string{"libvirtd", "virtqemud"} {
		assert.Equal(t, []string{"virtlvmd.service"}, of("After", "../systemd/"+libvirt+".service.d/50-virtlvm.conf"))
	}
}

func TestVersionsSortAsReleased(t *testing.T) {
	version := func(v string) string {
		out, err := exec.Command("../tools/package-version.sh", v).Output()
		require.NoError(t, err)
		return strings.TrimSpace(string(out))
	}
	order := []string{"0.1.0-dev", "0.1.0", "1.2.0-rc1", "1.2.0-rc2", "1.2.0", "1.2.0-5-gabc123", "1.2.0-5-gabc123-dirty", "1.2.0-12-g0abc12", "1.2.1"}
	for i, v := range order {
		assert.NotContains(t, version(v), "-", "a dash separates the packages' own revision")
		if i == 0 {
			continue
		}
		if _, err := exec.LookPath("dpkg"); err == nil {
			assert.NoError(t, exec.Command("dpkg", "--compare-versions", version(order[i-1])+"-1", "lt", version(v)+"-1").Run(), "%s before %s", order[i-1], v)
		}
	}
}
