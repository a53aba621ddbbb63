package packaging

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func (h *host) installHook() (int, string) {
	return h.run("install-hook.sh", h.path(shipped), h.path("etc/libvirt/hooks"))
}

func TestHookIsInstalledBesideWhatIsThere(t *testing.T) {
	for name, tt := range map[string]struct {
		there func(h *host)
		want  map[string]string
	}{
		"nothing": {func(*host) {}, map[string]string{"qemu": "ours"}},
		"empty folder": {func(h *host) {
			h.write("etc/libvirt/hooks/qemu.d/x", "", 0o644)
			remove(h, "etc/libvirt/hooks/qemu.d/x")
		}, map[string]string{"qemu": "ours"}},
		"ours of before": {
			func(h *host) { h.write(mainHook, oldHook(h.t), 0o755) },
			map[string]string{"qemu": "ours"},
		},
		"ours of before, beside another's that has gone": {
			func(h *host) { h.write(extraHook, oldHook(h.t), 0o755) },
			map[string]string{"qemu": "ours"},
		},
		"an administrator's": {
			func(h *host) { h.write(mainHook, foreign, 0o755) },
			map[string]string{"qemu": "theirs", "qemu.d/50-virtlvm": "ours"},
		},
		"an administrator's, and ours of before": {
			func(h *host) { h.write(mainHook, foreign, 0o755); h.write(extraHook, oldHook(h.t), 0o755) },
			map[string]string{"qemu": "theirs", "qemu.d/50-virtlvm": "ours"},
		},
		"an administrator's that is switched off": {
			func(h *host) { h.write(mainHook, foreign, 0o644) },
			map[string]string{"qemu": "theirs", "qemu.d/50-virtlvm": "ours"},
		},
		"an empty file": {
			func(h *host) { h.write(mainHook, "", 0o755) },
			map[string]string{"qemu": "theirs", "qemu.d/50-virtlvm": "ours"},
		},
		"a link that leads nowhere": {
			func(h *host) { link(h, "nowhere", mainHook) },
			map[string]string{"qemu": "L---------", "qemu.d/50-virtlvm": "ours"},
		},
		"a link to ours": {
			func(h *host) { link(h, h.path(shipped), mainHook) },
			map[string]string{"qemu": "ours"},
		},
		"a folder": {
			func(h *host) { h.write(mainHook+"/x", foreign, 0o755) },
			map[string]string{"qemu/x": "theirs", "qemu.d/50-virtlvm": "ours"},
		},
		"others in qemu.d": {
			func(h *host) { h.write("etc/libvirt/hooks/qemu.d/10-theirs", foreign, 0o755) },
			map[string]string{"qemu": "ours", "qemu.d/10-theirs": "theirs"},
		},
		"hooks of other drivers": {
			func(h *host) { h.write("etc/libvirt/hooks/network", foreign, 0o755) },
			map[string]string{"qemu": "ours", "network": "theirs"},
		},
		"half of an installation": {
			func(h *host) { h.write("etc/libvirt/hooks/.virtlvm-hook.new", "half", 0o755) },
			map[string]string{"qemu": "ours"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			tt.there(h)
			for _, time := range []string{"first", "second"} {
				code, out := h.installHook()
				require.Zero(t, code, out)
				assert.Equal(t, tt.want, h.hooks(), "%s time: %s", time, out)
			}

			h.must("install-hook.sh", "--remove", h.path("etc/libvirt/hooks"))
			for file, what := range h.hooks() {
				assert.Contains(t, []string{"theirs", "L---------"}, what, file)
				assert.Equal(t, tt.want[file], what)
			}
			assert.NoFileExists(t, h.path(extraHook))
			h.must("install-hook.sh", "--remove", h.path("etc/libvirt/hooks"))
		})
	}
}

func remove(h *host, name string) { require.NoError(h.t, os.Remove(h.path(name))) }

func link(h *host, to, name string) {
	h.write(name, "", 0o644)
	remove(h, name)
	require.NoError(h.t, os.Symlink(to, h.path(name)))
}

func TestHookOfTheSameNameInQemuD(t *testing.T) {
	h := newHost(t)
	h.write(mainHook, foreign, 0o755)
	h.write(extraHook, foreign, 0o755)
	code, out := h.installHook()
	assert.Equal(t, 1, code)
	assert.Contains(t, out, "are somebody else's")
	assert.Equal(t, map[string]string{"qemu": "theirs", "qemu.d/50-virtlvm": "theirs"}, h.hooks())
}

// A rename takes a running hook's file away from nobody, and the time that stays tells
// since when libvirt can have known that there is a hook.
func TestHookIsReplacedByRenameAndKeepsItsTime(t *testing.T) {
	h := newHost(t)
	h.write(mainHook, oldHook(t), 0o755)
	h.age(mainHook, 1000*time.Hour)
	before, err := os.Stat(h.path(mainHook))
	require.NoError(t, err)
	code, out := h.installHook()
	require.Zero(t, code, out)
	after, err := os.Stat(h.path(mainHook))
	require.NoError(t, err)
	assert.False(t, os.SameFile(before, after))
	assert.Equal(t, before.ModTime(), after.ModTime())
}

func TestHookThatDoesNotRunIsNotMadeVisible(t *testing.T) {
	for name, tt := range map[string]struct{ content, says string }{
		"half a program":         {string(ours(t)[:4096]), "does not run on this host: 'prepare' ended with"},
		"another processor's":    {"\x7fELF\x02\x01\x01 virtlvm/hooks/qemu", "does not run on this host: 'prepare' ended with 12"},
		"one that allows all":    {"#!/bin/sh\n", "'prepare' ended with 0, not 1"},
		"one that refuses all":   {"#!/bin/sh\necho broken >&2; exit 1\n", "'release' ended with 1, not 0: broken"},
		"one that keeps nothing": {"#!/bin/sh\n[ $2 = release ]\n", "does not keep what it cannot tell"},
		"nothing at all":         {"", "'prepare' ended with 0, not 1"},
	} {
		for _, there := range []string{"", oldHook(t)} {
			t.Run(name, func(t *testing.T) {
				h := newHost(t)
				want := map[string]string{}
				if there != "" {
					h.write(mainHook, there, 0o755)
					want["qemu"] = "ours of before"
				}
				h.write(shipped, tt.content, 0o755)
				code, out := h.installHook()
				assert.Equal(t, 1, code)
				assert.Contains(t, out, tt.says)
				assert.Equal(t, want, h.hooks(), "the folder is left as it was")
			})
		}
	}
}

func TestHookIsProvedWithoutTouchingTheHost(t *testing.T) {
	h := newHost(t)
	// Writes down what it could reach.
	h.write(shipped, "#!/bin/sh\nenv | grep ^VIRTLVM_HOOK >"+h.path("seen")+"\n", 0o755)
	_, _ = h.installHook()
	seen, err := os.ReadFile(h.path("seen"))
	require.NoError(t, err)
	for _, name := range []string{"SOCKET", "SPOOL", "SETTINGS", "BREAK_GLASS"} {
		assert.Regexp(t, "(?m)^VIRTLVM_HOOK_"+name+"="+h.tmp+"/", string(seen))
	}
	left, err := os.ReadDir(h.tmp)
	require.NoError(t, err)
	assert.Empty(t, left, "nothing is left behind")
}
