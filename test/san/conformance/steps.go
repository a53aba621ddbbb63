package conformance

import (
	"fmt"
	"strconv"
	"strings"
)

// step is one entry of steps.txt.
type step struct {
	line  int
	needs []string // features of its section
	kind  string   // "run", "quiet" (outcome not looked at), "open", "close"
	host  string
	cmd   string // or the volume to open
	want  Outcome
}

// parseSteps reads steps.txt; its first lines explain its form.
func parseSteps(text string) ([]step, error) {
	var steps []step
	var needs []string
	for i, l := range strings.Split(text, "\n") {
		n := i + 1
		host, cmd, isCmd := strings.Cut(l, "$ ")
		switch {
		case l == "" || strings.HasPrefix(l, "#"):
		case strings.HasPrefix(l, "=="):
			_, list, _ := strings.Cut(strings.Trim(l, "= "), " needs ")
			needs = strings.Fields(list)
		case strings.HasPrefix(l, "open ") || strings.HasPrefix(l, "close "):
			f := strings.Fields(l)
			if len(f) != 3 {
				return nil, fmt.Errorf("steps.txt:%d: %s HOST VG/LV", n, f[0])
			}
			steps = append(steps, step{line: n, needs: needs, kind: f[0], host: f[1], cmd: f[2]})
		case isCmd && !strings.ContainsAny(host, " |"):
			kind := "run"
			if quiet, ok := strings.CutPrefix(host, "~"); ok {
				kind, host = "quiet", quiet
			}
			steps = append(steps, step{line: n, needs: needs, kind: kind, host: host, cmd: cmd})
		default:
			if len(steps) == 0 || !steps[len(steps)-1].expect(l) {
				return nil, fmt.Errorf("steps.txt:%d: cannot read %q", n, l)
			}
		}
	}
	return steps, nil
}

// expect adds a line of the expected outcome.
func (s *step) expect(l string) bool {
	if s.kind != "run" {
		return false
	}
	code, isCode := strings.CutPrefix(l, "exit ")
	switch {
	case isCode:
		n, err := strconv.Atoi(code)
		s.want.Exit = n
		return err == nil
	case strings.HasPrefix(l, "1|"):
		s.want.Stdout = append(s.want.Stdout, l[2:])
	case strings.HasPrefix(l, "2|"):
		s.want.Stderr = append(s.want.Stderr, l[2:])
	default:
		return false
	}
	return true
}
