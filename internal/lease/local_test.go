package lease_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/internal/lease"
	"virtlvm/internal/model"
	"virtlvm/internal/run"
	"virtlvm/internal/run/runtest"
)

const (
	infoLine   = "lvmlockctl --info"
	statusLine = "sanlock client status"
	lockdDown  = "Cannot connect to lvmlockd.\n"
	startedVG  = "VG vg_san lock_type=sanlock rzVnFw-xSeB-09td-ZB0l-XEew-JKuz-IwlU8M\nLS sanlock lvm_vg_san\nLK VG un ver 0\n"
)

// withDevices makes a Reader whose /dev/mapper has these names.
func withDevices(t *testing.T, f *runtest.Fake, names ...string) *lease.Reader {
	t.Helper()
	dev := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dev, "mapper"), 0o755))
	for _, name := range names {
		require.NoError(t, os.WriteFile(filepath.Join(dev, "mapper", name), nil, 0o600))
	}
	return lease.New(f, dev, func() time.Duration { return 0 })
}

func TestLocalRunning(t *testing.T) {
	f := runtest.New(t)
	capture(t, f, "running")
	local, err := withDevices(t, f, "control", "vg_san-lvmlock", "vg_san-lv1").Local(context.Background())
	require.NoError(t, err)
	assert.Equal(t, lease.Local{
		LockdRunning: true,
		VGs: map[string]lease.LocalVG{"vg_san": {
			Name: "vg_san", UUID: "rzVnFw-xSeB-09td-ZB0l-XEew-JKuz-IwlU8M", LockType: "sanlock", Started: true,
			Locks: map[string]model.LockMode{lv1: model.ModeEX, base: model.ModeSH, top: model.ModeEX, hot: model.ModeEX},
		}},
	}, local)
	assert.Equal(t, []string{infoLine}, f.Calls(), "sanlock is asked only where there may be orphans")
}

func TestLocalLockdKilled(t *testing.T) {
	f := runtest.New(t)
	capture(t, f, "orphans")
	local, err := withDevices(t, f).Local(context.Background())
	require.NoError(t, err)
	assert.Equal(t, lease.Local{
		VGs: map[string]lease.LocalVG{},
		Orphans: []lease.Orphan{
			{VG: "vg_san", LV: "zn2CXq-tXWo-FOYe-mifD-AVXr-95rd-6b0dPH", Mode: model.ModeSH},
			{VG: "vg_san", LV: "L6M1FO-7qS2-DoTg-Nopo-27Lb-n9i4-zFOKfr", Mode: model.ModeEX},
		},
	}, local)
}

func TestLocalStates(t *testing.T) {
	const twoVGs = startedVG + "LK LV un " + lv1 + "\n\nVG vg-b lock_type=dlm X\nLS dlm lvm_vg-b\nLK LV sh " + base + "\nLK LV ex " + base + "\nLK LV sh " + base + "\n"
	san := lease.LocalVG{Name: "vg_san", UUID: "rzVnFw-xSeB-09td-ZB0l-XEew-JKuz-IwlU8M", LockType: "sanlock", Started: true, Locks: map[string]model.LockMode{}}
	tests := map[string]struct {
		info    string
		devices []string
		status  string // "": not asked
		want    lease.Local
	}{
		"two VGs": {
			info: twoVGs, devices: []string{"vg_san-lvmlock", "vg--b-lvmlock"},
			want: lease.Local{LockdRunning: true, VGs: map[string]lease.LocalVG{
				"vg_san": {Name: "vg_san", UUID: "rzVnFw-xSeB-09td-ZB0l-XEew-JKuz-IwlU8M", LockType: "sanlock", Started: true, Locks: map[string]model.LockMode{lv1: model.ModeOff}},
				"vg-b":   {Name: "vg-b", UUID: "X", LockType: "dlm", Started: true, Locks: map[string]model.LockMode{base: model.ModeEX}},
			}},
		},
		"operations under way": {
			info: startedVG + "LK VG ex ver 4 pid 12 (lvchange)\nLW LV ex " + lv1 + "\nOP start pid 9 (vgchange)\nLK GL sh ver 0 pid 12 (lvs)\n",
			want: lease.Local{LockdRunning: true, VGs: map[string]lease.LocalVG{"vg_san": san}},
		},
		"dlm's global lockspace": {
			info: "VG . lock_type=dlm .\nLS dlm lvm_global\nLK GL un ver 0\n\n" + startedVG,
			want: lease.Local{LockdRunning: true, VGs: map[string]lease.LocalVG{"vg_san": san}},
		},
		"restarted, nothing started": {
			info: "\n", status: "daemon kvm-b\ns lvm_vg_san:2:/dev/mapper/vg_san-lvmlock:0\nr lvm_vg_san:" + lv1 + ":/dev/mapper/vg_san-lvmlock:70254592:3 p 236 ORPHAN\n",
			want: lease.Local{LockdRunning: true, VGs: map[string]lease.LocalVG{}, Orphans: []lease.Orphan{{VG: "vg_san", LV: lv1, Mode: model.ModeEX}}},
		},
		"one of two VGs not started": {
			info: startedVG, devices: []string{"vg_san-lvmlock", "vg--b-lvmlock"},
			status: "daemon kvm-b\nr lvm_vg-b:" + base + ":/dev/mapper/vg--b-lvmlock:71303168:SH p 0 ORPHAN\n",
			want:   lease.Local{LockdRunning: true, VGs: map[string]lease.LocalVG{"vg_san": san}, Orphans: []lease.Orphan{{VG: "vg-b", LV: base, Mode: model.ModeSH}}},
		},
		"a user's volume with such a name": {
			info: startedVG, devices: []string{"vg_san-lvmlock", "vg_san-my--lvmlock"},
			want: lease.Local{LockdRunning: true, VGs: map[string]lease.LocalVG{"vg_san": san}},
		},
		"orphans that are none of ours": {
			info: "", status: "daemon x\nr other:vm1:/dev/x:0:1 p 5 ORPHAN\nr lvm_vg_san:VGLK:/dev/mapper/vg_san-lvmlock:69206016:1 p 0 ORPHAN\n" +
				"r lvm_vg_san:" + lv1 + ":/dev/mapper/vg_san-lvmlock:70254592:3 p 236\n",
			want: lease.Local{LockdRunning: true, VGs: map[string]lease.LocalVG{}},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := runtest.New(t)
			f.ExpectLine(infoLine).Stdout(tt.info)
			if tt.status != "" {
				f.ExpectLine(statusLine).Stdout(tt.status)
			}
			local, err := withDevices(t, f, tt.devices...).Local(context.Background())
			require.NoError(t, err)
			assert.Equal(t, tt.want, local)
		})
	}
}

func TestLocalWithoutLVMTools(t *testing.T) {
	f := runtest.New(t)
	f.ExpectLine(infoLine).Fail(&run.NotFoundError{Name: "lvmlockctl", Err: os.ErrNotExist})
	f.ExpectLine(statusLine).Fail(&run.NotFoundError{Name: "sanlock", Err: os.ErrNotExist})
	local, err := withDevices(t, f).Local(context.Background())
	require.NoError(t, err)
	assert.Equal(t, lease.Local{VGs: map[string]lease.LocalVG{}}, local)
}

func TestLocalSanlockDown(t *testing.T) {
	f := runtest.New(t)
	f.ExpectLine(infoLine).Stdout(lockdDown).Exit(255)
	f.ExpectLine(statusLine).Exit(1)
	local, err := withDevices(t, f).Local(context.Background())
	require.NoError(t, err)
	assert.Equal(t, lease.Local{VGs: map[string]lease.LocalVG{}, SanlockDown: true}, local)
}

func TestLocalSocketTaken(t *testing.T) {
	f := runtest.New(t)
	f.ExpectLine(infoLine).Stdout("socket error -98\n").Exit(158)
	f.ExpectLine(infoLine).Stdout(startedVG)
	local, err := withDevices(t, f, "vg_san-lvmlock").Local(context.Background())
	require.NoError(t, err)
	assert.True(t, local.VGs["vg_san"].Started)

	f.ExpectLine(infoLine).Stdout("socket error -98\n").Exit(158).Always()
	_, err = withDevices(t, f).Local(context.Background())
	require.EqualError(t, err, "cannot read this host's locks: lvmlockctl failed with exit code 158: socket error -98")
	assert.Equal(t, api.KindLocking, api.KindOf(err))
	assert.Len(t, f.Calls(), 2+5)

	ctx, cancel := context.WithCancel(context.Background())
	f = runtest.New(t)
	f.ExpectLine(infoLine).Stdout("socket error -98\n").Exit(158).Do(func(run.Cmd) { cancel() })
	_, err = withDevices(t, f).Local(ctx)
	require.ErrorIs(t, err, context.Canceled)
}

func TestLocalUnclear(t *testing.T) {
	open := make(chan struct{})
	tests := map[string]struct {
		info   string
		err    error
		status string
		text   string
		kind   api.Kind
	}{
		"garbage":            {info: "\x00\x01\xff\n", text: "cannot understand the answer of lvmlockctl --info"},
		"unknown word":       {info: startedVG + "ZZ LV ex " + lv1 + "\n", text: `"ZZ LV ex`},
		"unknown mode":       {info: startedVG + "LK LV xx " + lv1 + "\n", text: "a lock in an unknown mode"},
		"lock without VG":    {info: "LK LV ex " + lv1 + "\n", text: "cannot understand"},
		"lock in no VG":      {info: "VG . lock_type=dlm .\nLK LV ex " + lv1 + "\n", text: "cannot understand"},
		"cut off":            {info: startedVG + "LK LV ex\n", text: "cannot understand"},
		"foreign lockspace":  {info: "VG vg_san lock_type=sanlock X\nLS sanlock lvm_other\n", text: "cannot understand"},
		"VG twice":           {info: startedVG + startedVG, text: "names VG vg_san twice"},
		"lvmlockctl fails":   {err: &run.ExitError{Argv: []string{"lvmlockctl"}, ExitCode: 1, Stderr: "oops\n"}, text: "lvmlockctl failed with exit code 1: oops"},
		"lvmlockctl hangs":   {err: &run.TimeoutError{Argv: []string{"lvmlockctl"}, PID: 7, Done: open}, text: "(pid 7) has not answered in time", kind: api.KindStuck},
		"orphan not clear":   {info: "\n", status: "daemon x\nr lvm_vg_san:" + lv1 + " p 1 ORPHAN\n", text: "cannot understand an orphaned lock"},
		"status not clear":   {info: "\n", status: "what?\n", text: "cannot understand the answer of sanlock client status"},
		"status is empty":    {info: "\n", status: " ", text: "cannot understand the answer of sanlock client status"},
		"very long nonsense": {info: strings.Repeat("x", 10000), text: "..."},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := runtest.New(t)
			f.ExpectLine(infoLine).Stdout(tt.info).Fail(tt.err)
			if tt.status != "" {
				f.ExpectLine(statusLine).Stdout(tt.status)
			}
			_, err := withDevices(t, f).Local(context.Background())
			require.ErrorContains(t, err, tt.text)
			require.ErrorContains(t, err, "cannot read this host's ")
			if tt.kind == "" {
				tt.kind = api.KindLocking
			}
			assert.Equal(t, tt.kind, api.KindOf(err))
			assert.Less(t, len(err.Error()), 400)
			if tt.err != nil {
				require.True(t, errors.Is(err, tt.err))
			}
		})
	}

	f := runtest.New(t)
	f.ExpectLine(infoLine)
	f.ExpectLine(statusLine).Fail(&run.TimeoutError{Argv: []string{"sanlock"}, PID: 7, Done: open})
	_, err := withDevices(t, f).Local(context.Background())
	require.ErrorContains(t, err, "cannot read this host's orphaned locks")
	assert.Equal(t, api.KindStuck, api.KindOf(err))
}
