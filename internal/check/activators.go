package check

import (
	"context"
	"io/fs"
	"regexp"
	"slices"
	"strings"
)

// Activator is a line of a script or a unit of this host's administrator that activates
// volume groups.
type Activator struct{ File, Line string }

// activates is a vgchange that activates, but for -aay, which pays attention to the
// autoactivation property.
var activates = regexp.MustCompile(`\bvgchange\b.*\s(?:-[b-zA-Z]*a|--activate)[ =]*[esl]?y\b`)

// gatherActivators reads what an administrator has made to run by itself; what comes with
// the distribution is below /usr.
func (s *Sources) gatherActivators(_ context.Context, f *Facts) {
	for _, pattern := range []string{
		"etc/systemd/system/*.service", "etc/systemd/system/*.service.d/*.conf", "etc/rc.local", "etc/rc.d/rc.local", "etc/crontab", "etc/cron.d/*",
	} {
		files, err := fs.Glob(s.Root, pattern)
		if err != nil {
			continue // only a bad pattern
		}
		for _, file := range files {
			info, err := fs.Stat(s.Root, file)
			const most = 1 << 20
			if err != nil || !info.Mode().IsRegular() || info.Size() > most {
				continue
			}
			data, err := fs.ReadFile(s.Root, file)
			if err != nil {
				continue
			}
			for text := range strings.Lines(string(data)) {
				text = strings.TrimSpace(text)
				if !strings.HasPrefix(text, "#") && activates.MatchString(text) {
					f.Activators = append(f.Activators, Activator{"/" + file, text})
				}
			}
		}
	}
}

// checkActivators looks for what activates a managed VG as a whole, or all VGs.
func checkActivators(f *Facts) Result {
	if none, ok := f.needVGs(); !ok {
		return none
	}
	var found findings
	for _, a := range f.Activators {
		words := strings.FieldsFunc(a.Line, func(r rune) bool { return strings.ContainsRune(" \t\"';&|", r) })
		others, ours := false, false
		for _, c := range f.VGs.Value {
			if slices.Contains(words, c.VG.Name) {
				ours, others = ours || c.Managed, others || !c.Managed
			}
		}
		if ours || !others {
			found.warn("take it out, or name other volume groups", "%s activates every free volume here ('%s'), so that guests elsewhere do not start", a.File, a.Line)
		}
	}
	return found.result("")
}
