package command

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"virtlvm/internal/api"
	"virtlvm/internal/model"
	"virtlvm/internal/store"
)

// Journal is what the commands need of the database.
type Journal interface {
	AddEntry(context.Context, store.Entry) (added store.Entry, existed bool, err error)
	Change(ctx context.Context, id int64, fn func(*store.Entry) error) (store.Entry, error)
	Interrupt(ctx context.Context, why string) (int64, error)

	Entry(ctx context.Context, id int64) (store.Entry, error)
	EntryOf(ctx context.Context, origin string, sequence int64) (e store.Entry, found bool, err error)
	Tasks(context.Context) ([]store.Task, error)
	Disconnectable(context.Context) ([]store.Entry, error)
	LastSequence(ctx context.Context, origin string) (int64, error)
	Command(ctx context.Context, id int64) (api.Command, error)
	Commands(context.Context, api.CommandFilter) ([]api.Command, error)
}

// Peers reaches the daemons of other hosts. A failed call is an *api.Error: of kind unreachable
// where nothing was asked, unknown where it may have arrived, else what the other host says.
type Peers interface {
	Call(ctx context.Context, host, path string, in, out any) error
}

// Hosts tells whether another host is dead for good.
type Hosts interface {
	// Generation is the host's in its lockspaces now; "" where it is not known.
	Generation(ctx context.Context, host string) string
	// Dead reports whether the host is dead and has not come back since it had that
	// generation; "": whether it is certainly off. A host that only cannot be reached is not.
	Dead(ctx context.Context, host, generation string) bool
}

// Options are what a Manager is given.
type Options struct {
	Journal Journal
	Peers   Peers
	Hosts   Hosts
	Kinds   map[string]Kind
	Host    string // this host's name
	BootID  string
	Log     *slog.Logger
	Now     func() time.Time
	After   func(time.Duration) <-chan time.Time // default time.After
	// Interval is how often an origin asks for its open commands.
	Interval time.Duration
}

// Pace of things.
const (
	maxAttempts   = 30               // to find out what became of a command
	adoptAttempts = 10               // to look at a backend after a restart, before it counts as interrupted
	beginWithin   = 10 * time.Minute // a command that was not begun by then is not begun at all
	longestPause  = time.Hour        // between two attempts
	lookPause     = time.Second      // between two looks at a backend; more at one that has run for long
	longestLook   = 5 * time.Second
	lookTimeout   = 30 * time.Second // of one look
	askTimeout    = 20 * time.Second // of one question to another host
	acceptTimeout = time.Minute      // of a request: it may look at all hosts before it accepts
	deafFor       = 5 * time.Second  // a host that could not be reached is not called again so soon
	tellPause     = time.Minute      // between two tries to hand over an answer, growing
	longestTell   = 15 * time.Minute
	parallel      = 8 // looks, and questions to other hosts, at the same time
)

// Manager keeps the commands of one host, as their origin and as their executor. Safe for
// concurrent use.
type Manager struct {
	Options

	wake        chan struct{}
	looks, asks chan struct{}      // places for those that do so now
	watch       chan time.Duration // look after the origins, with this patience

	mu       sync.Mutex
	running  bool
	next     time.Time // when Run wakes up by itself
	tasks    map[int64]*task
	progress map[int64]model.Progress
	sequence int64                // the last one given out
	deaf     map[string]time.Time // hosts that could not be reached, and when
	origins  map[string]*contact
	notices  map[string][]int64 // to be sent, by host; present while a sender runs
	work     sync.WaitGroup
}

// task is a command that has to be looked after.
type task struct {
	due   time.Time
	busy  bool
	again bool   // hinted at while busy
	peer  string // the host at the other end
	frail bool   // shall be cancelled when its origin is lost
	tries int    // in a row, of what is not counted in the journal
	said  string // the last remark
	told  bool   // its backend was asked to end
}

// New makes a manager. Resume must be called before anything else.
func New(o Options) *Manager {
	if o.After == nil {
		o.After = time.After
	}
	o.Journal = gentle{o.Journal, make(chan struct{}, 1)}
	return &Manager{
		Options: o, wake: make(chan struct{}, 1), looks: make(chan struct{}, parallel), asks: make(chan struct{}, parallel), watch: make(chan time.Duration, 1),
		tasks: map[int64]*task{}, progress: map[int64]model.Progress{}, deaf: map[string]time.Time{},
		origins: map[string]*contact{}, notices: map[string][]int64{},
	}
}

// gentle is a journal that one command at a time writes into: the writes of thousands that are
// taken up again must not stand before that of a hook, which waits for one at the most.
type gentle struct {
	Journal
	place chan struct{}
}

func (j gentle) AddEntry(ctx context.Context, e store.Entry) (store.Entry, bool, error) {
	leave, err := turn(ctx, j.place)
	if err != nil {
		return e, false, err
	}
	defer leave()
	return j.Journal.AddEntry(ctx, e)
}

func (j gentle) Change(ctx context.Context, id int64, fn func(*store.Entry) error) (store.Entry, error) {
	leave, err := turn(ctx, j.place)
	if err != nil {
		return store.Entry{}, err
	}
	defer leave()
	return j.Journal.Change(ctx, id, fn)
}

// Resume takes up what an earlier daemon left: what ran inside of it is interrupted, what
// had a backend dangles. It only writes; Run looks. Where the journal cannot be used Run
// tries again.
func (m *Manager) Resume(ctx context.Context) error {
	n, err := m.Journal.Interrupt(ctx, "virtlvmd was restarted")
	if err != nil {
		return err
	}
	last, err := m.Journal.LastSequence(ctx, m.Host)
	if err != nil {
		return err
	}
	all, err := m.Journal.Tasks(ctx)
	if err != nil {
		return err
	}
	if len(all) > 0 {
		m.Log.Info("commands taken up again", "open", len(all), "were_running", n)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sequence = max(m.sequence, last)
	for _, t := range all {
		if m.tasks[t.ID] == nil {
			m.tasks[t.ID] = &task{due: t.Next, peer: t.Peer, frail: t.Disconnect && t.Side == model.SideExecutor}
		}
	}
	m.running = true
	return nil
}

// Run looks after the commands until ctx ends, and returns when nothing of it runs any more.
func (m *Manager) Run(ctx context.Context) {
	defer m.work.Wait()
	m.work.Go(func() { m.watchOrigins(ctx) })
	for {
		if !m.resumed() {
			if err := m.Resume(ctx); err != nil {
				m.Log.Error("cannot read the commands; tried again", "err", err)
			}
		}
		pause := m.launch(ctx)
		select {
		case <-ctx.Done():
			return
		case <-m.wake:
		case <-m.After(pause):
		}
	}
}

func (m *Manager) resumed() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.running
}

// launch begins what is due and says when the next thing is.
func (m *Manager) launch(ctx context.Context) time.Duration {
	const resume = 5 * time.Second
	m.mu.Lock()
	defer m.mu.Unlock()
	if ctx.Err() != nil || !m.running {
		m.next = m.Now().Add(resume)
		return resume
	}
	now, next := m.Now(), m.Interval
	defer func() { m.next = now.Add(next) }()
	for id, t := range m.tasks {
		if t.busy {
			continue
		}
		if wait := t.due.Sub(now); wait > 0 {
			next = min(next, wait)
			continue
		}
		t.busy, t.again = true, false
		m.work.Go(func() { m.attend(ctx, id) })
	}
	return next
}

// attend does the next thing for one command.
func (m *Manager) attend(ctx context.Context, id int64) {
	pause, keep := m.step(ctx, id)
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.tasks[id]
	switch {
	case t == nil:
	case !keep && !t.again:
		delete(m.tasks, id)
		delete(m.progress, id)
	default:
		t.busy = false
		t.due = m.Now().Add(pause)
		if t.again {
			t.due = m.Now()
		}
		if t.due.Before(m.next) {
			m.poke()
		}
	}
}

// step: keep is false once nothing remains to be done for the command.
func (m *Manager) step(ctx context.Context, id int64) (pause time.Duration, keep bool) {
	e, err := m.Journal.Entry(ctx, id)
	if err != nil {
		// A journal that was begun anew knows nothing of it.
		return lookPause, api.KindOf(err) != api.KindNotFound
	}
	switch {
	case e.State.Final() && e.Acknowledged:
		return 0, false
	case e.State.Final():
		return m.tell(ctx, e)
	case e.State == model.StateReconciling: // the journal could not take what came of it
		_, _ = m.move(ctx, e, model.StateReconcileRetry, "what came of the attempt was not journalled", nil)
		return lookPause, true
	case e.Side == model.SideOrigin:
		return m.follow(ctx, e)
	}
	return m.execute(ctx, e)
}

// adopt looks after a command from now on.
func (m *Manager) adopt(e store.Entry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.tasks[e.ID] == nil {
		m.tasks[e.ID] = &task{due: m.Now(), peer: other(e), frail: e.OnDisconnect == model.DisconnectCancel && e.Side == model.SideExecutor}
	}
	m.poke()
}

// hint makes a command due at once.
func (m *Manager) hint(id int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if t := m.tasks[id]; t != nil {
		t.due, t.again = m.Now(), t.busy
	}
	m.poke()
}

// HintHost says that another host can be reached, or may have something to tell: its
// commands are asked for at once.
func (m *Manager) HintHost(host string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.deaf, host)
	for _, t := range m.tasks {
		if t.peer == host {
			t.due, t.again, t.tries = m.Now(), t.busy, 0
		}
	}
	m.poke()
}

// HintAll is HintHost for every other host: the network has changed.
func (m *Manager) HintAll() {
	m.mu.Lock()
	hosts := map[string]bool{}
	for _, t := range m.tasks {
		if t.peer != "" {
			hosts[t.peer] = true
		}
	}
	m.mu.Unlock()
	for host := range hosts {
		m.HintHost(host)
	}
}

func (m *Manager) poke() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// other is the host at the other end of a command; "" for one of this host alone.
func other(e store.Entry) string {
	switch e.Side {
	case model.SideOrigin:
		return e.Executor
	case model.SideExecutor:
		return e.Origin
	}
	return ""
}

// nextSequence gives out the number of a request: never twice, not even after the journal was
// lost, unless the clock goes back; and small enough for every reader of JSON.
func (m *Manager) nextSequence() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sequence = max(m.sequence+1, m.Now().UnixMicro())
	return m.sequence
}

// turn waits for one of a few places, so that many commands do not look all at once.
func turn(ctx context.Context, places chan struct{}) (leave func(), err error) {
	select {
	case places <- struct{}{}:
		return func() { <-places }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
