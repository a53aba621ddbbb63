package san

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// lab is a SAN with hosts kvm-a and kvm-b, the VG vg_san, and a clock that stands still.
type lab struct {
	*testing.T
	san  *SAN
	a, b *Host
	now  time.Time
}

func newLab(t *testing.T, volumes ...string) *lab {
	t.Helper()
	l := &lab{T: t, now: time.Unix(1_800_000_000, 0)}
	s := New(t, Options{
		Hosts: []string{"kvm-a", "kvm-b"}, VGs: []VGSpec{{Name: "vg_san"}}, Now: func() time.Time { return l.now },
	})
	l.san = s
	var err error
	l.a, err = s.Host("kvm-a")
	require.NoError(t, err)
	l.b, err = s.Host("kvm-b")
	require.NoError(t, err)
	for _, v := range volumes {
		_, err := s.AddLV("vg_san", LVSpec{Name: v})
		require.NoError(t, err)
	}
	return l
}

func (l *lab) after(d time.Duration) { l.now = l.now.Add(d) }

// run runs a command line split at blanks.
func (l *lab) run(h *Host, line string) (stdout, stderr string, code int) {
	l.Helper()
	var out, err bytes.Buffer
	code = h.Exec(context.Background(), strings.Fields(line), &out, &err)
	return out.String(), err.String(), code
}

// ok runs a command that must succeed silently on stderr, and returns its stdout.
func (l *lab) ok(h *Host, line string) string {
	l.Helper()
	out, err, code := l.run(h, line)
	require.Equal(l, 0, code, "%s: %s%s", line, out, err)
	require.Empty(l, err, line)
	return out
}

// fails runs a command that must exit 5 with that stderr, lines joined by "|".
func (l *lab) fails(h *Host, line, want string) {
	l.Helper()
	out, err, code := l.run(h, line)
	require.Equal(l, 5, code, "%s: %s%s", line, out, err)
	require.Equal(l, want, strings.ReplaceAll(strings.TrimSpace(err), "\n  ", "|"), line)
}

// lock is what both hosts hold of a volume, such as "ex/un".
func (l *lab) lock(lv string) string {
	return l.a.LockMode("vg_san", lv) + "/" + l.b.LockMode("vg_san", lv)
}

func refused(lv string) string {
	return "LV locked by other host: vg_san/" + lv + "|Failed to lock logical volume vg_san/" + lv + "."
}

func TestActivation(t *testing.T) {
	l := newLab(t, "lv1")
	l.ok(l.a, "lvchange -aey vg_san/lv1")
	require.Equal(t, "ex/un", l.lock("lv1"))
	for _, how := range []string{"-aey", "-asy", "-ay", "-a ey", "--activate sy", "-vay"} {
		l.fails(l.b, "lvchange "+how+" vg_san/lv1", refused("lv1"))
	}
	require.Empty(t, l.ok(l.b, "lvchange -an vg_san/lv1"), "not active: silent success")
	require.False(t, l.b.Active("vg_san", "lv1"))
	require.True(t, l.a.Active("vg_san", "lv1"))
	l.ok(l.a, "lvchange -aey vg_san/lv1")
	l.ok(l.a, "lvchange -an vg_san/lv1")
	require.Equal(t, "un/un", l.lock("lv1"))
	require.False(t, l.a.Active("vg_san", "lv1"))
	l.ok(l.b, "lvchange -ay vg_san/lv1")
	require.Equal(t, "un/ex", l.lock("lv1"))
}

func TestConversion(t *testing.T) {
	l := newLab(t, "lv1")
	l.ok(l.a, "lvchange -aey vg_san/lv1")
	require.NoError(t, l.a.Open("vg_san", "lv1", 1))
	l.ok(l.a, "lvchange -asy vg_san/lv1")
	l.ok(l.b, "lvchange -asy vg_san/lv1")
	require.Equal(t, "sh/sh", l.lock("lv1"))
	l.fails(l.a, "lvchange -aey vg_san/lv1", refused("lv1"))
	require.Equal(t, "sh/sh", l.lock("lv1"), "a failing convert keeps SH")
	l.fails(l.a, "lvchange -an vg_san/lv1", "Logical volume vg_san/lv1 in use.")
	require.Equal(t, "sh/sh", l.lock("lv1"))
	l.ok(l.b, "lvchange -an vg_san/lv1")
	l.ok(l.a, "lvchange -aey vg_san/lv1")
	require.Equal(t, "ex/un", l.lock("lv1"))
	held, err := l.a.Held()
	require.NoError(t, err)
	require.Equal(t, []Held{{Volume: "vg_san/lv1", Lock: "ex", Active: true, Leased: true, Open: 1}}, held)
	require.NoError(t, l.a.CloseVolume("vg_san", "lv1", 1))
	l.ok(l.a, "lvchange -an vg_san/lv1")
	held, err = l.a.Held()
	require.NoError(t, err)
	require.Empty(t, held)
}

func TestPartialResult(t *testing.T) {
	l := newLab(t, "m1", "m2", "m3")
	l.ok(l.b, "lvchange -aey vg_san/m2")
	l.fails(l.a, "lvchange -aey vg_san/m1 vg_san/m2 vg_san/m3", refused("m2"))
	require.Equal(t, "ex/un un/ex ex/un", l.lock("m1")+" "+l.lock("m2")+" "+l.lock("m3"))
	l.fails(l.a, "lvchange -asy vg_san/m1 vg_san/nosuch vg_san/m3", `Failed to find logical volume "vg_san/nosuch"`)
	require.Equal(t, "sh/un sh/un", l.lock("m1")+" "+l.lock("m3"))
	l.fails(l.a, "lvchange -an vg_san/m1 nosuch/x", `Volume group "nosuch" not found|Cannot process volume group nosuch`)
	require.Equal(t, "un/un", l.lock("m1"))
}

func TestUsageErrors(t *testing.T) {
	l := newLab(t, "lv1")
	for line, want := range map[string]string{
		"lvchange -axy vg_san/lv1":    "  Invalid argument for --activate: xy\n  Error during parsing of command line.\n",
		"lvchange --frob vg_san/lv1":  "lvchange: unrecognized option '--frob'\n  Error during parsing of command line.\n",
		"lvchange vg_san/lv1":         "  No command with matching syntax recognised.  Run 'lvchange --help' for more information.\n",
		"lvchange -aey":               "  No command with matching syntax recognised.  Run 'lvchange --help' for more information.\n",
		"lvchange -a":                 "lvchange: option requires an argument -- 'a'\n  Error during parsing of command line.\n",
		"lvs --units":                 "lvs: option '--units' requires an argument\n  Error during parsing of command line.\n",
		"lvchange -aey -S x=1 vg_san": "  sanfake: --select is not simulated\n",
	} {
		_, err, code := l.run(l.a, line)
		require.Equal(t, 3, code, line)
		require.Equal(t, want, err, line)
	}
	_, err, code := l.run(l.a, "nosuchtool x")
	require.Equal(t, 127, code)
	require.Equal(t, "nosuchtool: command not found\n", err)
	_, err, code = l.run(l.a, "prlimit --as=100 -- nosuchtool x")
	require.Equal(t, 127, code)
	require.Equal(t, "prlimit: failed to execute nosuchtool: No such file or directory\n", err)
	require.NotEmpty(t, l.ok(l.a, "prlimit --as=100 /usr/sbin/lvs vg_san"))
}

func TestMetadataNeedsNoLVLock(t *testing.T) {
	l := newLab(t, "lv1")
	l.ok(l.b, "lvchange -aey vg_san/lv1")
	require.Equal(t, "  Logical volume vg_san/lv1 changed.\n", l.ok(l.a, "lvchange --addtag foo --addtag bar vg_san/lv1"))
	require.Equal(t, "  bar,foo\n", l.ok(l.b, "lvs --noheadings -o lv_tags vg_san/lv1"))
	l.ok(l.a, "lvchange --deltag foo vg_san/lv1")
	require.Equal(t, "  bar\n", l.ok(l.b, "lvs --noheadings -o tags vg_san/lv1"))
	l.ok(l.a, "lvchange -pr vg_san/lv1")
	l.fails(l.a, "lvchange -pr vg_san/lv1", `Logical volume "vg_san/lv1" is already read only.`)
	require.Contains(t, l.ok(l.b, "dmsetup info -c --noheadings -o name,attr"), "vg_san-lv1:L--w")
	l.ok(l.b, "lvchange --refresh vg_san/lv1")
	require.Contains(t, l.ok(l.b, "dmsetup info -c --noheadings -o name,attr"), "vg_san-lv1:L--r")
	l.ok(l.a, "lvchange --setautoactivation n vg_san/lv1")
	require.Equal(t, "  \n", l.ok(l.b, "lvs --noheadings -o lv_autoactivation vg_san/lv1"))
}
