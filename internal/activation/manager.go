// Package activation decides which guest needs which volume in which mode on this host
// (holds) and makes it so: plan, apply, verify, undo. It is the only code that changes
// a lock or a device, and it owns only what a hold or a command of its own activated.
//
// Data flows one way: a hook call, an operator's command or a look at the running guests
// changes holds; the volumes of a VG are then brought to what their holds want, one VG at
// a time under that VG's queue. Events only say "look": the status files, the locks and
// the devices decide.
package activation

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"virtlvm/internal/api"
	"virtlvm/internal/domain"
	"virtlvm/internal/guests"
	"virtlvm/internal/lease"
	"virtlvm/internal/lvm"
	"virtlvm/internal/model"
	"virtlvm/internal/run"
	"virtlvm/internal/store"
)

// Journal is what the engine needs of the database.
type Journal interface {
	Begin(context.Context, store.Intent, store.HoldChange) (int64, error)
	Running(ctx context.Context, id int64, pid int, start uint64) error
	Finish(context.Context, int64, store.Result, store.HoldChange, ...store.Query) error
	OpenCommands(context.Context) ([]store.OpenCommand, error)
	Command(context.Context, int64) (api.Command, error)
	AddQueries(context.Context, []store.Query) error

	// Fenced hosts are those that an operator has declared off; a change is on the disk at
	// once.
	Fenced(context.Context) ([]model.Fenced, error)
	PutFenced(context.Context, model.Fenced) error
	DropFenced(ctx context.Context, host string) error

	HandoffSteps(ctx context.Context, guest string, limit int) ([]model.HandoffStep, error)

	Holds(context.Context) ([]model.Hold, error)
	ChangeHolds(context.Context, store.HoldChange) error
	ReplaceHolds(context.Context, []model.Hold) error

	AddHookCall(context.Context, api.HookCall) (int64, error)
	FinishHookCall(context.Context, int64, store.HookVerdict, []store.Query, store.HoldChange) error
	InterruptHookCalls(context.Context) error
	Prune(ctx context.Context, before time.Time) (more bool, err error)
	Health(context.Context) error
	Generation() int
}

// LVM reads volume groups, volumes and devices.
type LVM interface {
	VGs(ctx context.Context, names ...string) ([]lvm.VG, error)
	Inventory(ctx context.Context, vgs ...string) (vols []model.Volume, missing, unlocked []string, err error)
	Devices() (map[string]lvm.Device, error)
	OpenCounts(context.Context) (map[string]int, error)
	Table(ctx context.Context, device string) (lvm.Table, error)
}

// Leases reads who holds locks.
type Leases interface {
	Hosts(ctx context.Context, vg string) (map[int]lease.Host, error)
	Local(context.Context) (lease.Local, error)
	Holders(ctx context.Context, vg string, offset int64, lvUUID string) ([]model.Holder, error)
	HoldersAll(ctx context.Context, vg string, offsets map[string]int64) (map[string][]model.Holder, error)
	Sharers(ctx context.Context, vg string, offsets map[string]int64) (map[string][]model.Holder, error)
	HoldersKnown(ctx context.Context, vg string, offsets map[string]int64, age time.Duration) (map[string][]model.Holder, error)
}

// Guests observes what runs here.
type Guests interface {
	Observe() (guests.Snapshot, error)
}

// Deps are everything the engine is given.
type Deps struct {
	Journal Journal
	Peers   Peers // nil: this host has none
	// OtherHosts names those that a guest could be migrated to; nil: it cannot be told.
	OtherHosts func(context.Context) []string
	LVM        LVM
	Leases     Leases
	Guests     Guests
	Disks      *domain.Walker // finds the volumes of a guest's disks
	// Definitions reads the guests that are defined on this host, running or not.
	Definitions func() ([]*domain.Domain, error)
	Runner      run.Runner // runs what changes something; LVM and Leases read on their own
	Log         *slog.Logger

	Host   string // this host's name
	BootID string
	Now    func() time.Time
	Uptime func() time.Duration                 // since boot
	Alive  func(pid int, start uint64) bool     // is that process still there?
	Find   func(argv []string) []run.Process    // processes that run a command line
	After  func(time.Duration) <-chan time.Time // default time.After
	// Branch tells, in its context, what goes on beside something else; nil: nobody asks.
	Branch func(ctx context.Context, what string) context.Context
	// Unopened are the paths that libvirt could not open since a moment because they were not
	// there, newest first; nil: it cannot be told.
	Unopened func(ctx context.Context, since time.Time) ([]Unopened, error)
	// FenceStatus asks the site whether a host is off; nil: it cannot be asked.
	FenceStatus func(ctx context.Context, host string) (off bool, err error)

	Settings func() Settings // read at each use, so that a reload takes effect
}

// Settings are the engine's share of the configuration.
type Settings struct {
	Scope          func(vg string) bool // is this VG ours to manage, by name
	CommandTimeout time.Duration        // for one LVM command
	BootWait       time.Duration        // a start waits so long for its VG's lockspace
	LockstartRetry time.Duration
	JournalKeep    time.Duration
	BreakGlass     func() bool
	Retain         bool // a guest's exclusive volumes stay so after it has ended
	// Claims are the members, in order, of each VG without lvmlockd that is managed all the
	// same (unsafe_claims).
	Claims map[string][]string
	// IsolateLeftovers: a guest that a migration has left over is cut off from its volumes.
	IsolateLeftovers bool
}

// startGrace is how long a start that was answered may take to become a QEMU, and a QEMU
// that is gone may keep its status file, before the hold ends by itself.
const startGrace = 60 * time.Second

type holdKey struct {
	owner  string
	volume model.VolumeID
}

// Manager is the engine of one host. Safe for concurrent use.
type Manager struct {
	Deps
	started time.Time
	ready   chan struct{} // closed after the first full look
	kick    chan struct{} // something happened: look again
	awaited chan struct{} // and another host waits for it
	pen     chan struct{} // one token: who writes holds into the journal, see writing; taken before mu

	mu        sync.Mutex
	holds     map[holdKey]model.Hold
	dirty     bool                     // memory has what the database could not take
	inflight  map[string]int           // starts of a guest being decided, by uuid
	released  map[string]int64         // newest `release` of a guest, uptime in ms, by uuid
	stopping  map[string]time.Time     // `stopped` came and `release` not yet, by uuid
	goneAt    map[string]time.Time     // when a guest with a status file was first seen without QEMU
	adopted   map[string]string        // by uuid: the disks last adopted
	parsed    map[string]document      // by uuid: what the status file said last
	own       map[int64]bool           // commands of this daemon that have not ended
	beginning int                      // and how many of them may have a row that own does not know yet
	calls     map[string]uint64        // hook calls so far, by guest uuid: see sight
	deciding  map[string]chan struct{} // one start of a guest at a time, by uuid
	passed    map[string][]string      // volumes of a starting guest that are none of ours, by uuid
	loaded    bool                     // the database's holds have been read
	journal   int                      // generation of the database that has our holds
	// confirmed is when the source of an incoming guest last said that its migration goes
	// on, uptime in ms, by uuid.
	confirmed map[string]int64
	stories   map[string]*story           // live migrations under way, by uuid
	memory    map[string]memory           // see remembered, by VG
	leases    map[string]map[string]int64 // see leasesAt, by VG
	listed    map[string]*inventory       // see recalled, by VG
	asking    bool                        // see checkMigrations
	asked     sync.WaitGroup
	vgs       map[string]*vgQueue
	newest    *local // see recentLook
	report    report
	tallies   tallies
	nextLook  time.Time               // when everything is looked at next; zero: now
	known     []lvm.VG                // from the last full look; nil: there was none
	lockTypes map[string]string       // of VGs, as LVM last said
	boots     map[string]string       // boot id of other members as they were last reached, by host
	claiming  map[holdKey]bool        // see claimAlone
	fenced    map[string]model.Fenced // declared off, by host
	heard     map[string]int          // how often a host has asked or answered something
	handmade  *handmade               // what others do to our volumes
	goingDown bool                    // the host is; libvirt has ended and calls nobody any more
}

// New makes an engine. Load must be called before anything else.
func New(d Deps) *Manager {
	if d.After == nil {
		d.After = time.After
	}
	if d.Branch == nil {
		d.Branch = func(ctx context.Context, _ string) context.Context { return ctx }
	}
	m := &Manager{
		Deps:     d,
		started:  d.Now(),
		ready:    make(chan struct{}),
		kick:     make(chan struct{}, 1),
		awaited:  make(chan struct{}, 1),
		holds:    map[holdKey]model.Hold{},
		inflight: map[string]int{},
		released: map[string]int64{},
		stopping: map[string]time.Time{},
		adopted:  map[string]string{},
		parsed:   map[string]document{},
		own:      map[int64]bool{},
		calls:    map[string]uint64{},
		deciding: map[string]chan struct{}{},
		passed:   map[string][]string{},

		confirmed: map[string]int64{},
		stories:   map[string]*story{},
		memory:    map[string]memory{},
		leases:    map[string]map[string]int64{},
		listed:    map[string]*inventory{},
		goneAt:    map[string]time.Time{},
		vgs:       map[string]*vgQueue{},
		pen:       make(chan struct{}, 1),
		report:    newReport(),
		tallies:   newTallies(),
		handmade:  newHandmade(),
		lockTypes: map[string]string{},
		boots:     map[string]string{},
		claiming:  map[holdKey]bool{},
		fenced:    map[string]model.Fenced{},
		heard:     map[string]int{},
	}
	m.pen <- struct{}{}
	m.Leases = claimLeases{d.Leases, m}
	return m
}

// Kick asks for a look soon; it never blocks.
func (m *Manager) Kick() { mark(m.kick) }

// mark and took are a flag that can be waited for.
func mark(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func took(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// uptimeMillis has the resolution of the hook's stamps, rounded down like theirs: two
// moments within the same 10 ms count as the same.
func (m *Manager) uptimeMillis() int64 { return m.Uptime().Milliseconds() / 10 * 10 }

// isReady: the first full look is done.
func (m *Manager) isReady() bool {
	select {
	case <-m.ready:
		return true
	default:
		return false
	}
}

// Pulse returns once the engine's lock could be taken: the watchdog's proof that it is
// not deadlocked.
func (m *Manager) Pulse() {
	m.mu.Lock()
	defer m.mu.Unlock()
}
