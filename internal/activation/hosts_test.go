package activation

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/lease"
	"virtlvm/internal/model"
)

func TestHostsThatCannotBeToldApart(t *testing.T) {
	type hosts = map[int]lease.Host
	host := func(id int, name string, state model.HostState) lease.Host {
		return lease.Host{ID: id, Name: name, State: state}
	}
	self := lease.Host{ID: 1, Name: "kvm-a", State: model.HostLive, Self: true}
	live, dead := model.HostLive, model.HostDead
	for name, tt := range map[string]struct {
		in   map[string]hosts
		want string
	}{
		"none":                  {nil, ""},
		"as it should be":       {map[string]hosts{"vg": {1: self, 2: host(2, "kvm-b", live)}, "vg2": {1: self, 2: host(2, "kvm-b", live)}}, ""},
		"name of a dead host":   {map[string]hosts{"vg": {1: self, 2: host(2, "kvm-b", dead), 3: host(3, "kvm-b", live)}}, ""},
		"two names not known":   {map[string]hosts{"vg": {1: self, 2: host(2, "", live), 3: host(3, "", live)}}, ""},
		"name of another host":  {map[string]hosts{"vg": {1: self, 2: host(2, "kvm-b", live), 3: host(3, "kvm-b", live)}}, "two hosts have the name kvm-b (host_id 2 and 3): set our_host_name"},
		"name of this host":     {map[string]hosts{"vg": {1: self, 2: host(2, "kvm-a", live)}}, "two hosts have the name kvm-a (host_id 1 and 2): "},
		"host_id in two spaces": {map[string]hosts{"vg": {1: self, 2: host(2, "kvm-b", live)}, "vg2": {1: self, 2: host(2, "kvm-c", live)}}, "host_id 2 is kvm-b in one lockspace and kvm-c in another (vg2): "},
		"another own name":      {map[string]hosts{"vg": {1: {ID: 1, Name: "kvm-z", State: live, Self: true}}}, "this host is kvm-a to virtlvm and kvm-z to sanlock (host_id 1)"},
		"sanlock's default":     {map[string]hosts{"vg": {1: {ID: 1, Name: "f0d4e1a2-0b1c-4d2e-8f3a-5b6c7d8e9f00.kvm-a", State: live, Self: true}}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := confused(tt.in, "kvm-a")
			if tt.want == "" {
				require.NoError(t, err)
				return
			}
			require.Error(t, err)
			assert.Contains(t, err.Error(), tt.want)
		})
	}
}
