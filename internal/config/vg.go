package config

import (
	"errors"
	"maps"
	"slices"

	"virtlvm/internal/api"
)

// vgSection holds a section for each volume group of which something is said.
const vgSection = "vg"

// volumeGroups reads the sections [vg.NAME].
func (p *parser) volumeGroups(value any) {
	table, ok := value.(map[string]any)
	if !ok {
		p.report(vgSection, "vg must hold sections: write [vg.NAME] on a line of its own")
		return
	}
	for _, name := range slices.Sorted(maps.Keys(table)) {
		at := vgSection + "." + name
		if err := vgName(name); err != nil {
			p.report(at, "%s: %v", at, err)
			continue
		}
		section, ok := table[name].(map[string]any)
		if !ok {
			p.report(at, "%s must be a section: write [%s] on a line of its own", at, at)
			continue
		}
		p.volumeGroup(name, section)
	}
}

func (p *parser) volumeGroup(name string, section map[string]any) {
	var vg VG
	for _, key := range slices.Sorted(maps.Keys(section)) {
		at := vgSection + "." + name + "." + key
		var err error
		switch value := section[key]; key {
		case "unsafe_claims":
			on, ok := value.(bool)
			if !ok {
				err = errors.New("must be true or false")
			}
			vg.UnsafeClaims = on
		case "members":
			var c Config
			err = list(func(*Config) *[]string { return &vg.Members }, api.CheckHostName)(&c, value)
			slices.Sort(vg.Members)
		default:
			p.report(at, "unknown key %q in [%s.%s]; known: unsafe_claims, members", key, vgSection, name)
			continue
		}
		var element *elementError
		if errors.As(err, &element) {
			p.report(at+element.at, "%s: %v", at, element.err)
		} else if err != nil {
			p.report(at, "%s: %v", at, err)
		}
	}
	p.cfg.VGs[name] = vg
}

// claimConflicts finds volume groups whose volumes could not be claimed.
func (p *parser) claimConflicts() {
	for _, name := range slices.Sorted(maps.Keys(p.cfg.VGs)) {
		vg, at := p.cfg.VGs[name], vgSection+"."+name
		switch {
		case !vg.UnsafeClaims:
		case len(vg.Members) < 2:
			p.report(at+".unsafe_claims", "%s: name all hosts that see %s in members, this one included (%d are named)", at, name, len(vg.Members))
		case !p.cfg.Scope.Includes(name):
			p.report(at+".unsafe_claims", "%s: %s is not in [scope], so that nothing of it would be claimed; correct one of the two", at, name)
		}
	}
}
