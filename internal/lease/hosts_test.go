package lease_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/internal/lease"
	"virtlvm/internal/model"
	"virtlvm/internal/run/runtest"
)

const (
	hostStatusLine = "sanlock client host_status -D"
	getsLine       = "sanlock client gets -h 1"
)

func TestHostsOfCaptures(t *testing.T) {
	a := lease.Host{ID: 1, Name: "kvm-a", Gen: 1, State: model.HostLive, IOTimeout: 2, Self: true}
	b := lease.Host{ID: 2, Name: "kvm-b", Gen: 1, State: model.HostLive, IOTimeout: 2}
	seen := func(h lease.Host, lastLive int, state model.HostState, freeIn int) lease.Host {
		h.LastLive, h.State, h.FreeIn = lastLive, state, freeIn
		return h
	}
	b2 := b
	b2.Gen = 2
	tests := map[string]struct {
		now  int
		want []lease.Host
	}{
		"live":     {1977, []lease.Host{seen(a, 1973, model.HostLive, 0), seen(b, 1973, model.HostLive, 0)}},
		"killed":   {1982, []lease.Host{seen(a, 1982, model.HostLive, 0), seen(b, 1978, model.HostLive, 0)}},
		"silent":   {1994, []lease.Host{seen(a, 1991, model.HostLive, 0), seen(b, 1978, model.HostFail, 1978+76-1994)}},
		"fail":     {2015, []lease.Host{seen(a, 2014, model.HostLive, 0), seen(b, 1978, model.HostFail, 1978+76-2015)}},
		"dead":     {2085, []lease.Host{seen(a, 2080, model.HostLive, 0), seen(b, 1978, model.HostDead, 0)}},
		"rejoined": {2111, []lease.Host{seen(a, 2108, model.HostLive, 0), seen(b2, 2108, model.HostLive, 0)}},
		"left":     {2122, []lease.Host{seen(a, 2122, model.HostLive, 0), seen(b2, 2117, model.HostDead, 0)}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := runtest.New(t)
			capture(t, f, name)
			hosts, err := at(f, tt.now).Hosts(context.Background(), "vg_san")
			require.NoError(t, err)
			want := map[int]lease.Host{}
			for _, h := range tt.want {
				want[h.ID] = h
			}
			assert.Equal(t, want, hosts)
			assert.Equal(t, []string{hostStatusLine, getsLine}, f.Calls(), "the disk is not read for nothing")
		})
	}
}

func TestHostsRunning(t *testing.T) {
	f := runtest.New(t)
	capture(t, f, "running")
	hosts, err := at(f, 440).Hosts(context.Background(), "vg_san")
	require.NoError(t, err)
	assert.Equal(t, map[int]lease.Host{
		1: {ID: 1, Name: "kvm-a", Gen: 1, State: model.HostLive, LastLive: 437, IOTimeout: 2},
		2: {ID: 2, Name: "kvm-b", Gen: 1, State: model.HostLive, LastLive: 437, IOTimeout: 2, Self: true},
	}, hosts)
}

func TestHostsNotReady(t *testing.T) {
	f := runtest.New(t)
	capture(t, f, "notready")
	hosts, err := at(f, 1977).Hosts(context.Background(), "vg_san")
	require.NoError(t, err)
	assert.Equal(t, map[int]lease.Host{
		1: {ID: 1, Name: "kvm-a", Gen: 1, State: model.HostLive, IOTimeout: 10, Self: true},
		2: {ID: 2, Name: "kvm-b", Gen: 1, State: model.HostUnknown, IOTimeout: 10},
	}, hosts)
}

// table is a host in host_status -D.
func table(id, gen, timestamp, lastCheck, lastLive, ioTimeout, name string) string {
	return id + " timestamp " + timestamp + "\n    last_check=" + lastCheck + "\n    last_live=" + lastLive +
		"\n    last_req=0\n    owner_id=" + id + "\n    owner_generation=" + gen + "\n    timestamp=" + timestamp +
		"\n    io_timeout=" + ioTimeout + "\n    owner_name=" + name + "\n"
}

func TestHostsMixed(t *testing.T) {
	const odd = "0a7fdc5e-8c7f-4cbb-9b8a-2b1c4e0e6a51.kvm-host-01"
	const now = 2000
	self := table("1", "1", "1990", "1995", "1995", "10", "kvm-a")
	selfGets := "h 1 gen 1 timestamp 1990 LIVE\n"
	tests := map[string]struct {
		table, gets string
		disk        string // delta leases; "": not read
		want        lease.Host
	}{
		"sanlock's default name is kept": {
			table: table("2", "1", "1990", "1995", "1995", "10", odd), gets: "h 2 gen 1 timestamp 1990 LIVE\n",
			want: lease.Host{Name: odd, Gen: 1, State: model.HostLive, LastLive: 1995, IOTimeout: 10},
		},
		"one renewal missed": {
			table: table("2", "1", "1970", "1995", "1975", "10", "b"), gets: "h 2 gen 1 timestamp 1970 LIVE\n",
			want: lease.Host{Name: "b", Gen: 1, State: model.HostLive, LastLive: 1975, IOTimeout: 10},
		},
		"two renewals missed": {
			table: table("2", "1", "1950", "1995", "1955", "10", "b"), gets: "h 2 gen 1 timestamp 1950 LIVE\n",
			want: lease.Host{Name: "b", Gen: 1, State: model.HostFail, LastLive: 1955, IOTimeout: 10, FreeIn: 1955 + 140 - now},
		},
		"long overdue and still failing": {
			table: table("2", "1", "1000", "1995", "1001", "2", "b"), gets: "h 2 gen 1 timestamp 1000 FAIL\n",
			want: lease.Host{Name: "b", Gen: 1, State: model.HostFail, LastLive: 1001, IOTimeout: 2, FreeIn: 1},
		},
		"failing and never seen alive": {
			table: table("2", "1", "1000", "1995", "0", "2", "b"), gets: "h 2 gen 1 timestamp 1000 FAIL\n",
			want: lease.Host{Name: "b", Gen: 1, State: model.HostFail, IOTimeout: 2},
		},
		"not seen long enough": {
			table: table("2", "1", "900", "1995", "1995", "10", "b"), gets: "h 2 gen 1 timestamp 900 UNKNOWN\n",
			want: lease.Host{Name: "b", Gen: 1, State: model.HostUnknown, LastLive: 1995, IOTimeout: 10},
		},
		"a state to come": {
			table: table("2", "1", "900", "1995", "1995", "10", "b"), gets: "h 2 gen 1 timestamp 900 DOZING\n",
			want: lease.Host{Name: "b", Gen: 1, State: model.HostUnknown, LastLive: 1995, IOTimeout: 10},
		},
		"old sanlock without io_timeout": {
			table: table("2", "1", "1900", "1995", "1900", "0", "b"), gets: "h 2 gen 1 timestamp 1900 FAIL\n",
			want: lease.Host{Name: "b", Gen: 1, State: model.HostFail, LastLive: 1900, IOTimeout: 10, FreeIn: 40},
		},
		"joined between the two answers": {
			table: table("2", "1", "1900", "1995", "1900", "10", "b"), gets: "h 2 gen 2 timestamp 1996 LIVE\n",
			want: lease.Host{Name: "b", Gen: 2, State: model.HostLive, LastLive: 1900, IOTimeout: 10},
		},
		"joined before the older answer": {
			table: table("2", "3", "1990", "1995", "1995", "10", "b"), gets: "h 2 gen 2 timestamp 900 DEAD\n",
			want: lease.Host{Name: "b", Gen: 3, State: model.HostUnknown, LastLive: 1995, IOTimeout: 10},
		},
		"only in the second answer": {
			gets: "h 2 gen 1 timestamp 1996 LIVE\n", disk: "00000512 lvm_vg_san b 0000001996 0002 0001\n",
			want: lease.Host{Name: "b", Gen: 1, State: model.HostLive, IOTimeout: 10},
		},
		"only on the disk": {
			table: table("3", "1", "1990", "1995", "1995", "10", ""), gets: "h 3 gen 1 timestamp 1990 LIVE\n",
			disk: "00000512 lvm_vg_san b 0000001996 0002 0004\n00001024 lvm_vg_san c 0000001996 0003 0001\n",
			want: lease.Host{Name: "b", Gen: 4, State: model.HostUnknown, IOTimeout: 10},
		},
		"newer and gone on the disk": {
			table: table("2", "1", "1990", "1995", "1995", "10", ""), gets: "h 2 gen 1 timestamp 1990 LIVE\n",
			disk: "00000512 lvm_vg_san b 0000000000 0002 0002\n",
			want: lease.Host{Name: "b", Gen: 2, State: model.HostDead, IOTimeout: 10},
		},
		"name missing and disk unclear": {
			table: table("2", "1", "1990", "1995", "1995", "10", ""), gets: "h 2 gen 1 timestamp 1990 LIVE\n", disk: "garbage\n",
			want: lease.Host{Gen: 1, State: model.HostLive, LastLive: 1995, IOTimeout: 10},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := runtest.New(t)
			f.ExpectLine(hostStatusLine).Stdout("lockspace lvm_other\n" + table("2", "9", "1", "1", "1", "1", "x") + "lockspace lvm_vg_san\n" + self + tt.table)
			f.ExpectLine(getsLine).Stdout("s lvm_other:7:/dev/mapper/other-lvmlock:0 \nh 2 gen 9 timestamp 1 DEAD\ns lvm_vg_san:1:/dev/mapper/vg_san-lvmlock:0 \n" + selfGets + tt.gets)
			if tt.disk != "" {
				f.ExpectLine(dumpLine(0)).Stdout(header + tt.disk)
			}
			hosts, err := at(f, now).Hosts(context.Background(), "vg_san")
			require.NoError(t, err)
			tt.want.ID = 2
			assert.Equal(t, tt.want, hosts[2])
			assert.True(t, hosts[1].Self)
		})
	}
}

func TestHostsUnclear(t *testing.T) {
	good := "lockspace lvm_vg_san\n" + table("1", "1", "1990", "1995", "1995", "10", "kvm-a")
	goodGets := "s lvm_vg_san:1:/dev/mapper/vg_san-lvmlock:0 \nh 1 gen 1 timestamp 1990 LIVE\n"
	tests := map[string]struct{ table, gets, text string }{
		"no lockspace":            {"", "", "its lockspace is not started on this host; run 'vgchange --lockstart vg_san'"},
		"other lockspaces":        {"lockspace lvm_x\n", "", "its lockspace is not started"},
		"gone for the second":     {good, "s lvm_x:1:/dev/x:0 \n", "its lockspace is not started"},
		"garbage":                 {"lockspace lvm_vg_san\nwhat is this\n", "", `cannot understand the answer of sanlock client host_status: "what is this"`},
		"garbage id":              {"lockspace lvm_vg_san\nx timestamp 4\n", "", "host_status"},
		"host 0":                  {"lockspace lvm_vg_san\n0 timestamp 4\n", "", "host_status"},
		"negative generation":     {strings.ReplaceAll(good, "owner_generation=1", "owner_generation=-1"), "", "host_status"},
		"field without a host":    {"lockspace lvm_vg_san\n    last_check=1\n", "", "host_status"},
		"gets without an id":      {good, "s lvm_vg_san\n", "cannot understand the answer of sanlock client gets"},
		"gets with garbage":       {good, goodGets + "h 2 gen ? timestamp 4 LIVE\n", "gets"},
		"gets with a short row":   {good, goodGets + "h 2 gen 1\n", "gets"},
		"gets with a strange row": {good, goodGets + "z\n", "gets"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := runtest.New(t)
			f.ExpectLine(hostStatusLine).Stdout(tt.table)
			if tt.gets != "" {
				f.ExpectLine(getsLine).Stdout(tt.gets)
			}
			_, err := at(f, 2000).Hosts(context.Background(), "vg_san")
			require.ErrorContains(t, err, "cannot read the hosts of volume group vg_san: ")
			require.ErrorContains(t, err, tt.text)
			assert.Equal(t, api.KindLocking, api.KindOf(err))
		})
	}
}

func TestHostsSanlockDown(t *testing.T) {
	f := runtest.New(t)
	f.ExpectLine(hostStatusLine).Exit(1)
	_, err := at(f, 0).Hosts(context.Background(), "vg_san")
	require.EqualError(t, err, "cannot read the hosts of volume group vg_san: sanlock failed with exit code 1: no answer: does its daemon run?")
	assert.Equal(t, api.KindLocking, api.KindOf(err))

	f.ExpectLine(hostStatusLine).Stdout("lockspace lvm_vg_san\n")
	f.ExpectLine(getsLine).Stdout("gets error -2\n").Exit(1)
	_, err = at(f, 0).Hosts(context.Background(), "vg_san")
	require.ErrorContains(t, err, "sanlock failed with exit code 1: gets error -2")

	// Not ready, and the disk cannot be read either: nothing is known of anybody.
	f.ExpectLine(hostStatusLine).Stdout("lockspace lvm_vg_san\n")
	f.ExpectLine(getsLine).Stdout("s lvm_vg_san:1:/dev/mapper/vg_san-lvmlock:0 \nhosts not ready\n")
	f.ExpectLine(dumpLine(0)).Stdout("Device /dev/mapper/vg_san-lvmlock not found.\n").Exit(1)
	_, err = at(f, 0).Hosts(context.Background(), "vg_san")
	require.ErrorContains(t, err, "Device /dev/mapper/vg_san-lvmlock not found.")
}
