package activation

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"virtlvm/internal/api"
	"virtlvm/internal/lvm"
	"virtlvm/internal/model"
	"virtlvm/internal/store"
)

// Activate takes a hold for an operator on one volume and activates it. Asking again is
// no error. The answer is the journal row of the request.
func (m *Manager) Activate(ctx context.Context, req api.VolumeRequest, by string) (api.Command, error) {
	mode := model.ModeEX
	switch req.Mode {
	case "", string(model.ModeEX):
	case string(model.ModeSH):
		mode = model.ModeSH
	default:
		return api.Command{}, api.NewError(api.KindBadRequest, fmt.Sprintf("mode %q is neither ex nor sh", req.Mode))
	}
	argv := []string{"virtlvm", "activate", req.Volume}
	role := model.RoleWritable
	if mode == model.ModeSH {
		argv, role = append(argv, "--shared"), model.RoleShareable
	}
	return m.operate(ctx, req.Volume, by, argv, func(ctx context.Context, v model.Volume) (string, error) {
		if mode == model.ModeEX && v.HasTag(model.TagShared) {
			return "", api.NewError(api.KindUnsupported, fmt.Sprintf("%s is tagged %s: activate it with --shared", v.Name(), model.TagShared))
		}
		t := taker{owner: model.OwnerOperator}
		if _, err := m.acquireAsking(ctx, t, v.VG, []model.Need{{Volume: v, Role: role}}); err != nil {
			return "", err
		}
		return fmt.Sprintf("%s %s", v.Name(), mode), nil
	})
}

// Deactivate gives up an operator's hold and deactivates the volume. A volume that a
// guest uses here, or that somebody else activated, is refused; one that is not active
// here is left alone.
func (m *Manager) Deactivate(ctx context.Context, req api.VolumeRequest, by string) (api.Command, error) {
	argv := []string{"virtlvm", "deactivate", req.Volume}
	return m.operate(ctx, req.Volume, by, argv, func(ctx context.Context, v model.Volume) (string, error) {
		if err := m.deactivatable(ctx, v); err != nil {
			return "", err
		}
		if v.HasTag(model.TagShared) {
			if err := m.NoChildInUse(ctx, v); err != nil {
				return "", err
			}
		}
		m.end(ctx, func(h model.Hold) bool { return h.Volume == v.ID && idle(h) })
		m.ensureVG(ctx, v.VG)
		now, err := m.look(ctx)
		if err != nil {
			return "", err
		}
		if !now.ofVolume(v).Is(model.ModeOff) {
			return "", m.notOff(v, now)
		}
		return v.Name() + " off", nil
	})
}

func (m *Manager) deactivatable(ctx context.Context, v model.Volume) error {
	m.mu.Lock()
	mine := false
	var user string
	for _, h := range m.holds {
		if h.Volume != v.ID {
			continue
		}
		switch _, _, command := model.CommandOf(h.Owner); {
		case idle(h), h.Phase == model.PhaseEnding:
			mine = true
		case command:
			user = h.Subject() + "; wait for its end, or cancel it"
		default:
			user = "guest " + show(h.Guest) + "; stop that guest, which releases it"
		}
	}
	m.mu.Unlock()
	if user != "" {
		return api.NewError(api.KindInUse, fmt.Sprintf("%s is used on this host by %s", v.Name(), user))
	}
	now, err := m.look(ctx)
	if err != nil {
		return err
	}
	if a := now.ofVolume(v); !mine && !a.Is(model.ModeOff) {
		return api.NewError(api.KindInUse, fmt.Sprintf("%s was not activated by virtlvm (%s); whoever did can run 'lvchange -an %s'", v.Name(), a, v.Name()))
	}
	return nil
}

func (m *Manager) notOff(v model.Volume, now local) error {
	m.mu.Lock()
	reason := m.report.reasons[v.ID].text
	if reason == "" {
		reason = m.report.vgs[v.VG]
	}
	m.mu.Unlock()
	if reason == "" {
		reason = now.ofVolume(v).String()
	}
	return api.NewError(api.KindInUse, fmt.Sprintf("%s cannot be deactivated yet: %s; it is tried again by itself", v.Name(), reason))
}

// operate wraps an operator's request into a row of the journal.
func (m *Manager) operate(ctx context.Context, name, by string, argv []string, do func(context.Context, model.Volume) (string, error)) (api.Command, error) {
	if err := m.awaitReady(ctx); err != nil {
		return api.Command{}, err
	}
	c := &cause{text: by, record: true}
	v, err := m.volumeNamed(withCause(ctx, c), name)
	if err != nil {
		return api.Command{}, err
	}
	return m.record(ctx, c, argv[1]+" request", argv, []model.Volume{v}, func(ctx context.Context) (string, error) { return do(ctx, v) })
}

// record runs an operator's request with a row of the journal about it. The answer has
// the row's id also where the request has failed.
func (m *Manager) record(ctx context.Context, c *cause, kind string, argv []string, vols []model.Volume, do func(context.Context) (string, error)) (api.Command, error) {
	by := c.text
	id, err := m.beginOwn(ctx, store.Intent{Kind: kind, Argv: argv, Targets: vols, Cause: by, BootID: m.BootID}, store.HoldChange{})
	if err != nil && argv[1] != "deactivate" { // giving up never needs the journal
		return api.Command{}, err
	}
	defer m.disown(id)
	c.text = fmt.Sprintf("%s, command %d", by, id)
	outcome, derr := do(withCause(ctx, c))
	r := store.Result{State: model.StateCompleted, ExitCode: 0, Outcome: outcome}
	if derr != nil {
		r = store.Result{State: model.StateFailed, ExitCode: -1, Error: oneLine(derr.Error())}
	}
	ctx = context.WithoutCancel(ctx)
	if err != nil {
		return api.Command{Kind: kind, State: string(r.State), Argv: argv, Targets: names(vols), Cause: by, Created: m.Now(), Finished: m.Now(), Outcome: outcome}, derr
	}
	if err := m.Journal.Finish(ctx, id, r, store.HoldChange{}, c.take()...); err != nil {
		m.Log.Error("cannot journal an operator's command", "command_id", id, "err", err)
	}
	if derr != nil {
		return api.Command{ID: id}, derr
	}
	return m.Journal.Command(ctx, id)
}

// volumeNamed finds a managed volume by "vg/lv".
func (m *Manager) volumeNamed(ctx context.Context, name string) (model.Volume, error) {
	vg, lv, err := lvm.SplitName(strings.TrimPrefix(name, "/dev/"))
	if err != nil {
		return model.Volume{}, err
	}
	inv, err := m.inventory(ctx, vg)
	if err != nil {
		return model.Volume{}, err
	}
	if inv == nil {
		return model.Volume{}, unseen(vg)
	}
	ours, err := m.managed(vg, inv.lockType)
	if err != nil {
		return model.Volume{}, err
	}
	v, found := inv.byName[lv]
	if !ours && (found || inv.lockType == "none") {
		return model.Volume{}, api.NewError(api.KindOutOfScope, fmt.Sprintf("volume group %s is not managed by virtlvm (lock type %s); see [scope] in virtlvm.toml", vg, inv.lockType))
	}
	if !found {
		return model.Volume{}, api.NewError(api.KindNotFound, fmt.Sprintf("there is no volume %s in volume group %s", lv, vg))
	}
	return v, nil
}

// UnseenError is an *api.Error of kind not-found: LVM on this host does not see the volume group.
// What is in it cannot be told from here.
type UnseenError struct{ err *api.Error }

func (e *UnseenError) Error() string { return e.err.Error() }
func (e *UnseenError) Unwrap() error { return e.err }

func unseen(vg string) error {
	return &UnseenError{api.NewError(api.KindNotFound, fmt.Sprintf("there is no volume group %s on this host", vg))}
}

// IsGone reports whether err says that a volume is not there, in a volume group that LVM sees.
func IsGone(err error) bool {
	var unseen *UnseenError
	return api.KindOf(err) == api.KindNotFound && !errors.As(err, &unseen)
}
