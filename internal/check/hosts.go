package check

import (
	"fmt"
	"strings"

	"virtlvm/internal/api"
)

// checkPeers: for a live migration the daemons of both hosts must reach each other.
func checkPeers(f *Facts) Result {
	if f.Peers.Err != nil && len(f.Peers.Value) == 0 {
		return skip("%s", f.Peers.Err)
	}
	var found findings
	var good, silent []string
	for _, p := range f.Peers.Value {
		switch v := p.Version; {
		case !p.Asked:
			silent = append(silent, p.Name)
		case p.Err != nil:
			found.fail("'virtlvm peer test "+p.Name+"'", "%s", p.Err)
		case v.ProtocolMajor != api.ProtocolMajor || v.ProtocolMinor != api.ProtocolMinor:
			found.warn("upgrade the older one", "%s speaks protocol %d.%d, this host %d.%d", p.Name, v.ProtocolMajor, v.ProtocolMinor, api.ProtocolMajor, api.ProtocolMinor)
		default:
			good = append(good, fmt.Sprintf("%s (%s)", p.Name, v.Version))
		}
	}
	switch {
	case f.Peers.Err != nil:
		found.warn("", "not all hosts are known: %s", f.Peers.Err)
	case len(f.Peers.Value) == 0 && f.Alone:
		return skip("virtlvmd does not run, which knows them")
	case len(f.Peers.Value) == 0:
		return skip("no other host is alive")
	case found.state == "" && len(good) == 0:
		return skip("%s not asked", join(silent, ", "))
	}
	return found.result("%s", join(good, ", "))
}

// Silent is the report of a host that did not answer.
func Silent(host string, err error) api.CheckReport {
	return api.CheckReport{Host: host, Results: []api.CheckResult{{
		ID: "hosts.answers", Group: groupHosts, Title: "that it answers", State: api.CheckFail,
		Detail: oneLine(err.Error()), Fix: "'virtlvm peer test " + host + "'",
	}}}
}

// Compare adds to the reports of several hosts what only shows between them.
func Compare(reports []api.CheckReport) {
	hosts := map[int][]string{}
	for _, r := range reports {
		if r.HostID > 0 {
			hosts[r.HostID] = append(hosts[r.HostID], r.Host)
		}
	}
	for _, r := range reports {
		if len(hosts[r.HostID]) < 2 {
			continue
		}
		for i := range r.Results {
			if line := &r.Results[i]; line.ID == "lvm.host_id_unique" {
				line.State = api.CheckFail
				line.Detail = fmt.Sprintf("%s have host_id %d", strings.Join(hosts[r.HostID], " and "), r.HostID)
				line.Fix = "give each host a host_id of its own in /etc/lvm/lvmlocal.conf"
			}
		}
	}
}
