package fakevirt

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	granted "virtlvm/internal/domain"
	"virtlvm/internal/guests"
)

// All that happens, in order, with both hosts' status files at each step.
func TestMigrationStepByStep(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	err := Migrate(ctx, p.a.Host, p.b.Host, "vm1", MigrateOptions{Step: func(s Step) error {
		p.event(string(s) + ": " + p.states())
		return nil
	}})
	require.NoError(t, err)
	const out, in = ", migration out ", ", migration in prepare"
	assert.Equal(t, []string{
		"begun: running booted" + out + "begin3 | -",
		"kvm-b migrate begin -",
		"migrate hook: running booted" + out + "begin3 | -",
		"kvm-b prepare begin -",
		"prepare hook: running booted" + out + "begin3 | -",
		"kvm-b start begin -",
		"start hook: running booted" + out + "begin3 | -",
		"launched: running booted" + out + "begin3 | paused migration" + in,
		"kvm-b started begin -",
		"started hook: running booted" + out + "begin3 | paused migration" + in,
		"performing: running booted" + out + "perform3 | paused migration" + in,
		"paused: paused migration" + out + "perform3 | paused migration" + in,
		"performed: paused migration" + out + "perform3_done | paused migration" + in,
		"switched: paused migration" + out + "perform3_done | running migrated",
		"confirming: paused migration" + out + "confirm3 | running migrated",
		"kvm-a stopped end -",
		"stopped: paused migration" + out + "confirm3 | running migrated",
		"kvm-a release end migrated",
		"done: - | running migrated",
	}, p.events)
	assert.Equal(t, "shut off", p.a.guest("vm1").State, "it keeps its definition")
	assert.NoFileExists(t, filepath.Join(p.b.definitions(), "vm1.xml"))
	assert.Equal(t, Guest{Name: "vm1", UUID: uuid1, ID: 1, State: "running", PID: 5000001}, p.b.guest("vm1"))

	require.NoError(t, p.b.Destroy(ctx, "vm1"))
	guests, err := p.b.List()
	require.NoError(t, err)
	assert.Empty(t, guests, "without a definition nothing is left of it")
}

// recordedCalls are the hook calls for vm1 in a log of a real host.
func recordedCalls(t *testing.T, dir string) []string {
	t.Helper()
	data, err := os.ReadFile(fixtures + dir + "/calls.log")
	require.NoError(t, err)
	var calls []string
	for line := range strings.Lines(string(data)) {
		if _, rest, found := strings.Cut(line, "/etc/libvirt/hooks/qemu vm1 "); found {
			call, _, _ := strings.Cut(rest, " stdin=")
			calls = append(calls, call)
		}
	}
	return calls
}

// The calls and their documents are those of real hosts, as far as disks go.
func TestMigrationIsAsRecorded(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		fail error
		host func(*pair) *bench
		dir  string
		skip int // calls of the start before it
	}{
		"destination":             {nil, func(p *pair) *bench { return p.b }, "kvm-b", 0},
		"source":                  {nil, func(p *pair) *bench { return p.a }, "kvm-a", 3},
		"destination, an aborted": {ErrAborted, func(p *pair) *bench { return p.b }, "migration-aborted-destination", 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPair(t)
			err := p.migrate(MigrateOptions{}, StepPerforming, func() error { return tt.fail })
			require.ErrorIs(t, err, tt.fail)
			want := recordedCalls(t, tt.dir)[tt.skip:]
			require.NotEmpty(t, want)
			calls := tt.host(p).calls
			require.Len(t, calls, len(want))
			for i, call := range calls {
				assert.Equal(t, want[i], strings.Join([]string{call.Op, call.SubOp, call.Extra}, " "))
				files, err := filepath.Glob(fixtures + tt.dir + "/0" + string(rune('1'+tt.skip+i)) + "-vm1-" + call.Op + "-*.xml")
				require.NoError(t, err)
				require.Len(t, files, 1)
				recorded, err := os.ReadFile(files[0])
				require.NoError(t, err)
				w, g := parse(t, recorded), parse(t, call.XML)
				assert.Equal(t, filled(w), filled(g), files[0])
				assert.Equal(t, w.SecLabel, g.SecLabel, files[0])
				assert.Equal(t, w.ID == nil, g.ID == nil, files[0])
				assert.Equal(t, w.UUID, g.UUID)
			}
			assert.Equal(t, []string(nil), p.b.openMarkers())
		})
	}
}

// A fault at each step, and how both hosts get over it.
func TestMigrationFails(t *testing.T) {
	t.Parallel()
	const runs, resumed, over = "running booted | -", "running migration canceled | -", "- | running migrated"
	tests := map[Step]struct {
		calls  int // of those that a migration makes on the destination
		undone bool
		states string
	}{
		StepBegun:       {0, false, runs},
		StepMigrateHook: {1, false, runs},
		StepPrepareHook: {2, true, runs},
		StepStartHook:   {3, true, runs},
		StepLaunched:    {3, true, runs},
		StepStartedHook: {4, true, runs},
		StepPerforming:  {4, true, runs},
		StepPaused:      {4, true, resumed},
		StepPerformed:   {4, true, resumed},
		StepSwitched:    {4, false, over},
		StepConfirming:  {4, false, over},
		StepStopped:     {4, false, over},
		StepDone:        {4, false, over},
	}
	require.Len(t, tests, len(Steps()))
	for _, o := range []MigrateOptions{{}, {P2P: true}} {
		for step, tt := range tests {
			if o.P2P && !slices.Contains([]Step{StepMigrateHook, StepLaunched, StepPaused, StepPerformed}, step) {
				continue
			}
			t.Run(string(step), func(t *testing.T) {
				t.Parallel()
				p := newPair(t)
				err := p.migrate(o, step, func() error { return ErrAborted })
				require.ErrorIs(t, err, ErrAborted)
				assert.Equal(t, "error: operation aborted: migration out: canceled by client\n", virsh(t, err))
				want := append([]string(nil), arrives[:tt.calls]...)
				if tt.undone {
					want = append(want, fails...)
				}
				if tt.states == over {
					want = append(want, leaves...)
				}
				assert.Equal(t, want, p.take())
				assert.Equal(t, tt.states, p.states())
				assert.NoFileExists(t, p.b.arrivingPath("vm1"))
				if tt.states == over {
					return
				}
				require.Empty(t, p.b.launcher.(*InProcess).disks, "no QEMU is left there")
				assert.Equal(t, 1, strings.Count(p.disk(), "\n"), "it never wrote")
				require.NoError(t, p.migrate(MigrateOptions{}, "", nil), "and then it goes through")
				assert.Equal(t, over, p.states())
			})
		}
	}
}

// The job on the source ends before the destination undoes a failed Perform, but after it
// has undone a failed Prepare; with P2P always after.
func TestWhoUndoesFirst(t *testing.T) {
	t.Parallel()
	const free, busy = "running booted", "running booted, migration out "
	for _, tt := range []struct {
		o    MigrateOptions
		at   Step
		want string
	}{
		{MigrateOptions{}, StepPrepareHook, busy + "begin3"},
		{MigrateOptions{}, StepPerforming, free},
		{MigrateOptions{P2P: true}, StepPrepareHook, busy + "begin3"},
		{MigrateOptions{P2P: true}, StepPerforming, busy + "perform3"},
	} {
		p := newPair(t)
		hook := p.b.o.Hook
		seen := ""
		p.b.o.Hook = func(ctx context.Context, call HookCall) HookResult {
			if call.Op == "stopped" {
				seen = p.state(p.a)
			}
			return hook(ctx, call)
		}
		require.ErrorIs(t, p.migrate(tt.o, tt.at, func() error { return ErrAborted }), ErrAborted)
		assert.Equal(t, tt.want, seen, tt)
	}
}

func TestHookRefusesMigration(t *testing.T) {
	t.Parallel()
	for i, op := range []string{"migrate", "prepare", "start", "started"} {
		p := newPair(t)
		p.b.answer[op] = HookResult{Code: 1, Stderr: "hook says no\n"}
		err := p.migrate(MigrateOptions{}, "", nil)
		assert.Equal(t, "error: Hook script execution failed: internal error: Child process (LC_ALL=C "+
			"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin /etc/libvirt/hooks/qemu vm1 "+op+" begin -) "+
			"unexpected exit status 1: hook says no\n", virsh(t, err))
		want := slices.Clone(arrives[:i+1])
		if op != "migrate" {
			want = append(want, fails...)
		}
		assert.Equal(t, want, p.take())
		assert.Equal(t, "running booted | -", p.states())
	}
}

func TestDestinationCannotOpenTheDisk(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.b.o.Root = p.b.dir // it sees none
	assert.Equal(t, "error: Cannot access storage file '/dev/vg_san/lv1': No such file or directory\n",
		virsh(t, p.migrate(MigrateOptions{}, "", nil)))
	assert.Equal(t, append(slices.Clone(arrives[:2]), fails...), p.take())
	assert.Equal(t, "running booted | -", p.states())
}

// What the hook `migrate` prints is the domain from then on, but not the definition.
func TestGrantInTheMetadata(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	grant := granted.Grant{ID: "g1", From: "kvm-a"}
	hook := p.b.o.Hook
	p.b.o.Hook = func(ctx context.Context, call HookCall) HookResult {
		r := hook(ctx, call)
		if call.Op == "migrate" {
			_, found, err := granted.GrantOf(call.XML)
			assert.NoError(t, err)
			assert.False(t, found)
			doc, err := granted.WithGrant(call.XML, grant)
			assert.NoError(t, err)
			r.Stdout = string(doc)
		}
		return r
	}
	has := func(doc []byte) bool {
		g, found, err := granted.GrantOf(doc)
		require.NoError(t, err)
		return found && assert.Equal(t, grant, g)
	}
	require.NoError(t, p.migrate(MigrateOptions{Persistent: true}, StepPaused, func() error {
		s, _, err := p.b.readStatus("vm1")
		require.NoError(t, err)
		assert.True(t, has(new(Host).xmlOf(s.Domain)), "in the status file")
		return nil
	}))
	require.Len(t, p.b.calls, 4)
	for _, call := range p.b.calls[1:] {
		assert.True(t, has(call.XML), call.Op)
	}
	def, err := p.b.definition("vm1")
	require.NoError(t, err)
	assert.False(t, has(new(Host).xmlOf(def)))
	s, err := guests.New(p.b.RunDir(), filepath.Join(p.b.dir, "proc")).Observe()
	require.NoError(t, err)
	assert.Contains(t, string(s.ByUUID[uuid1].XML), `<virtlvm:grant xmlns:virtlvm='urn:virtlvm:1' id='g1' from='kvm-a'/>`)
	// It is in the live domain: so the next migration brings it along.
	require.NoError(t, Migrate(ctx, p.b.Host, p.a.Host, "vm1", MigrateOptions{}))
	for _, call := range p.a.calls[2:] {
		assert.True(t, has(call.XML), call.Op)
	}
}

func TestFilteredXMLThatIsNone(t *testing.T) {
	t.Parallel()
	const disk = `<disk type='block' device='disk'><source dev='/dev/vg_san/lv1'/><target dev='vda' bus='virtio'/></disk>`
	for out, want := range map[string]string{
		"hello": "XML error: ",
		domain("vm1", "99999999-2222-3333-4444-555555555555", disk): "unsupported configuration: Target domain uuid 99999999-2222-3333-4444-555555555555 does not match source " + uuid1,
		domain("vm9", uuid1, disk):                                  "unsupported configuration: Target domain name 'vm9' does not match source 'vm1'",
		domain("vm1", uuid1, ""):                                    "unsupported configuration: Target domain disk count 0 does not match source 1",
	} {
		p := newPair(t)
		p.b.answer["migrate"] = HookResult{Stdout: out}
		assert.Contains(t, virsh(t, p.migrate(MigrateOptions{}, "", nil)), want)
		assert.Equal(t, arrives[:1], p.take())
		assert.Equal(t, "running booted | -", p.states())
	}
}

// What the product sees of it is what it would see of real hosts.
func TestMigrationSeenByTheObserver(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	look := func(b *bench) guests.Guest {
		s, err := guests.New(b.RunDir(), filepath.Join(b.dir, "proc")).Observe()
		require.NoError(t, err)
		require.Empty(t, s.Unknown)
		return s.ByUUID[uuid1]
	}
	err := p.migrate(MigrateOptions{CopyStorageAll: true}, StepPerforming, func() error {
		g := look(p.a)
		assert.Equal(t, guests.Job{Type: "none", Async: "migration out", Phase: "perform3", Flags: 0x141}, g.Job)
		assert.Equal(t, guests.Alive, g.Alive)
		g = look(p.b)
		assert.Equal(t, guests.Job{Type: "none", Async: "migration in", Phase: "prepare", Flags: 0x41}, g.Job)
		assert.Equal(t, guests.Alive, g.Alive)
		return nil
	})
	require.NoError(t, err)
	assert.Equal(t, guests.Job{Type: "none", Async: "none"}, look(p.b).Job)
	assert.Empty(t, look(p.a).UUID)
}
