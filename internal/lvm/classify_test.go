package lvm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/internal/run"
)

// message is a section of testdata/messages.txt.
type message struct {
	cmd    run.Cmd
	stderr string
	exit   int
}

func messages(t *testing.T) map[string]message {
	t.Helper()
	data, err := os.ReadFile("testdata/messages.txt")
	require.NoError(t, err)
	all := map[string]message{}
	for _, section := range strings.Split(string(data), "\n== ")[1:] {
		title, body, _ := strings.Cut(section, "\n")
		title, _, _ = strings.Cut(title, " (")
		argv, body, ok := strings.Cut(strings.TrimPrefix(body, "$ "), "\n")
		require.True(t, ok, title)
		stderr, exit, ok := strings.Cut("\n"+body, "\nrc=")
		require.True(t, ok, title)
		code, err := strconv.Atoi(strings.TrimSpace(exit))
		require.NoError(t, err, title)
		words := strings.Fields(argv)
		all[title] = message{
			cmd:    run.Cmd{Name: words[0], Args: words[1:]},
			stderr: strings.TrimPrefix(stderr+"\n", "\n"),
			exit:   code,
		}
	}
	return all
}

// answer is what a Runner returns for the message.
func (m message) answer() (run.Result, error) {
	res := run.Result{Stderr: []byte(m.stderr), ExitCode: m.exit}
	if m.exit == 0 {
		return res, nil
	}
	return res, &run.ExitError{Argv: m.cmd.Argv(), ExitCode: m.exit, Stderr: m.stderr}
}

func TestClassify(t *testing.T) {
	tests := map[string]struct {
		want []Failure // without Stderr; none: success
		kind api.Kind
		text string
	}{
		"held": {
			[]Failure{{Kind: HeldElsewhere, Volume: "vg_san/lv1", VG: "vg_san"}},
			api.KindHeld, "cannot activate vg_san/lv1: another host holds its lock",
		},
		"held, holder named": {
			[]Failure{{Kind: HeldElsewhere, Volume: "vg_san/lv1", VG: "vg_san", HostID: 2}},
			api.KindHeld, "cannot activate shared vg_san/lv1: another host (host_id 2) holds its lock",
		},
		"two held": {
			[]Failure{{Kind: HeldElsewhere, Volume: "vg_san/lv1", VG: "vg_san"}, {Kind: HeldElsewhere, Volume: "vg_san/hot", VG: "vg_san"}},
			api.KindHeld, "cannot activate vg_san/lv1: another host holds its lock; vg_san/hot: another host holds its lock",
		},
		"one of eight held": {
			[]Failure{{Kind: HeldElsewhere, Volume: "vg_san/m3", VG: "vg_san"}},
			api.KindHeld, "cannot activate vg_san/m3: another host holds its lock",
		},
		"held pool": {
			[]Failure{{Kind: HeldElsewhere, Volume: "vg_san/th1", VG: "vg_san", LockVolume: "vg_san/tp"}},
			api.KindHeld, "cannot activate vg_san/th1: another host holds the lock of vg_san/tp, which protects it",
		},
		"two volumes of a held pool": {
			[]Failure{
				{Kind: HeldElsewhere, Volume: "vg_san/th1", VG: "vg_san", LockVolume: "vg_san/tp", HostID: 2},
				{Kind: HeldElsewhere, Volume: "vg_san/th2", VG: "vg_san", LockVolume: "vg_san/tp", HostID: 2},
			},
			api.KindHeld, "cannot activate vg_san/th1: another host (host_id 2) holds the lock of vg_san/tp, which protects it; " +
				"vg_san/th2: another host (host_id 2) holds the lock of vg_san/tp, which protects it",
		},
		"remove a held volume": {
			[]Failure{{Kind: HeldElsewhere, Volume: "vg_san/lv1", VG: "vg_san"}},
			api.KindHeld, "cannot remove vg_san/lv1: another host holds its lock",
		},
		"in use": {
			[]Failure{{Kind: InUse, Volume: "vg_san/lv1", VG: "vg_san"}},
			api.KindInUse, "cannot deactivate vg_san/lv1: it is open on this host",
		},
		"in use by a filesystem and by a device": {
			[]Failure{{Kind: InUse, Volume: "vg_san/lv1", VG: "vg_san"}, {Kind: InUse, Volume: "vg_san/lv2", VG: "vg_san"}},
			api.KindInUse, "cannot deactivate vg_san/lv1: it is open on this host; vg_san/lv2: it is open on this host",
		},
		"shared raid1": {
			[]Failure{{Kind: SharedNotPossible, Volume: "vg_san/r1", VG: "vg_san", Type: "raid1"}},
			api.KindUnsupported, "cannot activate shared vg_san/r1: LVM does not share a volume of type raid1 between hosts",
		},
		"shared thin": {
			[]Failure{{Kind: SharedNotPossible, Volume: "vg_san/th1", VG: "vg_san", LockVolume: "vg_san/tp", Type: "thin-pool"}},
			api.KindUnsupported, "cannot activate shared vg_san/th1: LVM does not share a volume of type thin-pool between hosts",
		},
		"shared origin": {
			[]Failure{{Kind: SharedNotPossible, Volume: "vg_san/o1", VG: "vg_san", Type: "linear"}},
			api.KindUnsupported, "cannot activate shared vg_san/o1: LVM does not share a volume of type linear between hosts",
		},
		"shared snapshot": {
			[]Failure{{Kind: SharedNotPossible, Volume: "vg_san/s1", VG: "vg_san", Type: "snapshot"}},
			api.KindUnsupported, "cannot activate shared vg_san/s1: LVM does not share a volume of type snapshot between hosts",
		},
		"exclusive snapshot": {
			[]Failure{{Kind: SnapshotRefused, Volume: "vg_san/s1", VG: "vg_san"}},
			api.KindUnsupported, "cannot activate vg_san/s1: it is a snapshot, and LVM would change its origin too: activate it by hand",
		},
		"no such volume": {
			[]Failure{{Kind: NoSuchVolume, Volume: "vg_san/nosuch", VG: "vg_san"}},
			api.KindNotFound, "cannot activate vg_san/nosuch: there is no such logical volume",
		},
		"no such vg": {
			[]Failure{{Kind: NoSuchVG, VG: "nosuch"}},
			api.KindNotFound, "cannot activate nosuch/lv: volume group nosuch: there is no such volume group on this host",
		},
		"lockspace not started": {
			[]Failure{{Kind: VGLockFailed, VG: "vg_san"}},
			api.KindLocking, "cannot activate vg_san/m8: volume group vg_san: the lock of its metadata failed: is its lockspace started? 'vgchange --lockstart vg_san' starts it",
		},
		"lockspace starting": {
			[]Failure{{Kind: VGLockFailed, VG: "vg_san", Reason: "lock start in progress"}},
			api.KindLocking, "cannot activate vg_san/m8: volume group vg_san: the lock of its metadata failed (lock start in progress): is its lockspace started? 'vgchange --lockstart vg_san' starts it",
		},
		"sanlock killed": {
			[]Failure{{Kind: VGLockFailed, VG: "vg_san", Reason: "error -221"}},
			api.KindLocking, "cannot activate shared vg_san/m1: volume group vg_san: the lock of its metadata failed (error -221): is its lockspace started? 'vgchange --lockstart vg_san' starts it",
		},
		"lvmlockd killed, activate": {
			[]Failure{{Kind: LockdDown, VG: "vg_san"}},
			api.KindLocking, "cannot activate vg_san/m6: volume group vg_san: lvmlockd does not run on this host",
		},
		"lvmlockd killed, deactivate": {
			[]Failure{{Kind: UnlockFailed, Volume: "vg_san/m8", VG: "vg_san", Reason: "lvmlockd does not run on this host"}},
			api.KindLocking, "cannot deactivate vg_san/m8: its lock could not be dropped and is still held (lvmlockd does not run on this host)",
		},
		"lvmlockd restarted, deactivate": {
			[]Failure{{Kind: UnlockFailed, Volume: "vg_san/m8", VG: "vg_san", Reason: "lockspace is inactive"}},
			api.KindLocking, "cannot deactivate vg_san/m8: its lock could not be dropped and is still held (lockspace is inactive)",
		},
		"one unlock of two failed": {
			[]Failure{{Kind: UnlockFailed, Volume: "vg_san/m8", VG: "vg_san", Reason: "error -3"}},
			api.KindLocking, "cannot deactivate vg_san/m8: its lock could not be dropped and is still held (error -3)",
		},
		"lockspace inactive, activate": {
			[]Failure{{Kind: LockspaceInactive, Volume: "vg_san/m8", VG: "vg_san", Reason: "lockspace is inactive"}},
			api.KindLocking, "cannot activate vg_san/m8: its lockspace is not active on this host: run 'vgchange --lockstart vg_san'",
		},
		"orphan": {
			[]Failure{{Kind: LockFailed, Volume: "vg_san/m8", VG: "vg_san", Reason: "orphan lock needs to be adopted"}},
			api.KindLocking, "cannot activate vg_san/m8: its lock failed (orphan lock needs to be adopted)",
		},
		"no connection to lvmlockd": {
			[]Failure{{Kind: LockdDown, Volume: "vg_san/m8", VG: "vg_san", Reason: "lvmlockd connection is required"}},
			api.KindLocking, "cannot activate vg_san/m8: lvmlockd does not run on this host",
		},
		"lvmlockd without an answer": {
			[]Failure{{Kind: LockdDown, Volume: "vg_san/m8", VG: "vg_san"}},
			api.KindLocking, "cannot activate vg_san/m8: lvmlockd does not run on this host",
		},
		"lvmlockd not used": {
			[]Failure{{Kind: LockdDown, VG: "vg_san"}},
			api.KindLocking, "cannot read vg_san: lvmlockd does not run on this host",
		},
		"extend own shared": {
			[]Failure{{Kind: LockMismatch, Volume: "vg_san/lv1", VG: "vg_san"}},
			api.KindInUse, "cannot resize vg_san/lv1: it is already locked on this host in another mode",
		},
		"lockstart too early": {
			[]Failure{{Kind: StartFailed, VG: "vg_san", Reason: "invalid parameters for sanlock"}},
			api.KindLocking, "cannot start the locks of vg_san: its lockspace did not start (invalid parameters for sanlock)",
		},
		"lockstart without lvmlockd": {
			[]Failure{{Kind: LockdDown, VG: "vg_san", Reason: "lvmlockd is not running"}},
			api.KindLocking, "cannot start the locks of vg_san: lvmlockd does not run on this host",
		},
		"lockstart that only seems to work": {},
		"global lock held": {
			[]Failure{{Kind: GlobalLockHeld, HostID: 3, Reason: "held by other host (host_id 3)"}},
			api.KindLocking, "cannot read vg_san: another host (host_id 3) holds LVM's global lock: try again",
		},
		"global lock failed": {
			[]Failure{{Kind: GlobalLockFailed, Reason: "check that global lockspace is started"}},
			api.KindLocking, "cannot read vg_san: LVM's global lock failed (check that global lockspace is started)",
		},
		"partial volume beside a held one": {
			[]Failure{
				{Kind: Other, Volume: "vg_san/a", VG: "vg_san", Reason: "Refusing activation of partial LV vg_san/a.  Use '--activationmode partial' to override."},
				{Kind: HeldElsewhere, Volume: "vg_san/b", VG: "vg_san"},
			},
			api.KindInternal, "cannot activate vg_san/a: Refusing activation of partial LV vg_san/a.  Use '--activationmode partial' to override.; vg_san/b: another host holds its lock",
		},
		"lock failed with no cause": {
			[]Failure{{Kind: LockFailed, Volume: "vg_san/a", VG: "vg_san"}},
			api.KindLocking, "cannot activate vg_san/a: its lock failed",
		},
		"something new": {
			[]Failure{{Kind: Other, Reason: "Internal error: the moon is full"}},
			api.KindInternal, "cannot activate vg_san/a: Internal error: the moon is full",
		},
		"only a warning": {
			[]Failure{{Kind: Other, Reason: "WARNING: be careful"}},
			api.KindInternal, "cannot activate vg_san/a: WARNING: be careful",
		},
		"silence": {
			[]Failure{{Kind: Other, Reason: "it exited with code 5 and said nothing"}},
			api.KindInternal, "cannot activate vg_san/a: it exited with code 5 and said nothing",
		},
		"success with warnings": {},
	}
	all := messages(t)
	require.Len(t, all, len(tests))
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			m, ok := all[name]
			require.True(t, ok)
			res, runErr := m.answer()
			err := Classify(m.cmd, res, runErr)
			if tt.want == nil {
				require.NoError(t, err)
				return
			}
			var e *Error
			require.ErrorAs(t, err, &e)
			for i := range e.Failures {
				for line := range strings.Lines(e.Failures[i].Stderr) {
					assert.Contains(t, m.stderr, strings.TrimSpace(line))
				}
				e.Failures[i].Stderr = ""
			}
			assert.Equal(t, tt.want, e.Failures)
			assert.Equal(t, tt.kind, e.Kind())
			assert.Equal(t, tt.text, err.Error())
			assert.Equal(t, m.exit, e.ExitCode)
			assert.Equal(t, m.stderr, e.Stderr)
			assert.Equal(t, m.cmd.Argv(), e.Argv)
			assert.Equal(t, tt.kind, api.KindOf(fmt.Errorf("around: %w", err)))
			var exit *run.ExitError
			assert.Equal(t, m.exit != 0, errors.As(err, &exit))
		})
	}
}

func TestClassifyOtherErrors(t *testing.T) {
	cmd := DeactivateCmd("vg_san/lv1")
	closed, open := make(chan struct{}), make(chan struct{})
	close(closed)
	tests := map[string]struct {
		err  error
		kind api.Kind
		text string
	}{
		"missing": {
			&run.NotFoundError{Name: "lvchange", Err: errors.New("not installed in /sbin")},
			api.KindLocking, "cannot run lvchange: not installed in /sbin; are lvm2 and lvm2-lockd installed?",
		},
		"stuck": {
			&run.TimeoutError{Argv: cmd.Argv(), PID: 77, Done: open},
			api.KindStuck, "lvchange -an vg_san/lv1 (pid 77) has passed its deadline and still runs: is the storage there?",
		},
		"ended by its deadline": {
			&run.TimeoutError{Argv: cmd.Argv(), PID: 77, Done: closed},
			api.KindUnknown, "lvchange -an vg_san/lv1 was ended by its deadline: what it did is not known",
		},
		"cancelled":     {fmt.Errorf("cannot run lvchange: %w", context.Canceled), api.KindInternal, "cannot run lvchange: context canceled"},
		"refused by us": {api.NewError(api.KindBadRequest, "no"), api.KindBadRequest, "no"},
		"ended by a signal": {
			&run.ExitError{Argv: cmd.Argv(), ExitCode: -1, Stderr: "\nended by signal: killed\n"},
			api.KindInternal, "cannot deactivate vg_san/lv1: ended by signal: killed",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			err := Classify(cmd, run.Result{ExitCode: -1}, tt.err)
			assert.Equal(t, tt.kind, api.KindOf(err))
			assert.EqualError(t, err, tt.text)
			assert.ErrorIs(t, err, tt.err, "the cause is kept")
		})
	}
}

func TestErrorOf(t *testing.T) {
	all := messages(t)
	classify := func(name string) *Error {
		m := all[name]
		res, runErr := m.answer()
		var e *Error
		require.ErrorAs(t, Classify(m.cmd, res, runErr), &e)
		return e
	}
	e := classify("one of eight held")
	f, ok := e.Of("vg_san/m3")
	assert.True(t, ok)
	assert.Equal(t, HeldElsewhere, f.Kind)
	_, ok = e.Of("vg_san/m4")
	assert.False(t, ok)

	e = classify("sanlock killed")
	f, ok = e.Of("vg_san/m1")
	assert.True(t, ok)
	assert.Equal(t, VGLockFailed, f.Kind)
	_, ok = e.Of("other/m1")
	assert.False(t, ok)

	_, ok = classify("something new").Of("vg_san/a")
	assert.True(t, ok)
}

func FuzzParseStderr(f *testing.F) {
	data, err := os.ReadFile("testdata/messages.txt")
	require.NoError(f, err)
	for _, section := range strings.Split(string(data), "\n== ") {
		f.Add(section)
	}
	cmd := ActivateCmd("ex", "vg_san/lv1", "vg_san/lv2")
	f.Fuzz(func(t *testing.T, stderr string) {
		err := Classify(cmd, run.Result{Stderr: []byte(stderr), ExitCode: 5}, &run.ExitError{Argv: cmd.Argv(), ExitCode: 5, Stderr: stderr})
		var e *Error
		require.ErrorAs(t, err, &e)
		require.NotEmpty(t, e.Failures)
		require.NotEmpty(t, e.Error())
		require.NotContains(t, e.Error(), "\n")
	})
}
