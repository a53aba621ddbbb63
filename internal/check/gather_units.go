package check

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"virtlvm/internal/run"
)

// unitNames are the units that are asked for.
func unitNames() []string {
	return append(bootUnits(), "wdmd.service", "libvirtd.service", "libvirtd.socket", "virtqemud.service", "virtqemud.socket")
}

func (s *Sources) gatherSystemd(ctx context.Context, f *Facts) {
	res, err := s.Runner.Run(ctx, run.Cmd{Name: "systemctl", Args: append(
		[]string{"show", "--no-pager", "--property=Id,LoadState,ActiveState,UnitFileState,After,ExecReload"}, unitNames()...,
	), Timeout: 20 * time.Second})
	var exit *run.ExitError
	if errors.As(err, &exit) && strings.TrimSpace(exit.Stderr) != "" {
		lines := strings.Split(strings.TrimSpace(exit.Stderr), "\n")
		err = errors.New(lines[0])
	}
	if err != nil {
		f.Units.Err = err
		return
	}
	f.Units.Value = parseUnits(string(res.Stdout))
}

// parseUnits reads `systemctl show`: "Key=value" lines, units apart by an empty line.
func parseUnits(out string) map[string]Unit {
	units := map[string]Unit{}
	for block := range strings.SplitSeq(out, "\n\n") {
		var u Unit
		for text := range strings.Lines(block) {
			key, value, _ := strings.Cut(strings.TrimSpace(text), "=")
			switch key {
			case "Id":
				u.Name = value
			case "LoadState":
				u.Loaded = value == "loaded" || value == "masked"
			case "ActiveState":
				u.Active = value
			case "UnitFileState":
				u.Enabled = value
			case "After":
				u.After = strings.Fields(value)
				slices.Sort(u.After)
			case "ExecReload":
				if at := reloadTime(value); at.After(u.Reloaded) {
					u.Reloaded = at
				}
			}
		}
		if u.Name != "" {
			units[u.Name] = u
		}
	}
	return units
}

// reloadTime reads "{ path=/bin/kill ; ... ; start_time=[Mon 2026-11-30 00:49:12 UTC] ; ... }",
// "[n/a]" where there was none. systemctl prints times in the zone of this host.
func reloadTime(s string) time.Time {
	_, rest, _ := strings.Cut(s, "start_time=[")
	text, _, _ := strings.Cut(rest, "]")
	at, err := time.ParseInLocation("Mon 2006-01-02 15:04:05 MST", text, time.Local)
	if err != nil {
		return time.Time{}
	}
	return at
}
