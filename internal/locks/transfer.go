package locks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"virtlvm/internal/api"
	"virtlvm/internal/model"
)

// stepPatience bounds one step of a transfer on one host: one LVM command, which may have
// to wait for a lease of sanlock.
const stepPatience = 90 * time.Second

// parallel transfers: hosts work on one volume of a VG at a time in any case.
const parallel = 8

// Transfer moves the locks of volumes to a host: what they are held for elsewhere is let
// go there, the target takes them exclusively for nobody, and where it cannot the old
// holder takes them back. A volume that a guest uses or that is open, and one that virtlvm
// has not activated, is refused; a holder that is dead is never forced. Doing it again is
// no error. Each volume has its own outcome; the error is about all of them.
//
// Transfers of one volume never overlap on this host; those of two hosts are kept apart by
// LVM: the one that comes second finds who holds it then.
func (l *Locks) Transfer(ctx context.Context, req api.TransferRequest, by string) (api.TransferResult, error) {
	result := api.TransferResult{To: req.To, Volumes: []api.Transfer{}}
	if err := api.CheckHostName(req.To); err != nil {
		return result, refused(api.KindBadRequest, "%v", err)
	}
	vols, err := l.wanted(ctx, req)
	if err != nil {
		return result, err
	}
	argv := []string{"virtlvm", "lock", "transfer"}
	if req.Guest != "" {
		argv = append(argv, "--guest", req.Guest)
	} else {
		argv = append(argv, req.Volumes...)
	}
	argv = append(argv, "--to", req.To)
	command, err := l.Engine.Record(ctx, by, "lock transfer", argv, vols, func(ctx context.Context) (string, error) {
		result.Volumes = l.moveAll(ctx, vols, req)
		return outcome(result)
	})
	result.Command = command.ID
	if len(result.Volumes) == 0 {
		return result, err // nothing has begun
	}
	return result, nil
}

// wanted finds the volumes of a request.
func (l *Locks) wanted(ctx context.Context, req api.TransferRequest) ([]model.Volume, error) {
	switch {
	case req.Guest != "" && len(req.Volumes) > 0:
		return nil, refused(api.KindBadRequest, "name volumes or a guest, not both")
	case req.Guest != "":
		return l.ofGuest(ctx, req.Guest)
	case len(req.Volumes) == 0:
		return nil, refused(api.KindBadRequest, "name the volumes to transfer, or a guest")
	}
	var vols []model.Volume
	for _, name := range req.Volumes {
		v, err := l.Engine.VolumeNamed(ctx, name)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(vols, func(o model.Volume) bool { return o.ID == v.ID }) {
			vols = append(vols, v)
		}
	}
	return vols, nil
}

// ofGuest finds what is held for a guest on whatever host.
func (l *Locks) ofGuest(ctx context.Context, guest string) ([]model.Volume, error) {
	vgs, err := l.Engine.ManagedVGs(ctx, "")
	if err != nil {
		return nil, err
	}
	var found []model.Volume
	for _, vg := range vgs {
		if l.Engine.Members(vg) != nil {
			continue // what is claimed there is not kept for nobody
		}
		r := l.newRound(vg)
		r.readHosts(ctx)
		r.self(ctx)
		r.askAll(ctx)
		if !r.complete() {
			return nil, refused(api.KindUnknown, "cannot find all that is held for guest %s in %s: not every host has answered%s; name its volumes", guest, vg, unheard(r.silent()))
		}
		held := map[string]bool{} // LV uuids
		for _, answer := range r.said {
			for uuid, local := range answer.locks {
				held[uuid] = held[uuid] || slices.Contains(local.Guests, guest)
			}
		}
		vols, err := l.Engine.Inventory(ctx, vg)
		if err != nil {
			return nil, err
		}
		for _, v := range vols {
			if held[v.ID.LV] {
				found = append(found, v)
			}
		}
	}
	if len(found) == 0 {
		return nil, refused(api.KindNotFound, "no host holds a volume for guest %s; name its volumes", guest)
	}
	return found, nil
}

func (l *Locks) moveAll(ctx context.Context, vols []model.Volume, req api.TransferRequest) []api.Transfer {
	results := make([]api.Transfer, len(vols))
	turns := make(chan struct{}, parallel)
	var all sync.WaitGroup
	for i, v := range vols {
		all.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			t, err := l.move(ctx, v, req)
			t.Volume = v.Name()
			if err != nil {
				t.Error = api.NewError(api.KindOf(err), err.Error())
			}
			l.Log.Info("transfer", "volume", t.Volume, "from", t.From, "to", req.To, "moved", t.Moved, "err", err)
			results[i] = t
		})
	}
	all.Wait()
	return results
}

// outcome is the journal's line about a transfer.
func outcome(r api.TransferResult) (string, error) {
	var done []string
	var failed error
	for _, t := range r.Volumes {
		switch {
		case t.Error != nil:
			failed = errors.Join(failed, t.Error)
		case t.Moved && t.From != "":
			done = append(done, fmt.Sprintf("%s from %s to %s", t.Volume, t.From, r.To))
		case t.Moved:
			done = append(done, fmt.Sprintf("%s to %s", t.Volume, r.To))
		default:
			done = append(done, fmt.Sprintf("%s is on %s already", t.Volume, r.To))
		}
	}
	return strings.Join(done, ", "), failed
}

// enter waits for a volume's turn.
func (l *Locks) enter(ctx context.Context, v model.Volume) (leave func(), err error) {
	l.mu.Lock()
	turn := l.turns[v.ID]
	if turn == nil {
		turn = make(chan struct{}, 1)
		l.turns[v.ID] = turn
	}
	l.mu.Unlock()
	select {
	case turn <- struct{}{}:
		return func() { <-turn }, nil
	case <-ctx.Done():
		return nil, refused(api.KindUnknown, "another transfer of %s has not ended in time; nothing was done", v.Name())
	}
}

// move transfers one volume.
func (l *Locks) move(ctx context.Context, v model.Volume, req api.TransferRequest) (t api.Transfer, err error) {
	leave, err := l.enter(ctx, v)
	if err != nil {
		return t, err
	}
	defer leave()
	if err := transferable(v); err != nil {
		return t, err
	}
	if err := l.checkTarget(ctx, v, req.To); err != nil {
		return t, err
	}
	holders, err := l.reliable(ctx, v, req.Wait)
	if err != nil {
		return t, err
	}
	others := slices.DeleteFunc(slices.Clone(holders), func(h model.Holder) bool { return h.Host == req.To })
	t.From = labels(others)
	if len(others) == 0 && len(holders) == 1 && holders[0].Mode == model.ModeEX {
		return t, nil // it is there already
	}
	if err := l.ready(ctx, v, req.To); err != nil {
		return t, err
	}
	// From here on it runs to its end, even if nobody waits for it any more.
	ctx = context.WithoutCancel(ctx)
	given, err := l.releaseAll(ctx, v, others)
	if err == nil {
		err = l.take(ctx, v, req.To, api.RetainRequest{Guest: lastGuest(given)})
	}
	if err != nil {
		return t, l.takeBack(ctx, v, given, err)
	}
	l.record(ctx, v, req.To)
	t.Moved = true
	return t, nil
}

// transferable refuses volumes whose lock cannot be moved by itself.
func transferable(v model.Volume) error {
	switch {
	case v.LockType == "none":
		return refused(api.KindUnsupported, "%s is in a volume group without lvmlockd, where a claim is a guest's or an operator's and moves with it: migrate the guest, or 'virtlvm deactivate %s' on one host and 'virtlvm activate' it on the other", v.Name(), v.Name())
	case v.LockLV != v.ID.LV || v.LeaseOffset <= 0:
		return refused(api.KindUnsupported, "%s has no lock of its own (type %s): its pool's or origin's protects it", v.Name(), v.SegType)
	case v.HasTag(model.TagShared):
		return refused(api.KindUnsupported, "%s is tagged %s and never exclusive to a host: 'virtlvm activate %s --shared' there", v.Name(), model.TagShared, v.Name())
	}
	return nil
}

// checkTarget: sanlock must see the target alive, before anything changes.
func (l *Locks) checkTarget(ctx context.Context, v model.Volume, to string) error {
	hosts, err := l.Leases.Hosts(ctx, v.VG)
	if err != nil {
		return err
	}
	_, err = up(v.VG, hosts, to)
	return err
}

// ready: the target's daemon must answer, be the host that is meant, and have the
// lockspace started, before anything changes.
func (l *Locks) ready(ctx context.Context, v model.Volume, to string) error {
	r := l.newRound(v.VG)
	answer := r.self(ctx)
	if to != l.Host {
		r.ask(ctx, []string{to})
		answer = r.said[to]
	}
	switch {
	case answer.err != nil:
		return api.NewError(api.KindOf(answer.err), fmt.Sprintf("%s stays where it is: %v", v.Name(), answer.err))
	case !answer.Started:
		return refused(api.KindLocking, "%s stays where it is: the lockspace of %s is not started on %s; run 'vgchange --lockstart %s' there", v.Name(), v.VG, to, v.VG)
	}
	return nil
}

// given is what one host has let go of.
type given struct {
	host model.Holder
	api.ReleaseAnswer
}

func (l *Locks) releaseAll(ctx context.Context, v model.Volume, holders []model.Holder) (all []given, err error) {
	for _, h := range holders {
		answer, err := l.release(ctx, v, h)
		if err != nil {
			return all, err
		}
		all = append(all, given{h, answer})
	}
	return all, nil
}

// release asks a holder to let go. Where its answer is lost, the lease tells.
func (l *Locks) release(ctx context.Context, v model.Volume, h model.Holder) (answer api.ReleaseAnswer, err error) {
	ctx, cancel := context.WithTimeout(ctx, stepPatience)
	defer cancel()
	req := api.ReleaseRequest{Volume: v.Name(), VGUUID: v.ID.VG, LVUUID: v.ID.LV, Transfer: true}
	switch {
	case h.Self:
		answer, err = l.Engine.GiveUp(ctx, req)
	case h.Host == "":
		return answer, refused(api.KindUnknown, "%s is held by host_id %d, which has no name to be asked by; set our_host_name in /etc/sanlock/sanlock.conf there", v.Name(), h.HostID)
	case l.Peers == nil:
		return answer, refused(api.KindUnreachable, "%s is held by %s, which is no peer of this host; see 'virtlvm peer authorize'", v.Name(), h.Host)
	default:
		err = l.Peers.Call(ctx, h.Host, api.RoutePeerRelease, req, &answer)
	}
	if api.KindOf(err) == api.KindUnknown && !h.Self && !l.holds(ctx, v, h.HostID) {
		return api.ReleaseAnswer{Mode: string(h.Mode), Use: api.UseRetained}, nil
	}
	return answer, err
}

// take makes a host take a volume and verifies it in the lease.
func (l *Locks) take(ctx context.Context, v model.Volume, host string, req api.RetainRequest) error {
	req.Volume, req.VGUUID, req.LVUUID = v.Name(), v.ID.VG, v.ID.LV
	asked, cancel := context.WithTimeout(ctx, stepPatience)
	defer cancel()
	var err error
	switch {
	case host == l.Host:
		err = l.Engine.Keep(asked, req)
	case l.Peers == nil:
		err = refused(api.KindUnreachable, "%s is no peer of this host; see 'virtlvm peer authorize'", host)
	default:
		var none struct{}
		err = l.Peers.Call(asked, host, api.RoutePeerRetain, req, &none)
	}
	if err != nil && api.KindOf(err) != api.KindUnknown {
		return err
	}
	holders, readErr := l.Leases.Holders(ctx, v.VG, v.LeaseOffset, v.LockLV)
	there := slices.ContainsFunc(holders, func(h model.Holder) bool { return h.Host == host })
	switch {
	case readErr != nil:
		return err // the host has verified it by itself
	case there:
		return nil
	case err == nil:
		return refused(api.KindLocking, "%s says that it holds %s, but its lease does not say so; see 'sanlock client status' there", host, v.Name())
	}
	return err
}

// takeBack gives a volume back to those that let it go, newest first, and says how that
// went after why.
func (l *Locks) takeBack(ctx context.Context, v model.Volume, all []given, why error) error {
	var text []string
	for i := len(all) - 1; i >= 0; i-- {
		g := all[i]
		if g.Mode == string(model.ModeOff) {
			continue // it had nothing
		}
		use := g.Use
		if use != api.UseOperator {
			use = api.UseRetained
		}
		if err := l.take(ctx, v, g.host.Host, api.RetainRequest{Mode: g.Mode, Use: use, Guest: g.Guest}); err != nil {
			l.Log.Error("a volume could not be given back", "volume", v.Name(), "host", g.host.Label(), "err", err)
			text = append(text, fmt.Sprintf("%s could not take it back: %v", g.host.Label(), err))
			continue
		}
		text = append(text, g.host.Label()+" has taken it back")
	}
	if len(text) == 0 {
		return why
	}
	return api.NewError(api.KindOf(why), fmt.Sprintf("%v; %s", why, strings.Join(text, "; ")))
}

func lastGuest(all []given) string {
	for _, g := range all {
		if g.Guest != "" {
			return g.Guest
		}
	}
	return ""
}

func labels(holders []model.Holder) string {
	names := make([]string, len(holders))
	for i, h := range holders {
		names[i] = h.Label()
	}
	return strings.Join(names, ", ")
}
