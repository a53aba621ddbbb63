package san

import (
	"slices"
	"sort"
	"strings"
	"time"
)

// state is everything the SAN and its hosts know, as saved in the folder.
type state struct {
	Epoch     int64 // when it was made, Unix nanoseconds
	TimeScale float64
	LVM       int
	IOTimeout int // seconds
	Expiry    time.Duration
	Hosts     map[string]*hostState
	VGs       map[string]*vgState
	Faults    []*Fault
	NextFault int
}

// hostState is one host: what its kernel, lvmlockd and sanlock hold in memory.
type hostState struct {
	Name     string
	ID       int // sanlock host id
	BootedAt int64
	Boots    int // how often it was rebooted: tells an old command from a new one
	Down     bool
	// LockdDown and SanlockDown: the daemon does not run.
	LockdDown, SanlockDown bool
	Conf                   map[string]string // settings that differ from the usual ones, see Host.Set
	Spaces                 map[string]*space // started lockspaces by VG
	Locks                  []*localLock      // LV locks, oldest first
	Devs                   map[string]*device
}

// space is a lockspace on one host, known to sanlock and to lvmlockd unless it is
// Inactive (lvmlockd was restarted without adoption) or Lost (sanlock could not renew).
type space struct {
	JoinedAt int64
	Inactive bool
	Lost     bool
}

// localLock is a lock of lvmlockd on one host.
type localLock struct {
	VG, UUID string
	Mode     string // "ex", "sh"; "un" where LVM16 remembers a released one
	Orphan   bool   // sanlock holds it, the lvmlockd that took it is gone
}

// device is an active device-mapper device on one host; the key is its name.
type device struct {
	UUID     string // dm uuid
	Minor    int
	VG, LV   string // LV name
	ReadOnly bool
	Held     int // opens by other devices or daemons
	// Error: its table is one of the error target; nothing can be read or written.
	Error bool
}

type vgState struct {
	Name, UUID, LockType string
	Size                 int64
	NoAutoactivation     bool
	Tags                 []string
	LVs                  []*lvState         // in metadata order
	LockLV               *lvState           // "lvmlock", sanlock only
	Leases               map[int64]*lease   // by offset
	Deltas               map[int]*deltaSlot // host table by host id
	GL, VGL              lease              // global and VG lock; free whenever looked at
}

type lvState struct {
	Name, UUID       string
	Seg              string // segment type
	Size, Used       int64  // bytes; Used is what it takes from the VG
	Offset           int64  // lease offset, 0: none
	Origin, Pool     string
	Tags             []string
	Host             string // that created it
	ReadOnly         bool
	NoAutoactivation bool
	// Parent and Attr are set on hidden parts of another LV; Attr holds the first and
	// the seventh character of their lv_attr.
	Parent, Attr string
}

const (
	extentSize   = 4 << 20
	leaseSize    = 1 << 20
	glOffset     = 65 * leaseSize // GLLK; VGLK follows, then the LVs
	firstLease   = 67 * leaseSize // 70254592
	lockLVSize   = 256 << 20
	lockLVName   = "lvmlock"
	lockArgsHead = "1.0.0:"
)

func (st *state) hostsByID() []*hostState {
	var hs []*hostState
	for _, h := range st.Hosts {
		hs = append(hs, h)
	}
	sort.Slice(hs, func(i, j int) bool { return hs[i].ID < hs[j].ID })
	return hs
}

func (st *state) hostByID(id int) *hostState {
	for _, h := range st.Hosts {
		if h.ID == id {
			return h
		}
	}
	return nil
}

func (st *state) vgsByName() []*vgState {
	var vgs []*vgState
	for _, vg := range st.VGs {
		vgs = append(vgs, vg)
	}
	sort.Slice(vgs, func(i, j int) bool { return vgs[i].Name < vgs[j].Name })
	return vgs
}

func (vg *vgState) shared() bool { return vg.LockType != LockNone }

// leased reports whether the VG's LV locks are leases on disk.
func (vg *vgState) leased() bool { return vg.LockType == LockSanlock }

func (vg *vgState) find(name string) *lvState {
	for _, lv := range vg.LVs {
		if lv.Name == name {
			return lv
		}
	}
	return nil
}

func (vg *vgState) findUUID(uuid string) *lvState {
	for _, lv := range vg.LVs {
		if lv.UUID == uuid {
			return lv
		}
	}
	return nil
}

func (vg *vgState) parts(lv *lvState) []*lvState {
	return vg.where(func(o *lvState) bool { return o.Parent == lv.Name })
}

func (vg *vgState) snapshots(lv *lvState) []*lvState {
	return vg.where(func(o *lvState) bool { return o.Origin == lv.Name && o.Seg == "linear" })
}

func (vg *vgState) thins(pool *lvState) []*lvState {
	return vg.where(func(o *lvState) bool { return o.Seg == "thin" && o.Pool == pool.Name })
}

func (vg *vgState) where(ok func(*lvState) bool) []*lvState {
	var out []*lvState
	for _, lv := range vg.LVs {
		if ok(lv) {
			out = append(out, lv)
		}
	}
	return out
}

func (vg *vgState) free() int64 {
	free := vg.Size
	for _, lv := range vg.LVs {
		free -= lv.Used
	}
	if vg.LockLV != nil {
		free -= vg.LockLV.Used
	}
	return free
}

// isSnapshot reports whether lv is an old-style copy-on-write snapshot.
func (lv *lvState) isSnapshot() bool { return lv.Origin != "" && lv.Seg == "linear" }

// locker is the LV whose lock guards lv: a thin volume's pool, a snapshot's origin.
func (vg *vgState) locker(lv *lvState) *lvState {
	switch {
	case lv.Seg == "thin":
		return vg.find(lv.Pool)
	case lv.isSnapshot():
		return vg.find(lv.Origin)
	}
	return lv
}

func (h *hostState) lockOf(vg, uuid string) *localLock {
	for _, l := range h.Locks {
		if l.VG == vg && l.UUID == uuid {
			return l
		}
	}
	return nil
}

func (h *hostState) setLock(vg, uuid, mode string) {
	if l := h.lockOf(vg, uuid); l != nil {
		l.Mode = mode
		return
	}
	h.Locks = append(h.Locks, &localLock{VG: vg, UUID: uuid, Mode: mode})
}

func (h *hostState) dropLock(vg, uuid string) {
	h.Locks = slices.DeleteFunc(h.Locks, func(l *localLock) bool { return l.VG == vg && l.UUID == uuid })
}

// dmName is the device-mapper name of an LV: dashes doubled, parts joined by one.
func dmName(vg, lv string) string {
	return strings.ReplaceAll(vg, "-", "--") + "-" + strings.ReplaceAll(lv, "-", "--")
}

// dmUUID is the device-mapper uuid of an LV.
func dmUUID(vg *vgState, lv *lvState) string {
	return "LVM-" + strings.ReplaceAll(vg.UUID+lv.UUID, "-", "")
}
