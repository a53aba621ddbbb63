package lease_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/internal/lease"
	"virtlvm/internal/model"
	"virtlvm/internal/run"
	"virtlvm/internal/run/runtest"
)

func TestHoldersOfCaptures(t *testing.T) {
	ex := func(id int, host string, gen int64, state model.HostState, freeIn int) model.Holder {
		return model.Holder{HostID: id, Host: host, Mode: model.ModeEX, Gen: gen, State: state, FreeIn: freeIn}
	}
	shared := func(h model.Holder) model.Holder {
		h.Mode = model.ModeSH
		return h
	}
	tests := map[string]struct {
		now       int
		lv1, base []model.Holder
	}{
		"live": {
			1977,
			[]model.Holder{ex(2, "kvm-b", 1, model.HostLive, 0)},
			[]model.Holder{shared(ex(2, "kvm-b", 1, model.HostLive, 0))},
		},
		"killed": {
			1982,
			[]model.Holder{ex(2, "kvm-b", 1, model.HostLive, 0)},
			[]model.Holder{shared(ex(2, "kvm-b", 1, model.HostLive, 0))},
		},
		"silent": {
			1994,
			[]model.Holder{ex(2, "kvm-b", 1, model.HostFail, 60)},
			[]model.Holder{shared(ex(2, "kvm-b", 1, model.HostFail, 60))},
		},
		"fail": {
			2015,
			[]model.Holder{ex(2, "kvm-b", 1, model.HostFail, 39)},
			[]model.Holder{shared(ex(2, "kvm-b", 1, model.HostFail, 39))},
		},
		"dead":     {2085, nil, nil},
		"rejoined": {2111, nil, nil},
		"left":     {2122, nil, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := runtest.New(t)
			capture(t, f, name)
			r, ctx := at(f, tt.now), context.Background()
			holders, err := r.Holders(ctx, "vg_san", lv1Offset, lv1)
			require.NoError(t, err)
			assert.Equal(t, tt.lv1, holders)
			holders, err = r.Holders(ctx, "vg_san", baseOffset, base)
			require.NoError(t, err)
			assert.Equal(t, tt.base, holders)
			all, err := r.HoldersAll(ctx, "vg_san", map[string]int64{lv1: lv1Offset, base: baseOffset})
			require.NoError(t, err)
			assert.Equal(t, map[string][]model.Holder{lv1: tt.lv1, base: tt.base}, all)
		})
	}
}

func TestHoldersRunning(t *testing.T) {
	f := runtest.New(t)
	capture(t, f, "running")
	r := at(f, 440)
	b := model.Holder{HostID: 2, Host: "kvm-b", Mode: model.ModeEX, Gen: 1, State: model.HostLive, Self: true}
	holders, err := r.Holders(context.Background(), "vg_san", topOffset, top)
	require.NoError(t, err)
	assert.Equal(t, []model.Holder{b}, holders)
	holders, err = r.Holders(context.Background(), "vg_san", baseOffset, base)
	require.NoError(t, err)
	b.Mode = model.ModeSH
	assert.Equal(t, []model.Holder{b}, holders)
}

func TestHoldersNotReady(t *testing.T) {
	f := runtest.New(t)
	capture(t, f, "notready")
	holders, err := at(f, 1977).Holders(context.Background(), "vg_san", lv1Offset, lv1)
	require.NoError(t, err)
	assert.Equal(t, []model.Holder{{HostID: 2, Host: "kvm-b", Mode: model.ModeEX, Gen: 1, State: model.HostUnknown}}, holders)
}

// hostsABC: kvm-a (1, this host) and kvm-b (2) live in generation 5, kvm-c (3) is dead.
func hostsABC(f *runtest.Fake) {
	f.ExpectLine(hostStatusLine).Always().Stdout("lockspace lvm_vg_san\n" +
		table("1", "5", "1990", "1995", "1995", "10", "kvm-a") +
		table("2", "5", "1990", "1995", "1995", "10", "kvm-b") +
		table("3", "5", "1000", "1995", "1001", "10", "kvm-c"))
	f.ExpectLine(getsLine).Always().Stdout("s lvm_vg_san:1:/dev/mapper/vg_san-lvmlock:0 \n" +
		"h 1 gen 5 timestamp 1990 LIVE\nh 2 gen 5 timestamp 1990 LIVE\nh 3 gen 5 timestamp 1000 DEAD\n")
}

func TestHolders(t *testing.T) {
	holder := func(mode model.LockMode, id int, gen int64) model.Holder {
		h := model.Holder{HostID: id, Mode: mode, Gen: gen, State: model.HostLive, Self: id == 1}
		h.Host = map[int]string{1: "kvm-a", 2: "kvm-b", 3: "kvm-c"}[id]
		if gen != 5 || id > 3 {
			h.State = model.HostUnknown
		}
		return h
	}
	const ex, shm = model.ModeEX, model.ModeSH
	converting := holder(shm, 1, 5)
	converting.Converting = true
	tests := map[string]struct {
		lease string
		want  []model.Holder
	}{
		"owned":                             {row(lv1Offset, lv1, 327, 2, 5), []model.Holder{holder(ex, 2, 5)}},
		"owned here":                        {row(lv1Offset, lv1, 327, 1, 5), []model.Holder{holder(ex, 1, 5)}},
		"two share":                         {row(lv1Offset, lv1, 0, 1, 5) + sh(1, 5) + sh(2, 5), []model.Holder{holder(shm, 1, 5), holder(shm, 2, 5)}},
		"last owner still named":            {row(lv1Offset, lv1, 0, 2, 5), nil},
		"never held":                        {row(lv1Offset, lv1, 0, 0, 0), nil},
		"owner is dead":                     {row(lv1Offset, lv1, 327, 3, 5), nil},
		"owner of an older generation":      {row(lv1Offset, lv1, 327, 2, 4), nil},
		"owner newer than the table":        {row(lv1Offset, lv1, 327, 2, 6), []model.Holder{holder(ex, 2, 6)}},
		"dead in the table, newer on disk":  {row(lv1Offset, lv1, 327, 3, 6), []model.Holder{holder(ex, 3, 6)}},
		"owner that no table knows":         {row(lv1Offset, lv1, 327, 9, 1), []model.Holder{holder(ex, 9, 1)}},
		"one of three shares live":          {row(lv1Offset, lv1, 0, 1, 5) + sh(1, 4) + sh(2, 5) + sh(3, 5), []model.Holder{holder(shm, 2, 5)}},
		"converting, beside a live sharer":  {row(lv1Offset, lv1, 500, 1, 5) + sh(1, 5) + sh(2, 5), []model.Holder{converting, holder(shm, 2, 5)}},
		"owner beside another's shared":     {row(lv1Offset, lv1, 500, 1, 5) + sh(2, 5), []model.Holder{holder(ex, 1, 5), holder(shm, 2, 5)}},
		"owner whose shared row is old":     {row(lv1Offset, lv1, 500, 2, 5) + sh(2, 4), []model.Holder{holder(ex, 2, 5)}},
		"host ids of four digits and more":  {row(lv1Offset, lv1, 0, 12345, 5) + sh(12345, 77777), []model.Holder{holder(shm, 12345, 77777)}},
		"a dead owner beside a live sharer": {row(lv1Offset, lv1, 327, 3, 5) + sh(2, 5), []model.Holder{holder(shm, 2, 5)}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := runtest.New(t)
			f.ExpectLine(dumpLine(lv1Offset)).Stdout(header + tt.lease)
			hostsABC(f)
			holders, err := at(f, 2000).Holders(context.Background(), "vg_san", lv1Offset, lv1)
			require.NoError(t, err)
			assert.Equal(t, tt.want, holders)
		})
	}
}

// Two live hosts with one name: neither could be asked by it.
func TestHoldersWithOneName(t *testing.T) {
	for name, tt := range map[string]struct {
		state string // of the third host
		want  string
	}{
		"both live":       {"LIVE", "kvm-b (host_id 2)"},
		"the other fails": {"FAIL", "kvm-b (host_id 2)"},
		"the other died":  {"DEAD", "kvm-b"},
	} {
		t.Run(name, func(t *testing.T) {
			f := runtest.New(t)
			f.ExpectLine(dumpLine(lv1Offset)).Stdout(header + row(lv1Offset, lv1, 327, 2, 5))
			f.ExpectLine(hostStatusLine).Always().Stdout("lockspace lvm_vg_san\n" +
				table("1", "5", "1990", "1995", "1990", "10", "kvm-a") + table("2", "5", "1990", "1995", "1990", "10", "kvm-b") +
				table("3", "5", "1000", "1995", "1990", "10", "kvm-b"))
			f.ExpectLine(getsLine).Always().Stdout("s lvm_vg_san:1:/dev/mapper/vg_san-lvmlock:0 \n" +
				"h 1 gen 5 timestamp 1990 LIVE\nh 2 gen 5 timestamp 1990 LIVE\nh 3 gen 5 timestamp 1000 " + tt.state + "\n")
			holders, err := at(f, 2000).Holders(context.Background(), "vg_san", lv1Offset, lv1)
			require.NoError(t, err)
			require.Len(t, holders, 1)
			assert.Equal(t, tt.want, holders[0].Label())
		})
	}
}

func TestHoldersFreeAsksNobody(t *testing.T) {
	f := runtest.New(t)
	f.ExpectLine(dumpLine(lv1Offset)).Stdout(header + row(lv1Offset, lv1, 0, 2, 5))
	holders, err := at(f, 2000).Holders(context.Background(), "vg_san", lv1Offset, lv1)
	require.NoError(t, err)
	assert.Empty(t, holders)
	assert.Len(t, f.Calls(), 1)
}

func TestHoldersDeviceName(t *testing.T) {
	f := runtest.New(t)
	f.ExpectLine("sanlock direct dump /dev/mapper/a--b----c-lvmlock:70254592:1048576").
		Stdout(header + strings.ReplaceAll(row(lv1Offset, lv1, 0, 2, 5), "lvm_vg_san", "lvm_a-b--c"))
	_, err := at(f, 0).Holders(context.Background(), "a-b--c", lv1Offset, lv1)
	require.NoError(t, err)
}

func TestHoldersUnclear(t *testing.T) {
	whole := row(lv1Offset, lv1, 327, 2, 5)
	tests := map[string]struct{ dump, text string }{
		"no output":            {"", "the dump of a lease is empty"},
		"disk not read":        {header, "the disk has 0 leases at offset 70254592"},
		"no lease there":       {"Cannot find sector_size and align_size, set with -A and -Z.\n", "cannot understand the dump"},
		"another volume's":     {header + row(lv1Offset, base, 327, 2, 5), "the lease at offset 70254592 is that of \"" + base},
		"another offset":       {header + row(baseOffset, lv1, 327, 2, 5), "at 71303168"},
		"removed volume":       {header + row(lv1Offset, "#unused", 0, 0, 0), `is that of "#unused"`},
		"another lockspace":    {header + strings.ReplaceAll(whole, "lvm_vg_san", "lvm_x"), `a lease belongs to "lvm_x", not to "lvm_vg_san"`},
		"two leases":           {header + whole + row(baseOffset, base, 0, 0, 0), "the disk has 2 leases"},
		"a host's own lease":   {header + "00000512 lvm_vg_san " + lv1 + " 0000000456 0002 0001\n", "is that of"},
		"cut in the row":       {header + whole[:60] + "\n", "cannot understand the dump"},
		"cut in a shared row":  {header + whole + "    0002\n", "cannot understand the dump"},
		"no header":            {whole, "cannot understand the dump"},
		"shared row first":     {header + sh(2, 5) + whole, "cannot understand the dump"},
		"shared row of host 0": {header + whole + sh(0, 5), "cannot understand a shared holder"},
		"shared row garbled":   {header + whole + "  x 1 SH\n", "cannot understand a shared holder"},
		"owner is no number":   {header + strings.ReplaceAll(whole, " 0002 ", " 00x2 "), "cannot understand a lease"},
		"owner without an id":  {header + row(lv1Offset, lv1, 327, 0, 5), "cannot understand a lease"},
		"binary":               {header + "\x00\xfe\n", "cannot understand the dump"},
		"trailing words":       {header + strings.TrimSpace(whole) + " more\n", "cannot understand the dump"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := runtest.New(t)
			f.ExpectLine(dumpLine(lv1Offset)).Stdout(tt.dump)
			_, err := at(f, 2000).Holders(context.Background(), "vg_san", lv1Offset, lv1)
			require.ErrorContains(t, err, "cannot read who holds volume "+lv1+" of vg_san: ")
			require.ErrorContains(t, err, tt.text)
			assert.Equal(t, api.KindLocking, api.KindOf(err))
			assert.NotContains(t, err.Error(), "\n")
		})
	}
}

func TestHoldersUnreadable(t *testing.T) {
	open := make(chan struct{})
	tests := map[string]struct {
		err  error
		out  string
		kind api.Kind
		text string
	}{
		"no device": {&run.ExitError{Argv: []string{"sanlock"}, ExitCode: 1}, "Device /dev/mapper/vg_san-lvmlock not found.\n", api.KindLocking, "sanlock failed with exit code 1: Device /dev/mapper/vg_san-lvmlock not found."},
		"missing":   {&run.NotFoundError{Name: "sanlock", Err: errors.New("not installed")}, "", api.KindLocking, "cannot run sanlock: not installed"},
		"hangs":     {&run.TimeoutError{Argv: []string{"sanlock", "direct"}, PID: 3, Done: open}, "", api.KindStuck, "sanlock direct (pid 3) has not answered in time: is the storage there?"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := runtest.New(t)
			f.ExpectLine(dumpLine(lv1Offset)).Stdout(tt.out).Fail(tt.err)
			_, err := at(f, 2000).Holders(context.Background(), "vg_san", lv1Offset, lv1)
			require.ErrorContains(t, err, tt.text)
			assert.Equal(t, tt.kind, api.KindOf(err))
			require.ErrorIs(t, err, tt.err)
		})
	}

	f := runtest.New(t)
	for _, offset := range []int64{-1, 0} {
		_, err := at(f, 0).Holders(context.Background(), "vg_san", offset, lv1)
		require.ErrorContains(t, err, "it has no lease of its own")
		assert.Equal(t, api.KindLocking, api.KindOf(err))
	}
	_, err := at(f, 0).Holders(context.Background(), "vg_san", lv1Offset, "")
	require.Error(t, err)

	// Held, and nobody can say whether the holder lives.
	f.ExpectLine(dumpLine(lv1Offset)).Stdout(header + row(lv1Offset, lv1, 327, 2, 5))
	f.ExpectLine(hostStatusLine).Exit(1)
	_, err = at(f, 0).Holders(context.Background(), "vg_san", lv1Offset, lv1)
	require.ErrorContains(t, err, "cannot read whether the holders of volume "+lv1+" of vg_san live: sanlock failed")
	assert.Equal(t, api.KindLocking, api.KindOf(err))
}

func TestHoldersAll(t *testing.T) {
	f := runtest.New(t)
	hostsABC(f)
	f.ExpectLine("sanlock direct dump /dev/mapper/vg_san-lvmlock:70254592:4194304").Stdout(header +
		row(lv1Offset, lv1, 327, 2, 5) + row(baseOffset, base, 0, 0, 0) + row(topOffset, "#unused", 0, 0, 0) + row(73400320, "x", 1, 1, 5))
	all, err := at(f, 2000).HoldersAll(context.Background(), "vg_san", map[string]int64{
		lv1: lv1Offset, base: baseOffset, top: topOffset, hot: 73400320, "thin": -1,
	})
	require.NoError(t, err)
	assert.Equal(t, map[string][]model.Holder{
		lv1:  {{HostID: 2, Host: "kvm-b", Mode: model.ModeEX, Gen: 5, State: model.HostLive}},
		base: nil,
	}, all, "what was not found is unknown, not free")

	// What lies far away is read by itself, and not all that is in between.
	const far = topOffset + 1000<<20
	f.ExpectLine("sanlock direct dump /dev/mapper/vg_san-lvmlock:70254592:2097152").Stdout(header +
		row(lv1Offset, lv1, 327, 2, 5) + row(baseOffset, base, 0, 0, 0))
	f.ExpectLine(dumpLine(far)).Stdout(header + row(far, top, 327, 1, 5))
	all, err = at(f, 2000).HoldersAll(context.Background(), "vg_san", map[string]int64{top: far, lv1: lv1Offset, base: baseOffset})
	require.NoError(t, err)
	assert.Len(t, all, 3)
	assert.Equal(t, "kvm-a", all[top][0].Host)

	none, err := at(f, 2000).HoldersAll(context.Background(), "vg_san", map[string]int64{"thin": -1})
	require.NoError(t, err)
	assert.Empty(t, none)

	f.ExpectLine(dumpLine(lv1Offset)).Stdout(header + "broken\n")
	_, err = at(f, 2000).HoldersAll(context.Background(), "vg_san", map[string]int64{lv1: lv1Offset})
	require.ErrorContains(t, err, "cannot read the leases of vg_san")
}

// What this host has shared and nobody else has is told by the lease alone.
func TestSharers(t *testing.T) {
	ctx := context.Background()
	offsets := map[string]int64{lv1: lv1Offset, base: baseOffset}
	const line = "sanlock direct dump /dev/mapper/vg_san-lvmlock:70254592:2097152"
	free := row(baseOffset, base, 0, 1, 4)

	f := runtest.New(t) // and no other program
	f.ExpectLine(line).Stdout(header + row(lv1Offset, lv1, 0, 2, 4) + sh(1, 5) + free + sh(1, 5))
	mine := []model.Holder{{HostID: 1, Mode: model.ModeSH, Gen: 5, State: model.HostLive, Self: true}}
	holders, err := at(f, 2000).Sharers(ctx, "vg_san", offsets)
	require.NoError(t, err)
	assert.Equal(t, map[string][]model.Holder{lv1: mine, base: mine}, holders)

	f.ExpectLine(line).Stdout(header + row(lv1Offset, lv1, 0, 2, 4) + sh(1, 5))
	holders, err = at(f, 2000).Sharers(ctx, "vg_san", offsets)
	require.NoError(t, err)
	assert.Equal(t, map[string][]model.Holder{lv1: mine}, holders, "what was not found is unknown")

	for name, rows := range map[string]string{
		"another sharer":       row(lv1Offset, lv1, 0, 2, 4) + sh(1, 5) + sh(2, 5),
		"nobody":               row(lv1Offset, lv1, 0, 2, 4),
		"exclusive":            row(lv1Offset, lv1, 327, 1, 5),
		"converting":           row(lv1Offset, lv1, 327, 1, 5) + sh(1, 5),
		"owner beside sharers": row(lv1Offset, lv1, 327, 2, 5) + sh(1, 5),
	} {
		t.Run(name, func(t *testing.T) {
			f := runtest.New(t)
			hostsABC(f)
			f.ExpectLine(line).Always().Stdout(header + rows + free + sh(1, 5))
			r := at(f, 2000)
			holders, err := r.Sharers(ctx, "vg_san", offsets)
			require.NoError(t, err)
			all, err := r.HoldersAll(ctx, "vg_san", offsets)
			require.NoError(t, err)
			assert.Equal(t, all, holders)
		})
	}

	f = runtest.New(t)
	f.ExpectLine(line).Stdout(header + "broken\n")
	_, err = at(f, 2000).Sharers(ctx, "vg_san", offsets)
	require.ErrorContains(t, err, "cannot read the leases of vg_san")
}

func FuzzHolders(f *testing.F) {
	f.Add(header + row(lv1Offset, lv1, 327, 2, 5))
	f.Add(header + row(lv1Offset, lv1, 0, 1, 5) + sh(1, 5) + sh(2, 5))
	f.Fuzz(func(t *testing.T, dump string) {
		fake := runtest.New(t)
		fake.ExpectLine(dumpLine(lv1Offset)).Stdout(dump)
		hostsABC(fake)
		holders, err := at(fake, 2000).Holders(context.Background(), "vg_san", lv1Offset, lv1)
		if err != nil {
			require.Equal(t, api.KindLocking, api.KindOf(err))
			return
		}
		// An answer needs the volume's own lease.
		require.Contains(t, dump, lv1)
		for _, h := range holders {
			require.Positive(t, h.HostID)
		}
	})
}

var _ interface {
	Local(context.Context) (lease.Local, error)
	Holders(ctx context.Context, vg string, offset int64, lvUUID string) ([]model.Holder, error)
} = (*lease.Reader)(nil)

// counting counts what it runs, by the first two words.
type counting struct {
	run.Runner
	ran map[string]int
}

func (c counting) Run(ctx context.Context, cmd run.Cmd) (run.Result, error) {
	c.ran[strings.Join(cmd.Argv()[:2], " ")]++
	return c.Runner.Run(ctx, cmd)
}

// Who a holder is, is remembered; whether another host lives only for a while.
func TestHoldersKnown(t *testing.T) {
	tests := map[string]struct {
		capture string
		lease   string // of lv1, in place of the capture's
		later   time.Duration
		read    bool // the hosts are read anew
	}{
		"another host":                     {"live", "", time.Second, false},
		"another host, long ago":           {"live", "", 10 * time.Second, true},
		"this host, long ago":              {"live", row(lv1Offset, lv1, 0, 1, 1) + sh(1, 1), time.Hour, false},
		"this host in a newer generation":  {"live", row(lv1Offset, lv1, 0, 1, 2) + sh(1, 2), time.Second, true},
		"nobody":                           {"live", row(lv1Offset, lv1, 0, 2, 1), time.Hour, false},
		"an older generation of the other": {"live", row(lv1Offset, lv1, 1971, 2, 0), time.Second, true},
		"a host that is not known":         {"live", row(lv1Offset, lv1, 1971, 3, 1), time.Second, true},
		"a host that fails":                {"fail", "", time.Second, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := runtest.New(t)
			if tt.lease != "" {
				f.ExpectLine(dumpLine(lv1Offset)).Stdout(header + tt.lease).Always()
			}
			capture(t, f, tt.capture)
			now, ran := 1977*time.Second, map[string]int{}
			r := lease.New(counting{f, ran}, "/dev", func() time.Duration { return now })
			_, err := r.Hosts(context.Background(), "vg_san")
			require.NoError(t, err)
			all, err := r.HoldersAll(context.Background(), "vg_san", map[string]int64{lv1: lv1Offset})
			require.NoError(t, err)
			now += tt.later
			clear(ran)
			known, err := r.HoldersKnown(context.Background(), "vg_san", map[string]int64{lv1: lv1Offset}, 5*time.Second)
			require.NoError(t, err)
			if tt.later < time.Minute {
				for i := range known[lv1] {
					known[lv1][i].FreeIn, all[lv1][i].FreeIn = 0, 0
				}
			}
			assert.Equal(t, all, known)
			assert.Equal(t, 1, ran["sanlock direct"])
			assert.Equal(t, tt.read, ran["sanlock client"] > 0, "%v", ran)
		})
	}
}
