package activation

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"

	"virtlvm/internal/api"
	"virtlvm/internal/lvm"
	"virtlvm/internal/model"
)

// A lease is written within two or three disk reads and writes of the host that wins it.
const (
	winnerLooks = 10
	winnerPause = 300 * time.Millisecond
)

// explainFailure reads who holds a volume where LVM only says that somebody does.
func (m *Manager) explainFailure(ctx context.Context, v model.Volume, f lvm.Failure, le *lvm.Error) error {
	switch f.Kind {
	case lvm.HeldElsewhere:
		return m.explainHeld(ctx, v)
	case lvm.SharedNotPossible:
		return api.NewError(api.KindUnsupported, fmt.Sprintf("%s cannot be activated shared: LVM does not share volumes of type %s", v.Name(), f.Type))
	case lvm.LockdDown:
		return api.NewError(api.KindLocking, fmt.Sprintf("%s: lvmlockd is not running on this host; start it, with '--adopt 1' if it left orphaned locks", v.Name()))
	default:
	}
	return api.NewError(le.Kind(), le.Error())
}

func (m *Manager) explainHeld(ctx context.Context, v model.Volume) error {
	holders, err := m.winner(ctx, v)
	if err != nil {
		return api.NewError(api.KindHeld, fmt.Sprintf("%s is locked by another host, and its lease cannot be read to tell which (%v)", v.Name(), err))
	}
	return m.heldBy(v, holders)
}

// heldBy says who else holds a volume, so that it cannot be had.
func (m *Manager) heldBy(v model.Volume, holders []model.Holder) error {
	var others []string
	for _, h := range holders {
		if h.Self {
			continue
		}
		others = append(others, m.holderText(h))
	}
	if len(others) == 0 && len(holders) > 0 {
		return api.NewError(api.KindLocking, fmt.Sprintf("%s has a lease of this host itself, left over from an lvmlockd that is gone; start lvmlockd with '--adopt 1', or reboot this host", v.Name()))
	}
	if len(others) == 0 {
		return api.NewError(api.KindHeld, fmt.Sprintf("%s was locked by another host a moment ago, and its lease is free now; try again", v.Name()))
	}
	text := fmt.Sprintf("%s is held %s", v.Name(), strings.Join(others, " and "))
	for _, h := range holders {
		if h.State == model.HostLive && !h.Self {
			return api.NewError(api.KindHeld, fmt.Sprintf("%s; stop the guest that uses it there, or run 'lvchange -an %s' on %s if nothing does", text, v.Name(), h.Label()))
		}
	}
	return api.NewError(api.KindHeld, text+"; never force the lock")
}

// winner reads who holds a volume that LVM says somebody does. While another host takes a
// lease, sanlock refuses it to us before that host's name stands on the disk: then we look
// again for a moment.
func (m *Manager) winner(ctx context.Context, v model.Volume) (holders []model.Holder, err error) {
	for range winnerLooks {
		holders, err = m.Leases.Holders(ctx, v.VG, v.LeaseOffset, v.LockLV)
		if err != nil || len(holders) > 0 {
			break
		}
		<-m.After(winnerPause)
	}
	return holders, err
}

func (m *Manager) holderText(h model.Holder) string {
	return h.Text(m.Now())
}

// refusal is the line libvirt shows: which operation, on which guest, and why not.
func refusal(op, guest string, err error) string {
	verb := map[string]string{"migrate": "migrate", "restore": "restore", "attach": "attach"}[op]
	if verb == "" {
		verb = "start"
	}
	return fmt.Sprintf("cannot %s %s: %s", verb, show(guest), oneLine(err.Error()))
}

// show quotes a guest's name where it would not be read as one word: its owner may have
// typed anything.
func show(name string) string {
	for _, r := range name {
		if !unicode.IsPrint(r) || unicode.IsSpace(r) || strings.ContainsRune(`"'`, r) {
			return strconv.Quote(name)
		}
	}
	if name == "" || !isValid(name) {
		return strconv.Quote(name)
	}
	return name
}

func isValid(s string) bool { return strings.ToValidUTF8(s, "") == s }

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
