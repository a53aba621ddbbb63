package san

import (
	"maps"
	"slices"
)

// clone is a copy that shares nothing with the state that changes.
func (st *state) clone() *state {
	c := *st
	c.Hosts = cloneMap(st.Hosts, (*hostState).clone)
	c.VGs = cloneMap(st.VGs, (*vgState).clone)
	c.Faults = cloneAll(st.Faults, plain[Fault])
	return &c
}

func (h *hostState) clone() *hostState {
	c := *h
	c.Conf = maps.Clone(h.Conf)
	c.Spaces = cloneMap(h.Spaces, plain[space])
	c.Locks = cloneAll(h.Locks, plain[localLock])
	c.Devs = cloneMap(h.Devs, plain[device])
	return &c
}

func (vg *vgState) clone() *vgState {
	c := *vg
	c.Tags = slices.Clone(vg.Tags)
	c.LVs = cloneAll(vg.LVs, (*lvState).clone)
	if vg.LockLV != nil {
		c.LockLV = vg.LockLV.clone()
	}
	c.Leases = cloneMap(vg.Leases, (*lease).clone)
	c.Deltas = cloneMap(vg.Deltas, plain[deltaSlot])
	c.GL, c.VGL = *vg.GL.clone(), *vg.VGL.clone()
	return &c
}

func (lv *lvState) clone() *lvState {
	c := *lv
	c.Tags = slices.Clone(lv.Tags)
	return &c
}

func (l *lease) clone() *lease {
	c := *l
	c.SH = slices.Clone(l.SH)
	return &c
}

// plain copies what holds no pointers.
func plain[T any](v *T) *T {
	c := *v
	return &c
}

func cloneMap[K comparable, V any](m map[K]*V, clone func(*V) *V) map[K]*V {
	if m == nil {
		return nil
	}
	c := make(map[K]*V, len(m))
	for k, v := range m {
		c[k] = clone(v)
	}
	return c
}

func cloneAll[V any](all []*V, clone func(*V) *V) []*V {
	if all == nil {
		return nil
	}
	c := make([]*V, 0, len(all))
	for _, v := range all {
		c = append(c, clone(v))
	}
	return c
}
