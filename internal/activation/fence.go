package activation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"virtlvm/internal/api"
	"virtlvm/internal/model"
)

// DeclareFenced takes an operator's word that a member of a VG without lvmlockd is off and
// writes no more: its silence then keeps nobody here from using the volumes there. It ends
// when that host is heard of again. A host that answers is not off.
func (m *Manager) DeclareFenced(ctx context.Context, req api.FencedRequest, by string) (api.Command, error) {
	argv := []string{"virtlvm", "host", "fenced", req.Host}
	if req.Withdraw {
		argv = append(argv, "--withdraw")
	}
	return m.Record(ctx, by, "host fenced", argv, nil, func(ctx context.Context) (string, error) {
		if req.Withdraw {
			return req.Host + " is not declared fenced any more", m.withdrawFenced(ctx, req.Host)
		}
		heard := m.timesHeard(req.Host)
		if err := m.mayBeFenced(ctx, req.Host); err != nil {
			return "", err
		}
		return req.Host + " is declared fenced", m.putFenced(ctx, req.Host, by, heard)
	})
}

func (m *Manager) timesHeard(host string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.heard[host]
}

// putFenced writes a declaration, unless the host was heard of since it had been so often: it
// may go by what it was told.
func (m *Manager) putFenced(ctx context.Context, host, by string, heard int) error {
	m.mu.Lock()
	f := model.Fenced{Host: host, BootID: m.boots[host], Here: m.BootID, By: by, At: m.Now().UnixMilli()}
	m.mu.Unlock()
	if err := m.Journal.PutFenced(ctx, f); err != nil {
		return err
	}
	m.mu.Lock()
	silent := m.heard[host] == heard
	if silent {
		m.fenced[host] = f
	}
	m.mu.Unlock()
	if !silent {
		if err := m.Journal.DropFenced(context.WithoutCancel(ctx), host); err != nil {
			return err
		}
		return api.NewError(api.KindInUse, host+" has asked something just now, so that it is not off: nothing is declared")
	}
	m.Log.Warn("a host is declared fenced", "host", host, "by", by, "boot_id", f.BootID)
	m.Kick()
	return nil
}

// withdrawFenced refuses a host that is not declared: it is another one that is meant, and
// that one would go on counting as off.
func (m *Manager) withdrawFenced(ctx context.Context, host string) error {
	m.mu.Lock()
	f, declared := m.fenced[host]
	names := strings.Join(sortedKeys(m.fenced), ", ")
	m.mu.Unlock()
	switch {
	case declared:
		return m.dropFenced(ctx, f)
	case names == "":
		names = "none"
	}
	return api.NewError(api.KindNotFound, fmt.Sprintf("%s is not declared fenced on %s; those that are: %s", host, m.Host, names))
}

// mayBeFenced refuses what cannot be meant.
func (m *Manager) mayBeFenced(ctx context.Context, host string) error {
	if host == m.Host {
		return api.NewError(api.KindBadRequest, host+" is this host, which is not off")
	}
	member := false
	for _, members := range m.Settings().Claims {
		member = member || slices.Contains(members, host)
	}
	if !member {
		return api.NewError(api.KindNotFound, host+" is no member of a volume group with unsafe_claims in virtlvm.toml; that of others is known to sanlock, and need not be told")
	}
	short, cancel := context.WithTimeout(ctx, claimPatience)
	defer cancel()
	var answer api.Hello
	err := m.call(short, host, api.RoutePeerHello, struct{}{}, &answer)
	if kind := api.KindOf(err); err == nil || answered(err) || kind != api.KindUnreachable && kind != api.KindUnknown {
		return api.NewError(api.KindInUse, host+" answers, so that it is not off: nothing is declared; stop what it runs there, or switch it off first")
	}
	return nil
}

// FencedHosts lists the hosts that are declared off here.
func (m *Manager) FencedHosts() []model.Fenced {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []model.Fenced
	for _, host := range sortedKeys(m.fenced) {
		all = append(all, m.fenced[host])
	}
	return all
}

// isFenced: an operator or the site's command says that a silent host is off.
func (m *Manager) isFenced(ctx context.Context, host string) bool {
	m.mu.Lock()
	_, declared := m.fenced[host]
	m.mu.Unlock()
	if declared || m.FenceStatus == nil {
		return declared
	}
	off, err := m.FenceStatus(ctx, host)
	if err != nil {
		m.Log.Warn("fence_status does not tell whether a host is off; it counts as running", "host", host, "err", err)
		return false
	}
	return off
}

// answered: that is what the daemon of the other host has said, which is therefore not off.
func answered(err error) bool {
	var said interface{ Answered() }
	return errors.As(err, &said)
}

// Heard ends a declaration that a host is off: it has asked or answered something, whatever
// it was.
func (m *Manager) Heard(ctx context.Context, host string) error { return m.heardOf(ctx, host, "") }

// heardOf ends a declaration that a host is off, on the disk before anything is made of what
// it has asked or answered; bootID "": its boot is not known.
func (m *Manager) heardOf(ctx context.Context, host, bootID string) error {
	m.mu.Lock()
	m.heard[host]++
	f, declared := m.fenced[host]
	m.mu.Unlock()
	if !declared {
		return nil
	}
	// Whether whoever asks still waits does not matter.
	if err := m.dropFenced(context.WithoutCancel(ctx), f); err != nil {
		return api.NewError(api.KindOf(err), fmt.Sprintf("%s was declared fenced and is back, which cannot be written down: %v", host, err))
	}
	said := fmt.Sprintf("%s was declared fenced (by %s, at %s)", host, f.By, time.UnixMilli(f.At).Format("15:04:05"))
	text := host + " is back: it does not count as fenced any more"
	switch {
	case bootID == "":
		text = said + " and is heard of, so that it does not count as fenced any more; unless it was switched off meanwhile, look for guests that run twice"
	case f.BootID == bootID:
		text = said + " and has not been: it runs since before; look for guests that run twice"
	}
	m.Event(api.EventHost, host, text)
	return nil
}

// noteBoot notes of which boot the host is that is reached under a name.
func (m *Manager) noteBoot(host, bootID string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.boots[host] = bootID
}

// sameHost refuses a host that asks from another boot than was last heard of, unless what
// is reached under its name is of that boot, too. Two hosts with one name would both be
// answered here, and neither asks the other.
func (m *Manager) sameHost(ctx context.Context, host, bootID string) error {
	m.mu.Lock()
	known := m.boots[host] == bootID
	m.mu.Unlock()
	if known {
		return nil
	}
	short, cancel := context.WithTimeout(ctx, helloPatience)
	defer cancel()
	var there api.Hello
	err := m.call(short, host, api.RoutePeerHello, struct{}{}, &there)
	switch {
	case err != nil:
		return api.NewError(api.KindUnknown, fmt.Sprintf("%s cannot ask %s back whether there is one host of that name alone (%v); see `virtlvm peer test %s` on %s", m.Host, host, err, host, m.Host))
	case there.BootID != "" && there.BootID != bootID: // "": an older version, which does not say
		return api.NewError(api.KindLocking, fmt.Sprintf("two hosts are called %s: one asks %s, and another one is reached from there under that name; give each host an our_host_name of its own in /etc/sanlock/sanlock.conf", host, m.Host))
	}
	m.noteBoot(host, bootID)
	return nil
}

// helloPatience bounds the question back to a host that waits for our answer.
const helloPatience = 10 * time.Second

// dropFenced ends a declaration; one that was made meanwhile stays.
func (m *Manager) dropFenced(ctx context.Context, f model.Fenced) error {
	if err := m.Journal.DropFenced(ctx, f.Host); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fenced[f.Host] == f {
		delete(m.fenced, f.Host)
	}
	return nil
}

// loadFenced reads what has been declared since this host booted; what cannot be read is not.
func (m *Manager) loadFenced(ctx context.Context) {
	all, err := m.Journal.Fenced(ctx)
	if err != nil {
		m.Log.Error("cannot read which hosts are declared fenced; none is", "err", err)
		return
	}
	for _, f := range all {
		if f.Here == m.BootID {
			m.mu.Lock()
			m.fenced[f.Host] = f
			m.mu.Unlock()
			continue
		}
		// While this host was down that one may have come back, and the others may have taken
		// this one for off, as it was.
		if err := m.Journal.DropFenced(ctx, f.Host); err != nil {
			m.Log.Error("cannot forget a declaration of an earlier boot; it does not count", "host", f.Host, "err", err)
		}
		m.Event(api.EventHost, f.Host, fmt.Sprintf("%s was declared fenced (by %s, at %s) before this host was down itself, and does not count as fenced any more: if it still is off, run 'virtlvm host fenced %s' again",
			f.Host, f.By, time.UnixMilli(f.At).Local().Format(time.DateTime), f.Host))
	}
}
