package locks

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/internal/lease"
	"virtlvm/internal/model"
)

// What a transfer refuses before anything changes: nobody is asked to let go.
func TestTransferRefusedFirst(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*world)
		kind   api.Kind
		says   string
	}{
		"changing hands":            {func(w *world) { w.held(0, 3, sh) }, api.KindHeld, "vg/lv0 is being taken exclusively at this moment by one of kvm-b, kvm-c: try again"},
		"the lease cannot be read":  {func(w *world) { w.leaseOK = false }, api.KindLocking, "vg/lv0 stays where it is, since it cannot be told who holds it"},
		"the target is silent":      {func(w *world) { delete(w.said, "kvm-c") }, api.KindUnreachable, "vg/lv0 stays where it is: kvm-c cannot be reached"},
		"the target is another one": {func(w *world) { w.said["kvm-c"] = w.said["kvm-d"] }, api.KindLocking, "what answers as kvm-c has host_id 4 in the lockspace of vg, but kvm-c is host_id 3"},
		"the target has no lockspace": {
			func(w *world) { w.said["kvm-c"] = api.LocksAnswer{HostID: 3} }, api.KindLocking,
			"the lockspace of vg is not started on kvm-c; run 'vgchange --lockstart vg' there",
		},
		"the target fails":           {func(w *world) { w.state(3, model.HostFail) }, api.KindLocking, "kvm-c does not renew its leases in the lockspace of vg (sanlock: fail)"},
		"the target is dead":         {func(w *world) { w.state(3, model.HostDead) }, api.KindLocking, "kvm-c is not up in the lockspace of vg"},
		"the target has just joined": {func(w *world) { w.state(3, model.HostUnknown) }, api.KindLocking, "has not watched kvm-c for long enough"},
		"the holder has no name": {
			func(w *world) { w.holders["lv0"][0].Host = "" }, api.KindUnknown,
			"vg/lv0 is held by host_id 2, which has no name to be asked by; set our_host_name in /etc/sanlock/sanlock.conf there",
		},
		"the holder is silent": {
			func(w *world) { w.holders["lv0"][0].State, w.holders["lv0"][0].FreeIn = model.HostFail, 58 }, api.KindHeld,
			"sanlock frees it in about 58s",
		},
		"no lock of its own": {func(w *world) { w.vols[0].LockLV = "lv1" }, api.KindUnsupported, "has no lock of its own"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(2, 4)
			w.held(0, 2, ex)
			tt.change(w)
			r, err := w.locks(t).Transfer(t.Context(), api.TransferRequest{Volumes: []string{"vg/lv0"}, To: "kvm-c"}, "test")
			require.NoError(t, err)
			require.NotNil(t, r.Volumes[0].Error)
			assert.Equal(t, tt.kind, r.Volumes[0].Error.Kind, r.Volumes[0].Error.Message)
			assert.Contains(t, r.Volumes[0].Error.Message, tt.says)
			assert.Zero(t, w.asked["kvm-b"])
			assert.Empty(t, w.hints)
		})
	}
}

func (w *world) state(id int, s model.HostState) {
	w.hosts[id] = lease.Host{ID: id, Name: w.hosts[id].Name, Gen: 1, State: s}
}

// It does not wait longer than whoever has asked.
func TestTransferWaitEnds(t *testing.T) {
	w := newWorld(1, 3)
	w.held(0, 2, ex)
	w.holders["lv0"][0].State = model.HostFail
	l := w.locks(t)
	l.After = time.After
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	r, err := l.Transfer(ctx, api.TransferRequest{Volumes: []string{"vg/lv0"}, To: "kvm-c", Wait: true}, "test")
	require.NoError(t, err)
	require.NotNil(t, r.Volumes[0].Error)
	assert.Contains(t, r.Volumes[0].Error.Message, "it was not waited for any longer")
}
