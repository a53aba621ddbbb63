// Package check judges whether this host is set up right, line by line as
// virt-host-validate(1) prints it, and says what to do where it is not.
//
// Facts are gathered once, by Gather, through what it is given; a check only judges them
// (see All). What cannot be decided is never a PASS: it is a SKIP where its cause is the
// FAIL of another line or it does not apply, else a WARN.
package check

import (
	"fmt"
	"slices"
	"strings"

	"virtlvm/internal/activation"
	"virtlvm/internal/api"
)

// Check is one line.
type Check struct {
	ID    string // "GROUP.NAME", stable
	Group string // as it is printed before the title
	Title string // what follows "Checking"
	// Means and Fix are for docs/check.md: what is looked at and why it matters, and what to
	// do about it.
	Means, Fix string
	judge      func(*Facts) Result
}

// Result is what a check found.
type Result struct {
	State   string // api.CheckPass, ...
	Detail  string // one line
	Fix     string // one line
	Repairs []Repair
}

// Repair is a safe command that puts right what a check found. Key tells it from others of
// the same check, such as the name of the VG.
type Repair struct {
	Key string
	activation.Repair
}

// Run judges facts with every check.
func Run(f *Facts) []api.CheckResult {
	var all []api.CheckResult
	for _, c := range All() {
		r := c.judge(f)
		line := api.CheckResult{ID: c.ID, Group: c.Group, Title: c.Title, State: r.State, Detail: r.Detail, Fix: r.Fix}
		for _, repair := range r.Repairs {
			line.Repairs = append(line.Repairs, api.Repair{ID: c.repairID(repair), Argv: repair.Cmd.Argv()})
		}
		all = append(all, line)
	}
	return all
}

// find is the repair of that id, if facts still ask for it.
func find(f *Facts, id string) (Repair, bool) {
	for _, c := range All() {
		if !strings.HasPrefix(id, c.ID+":") {
			continue
		}
		for _, r := range c.judge(f).Repairs {
			if c.repairID(r) == id {
				return r, true
			}
		}
	}
	return Repair{}, false
}

func (c Check) repairID(r Repair) string { return c.ID + ":" + r.Key }

func pass(format string, args ...any) Result {
	return Result{State: api.CheckPass, Detail: oneLine(fmt.Sprintf(format, args...))}
}

func skip(format string, args ...any) Result {
	return Result{State: api.CheckSkip, Detail: oneLine(fmt.Sprintf(format, args...))}
}

// unknown is a result for what could not be found out and no other line is about.
func unknown(err error) Result {
	return Result{State: api.CheckWarn, Detail: "cannot be told: " + oneLine(err.Error())}
}

// findings collects what a check finds of several things, such as volume groups; the worst
// decides.
type findings struct {
	state   string
	details []string
	fixes   []string
	repairs []Repair
}

func (f *findings) warn(fix, format string, args ...any) {
	if f.state == "" {
		f.state = api.CheckWarn
	}
	f.add(fix, format, args...)
}

func (f *findings) fail(fix, format string, args ...any) {
	f.state = api.CheckFail
	f.add(fix, format, args...)
}

func (f *findings) add(fix, format string, args ...any) {
	f.details = append(f.details, oneLine(fmt.Sprintf(format, args...)))
	if fix != "" && !slices.Contains(f.fixes, fix) {
		f.fixes = append(f.fixes, fix)
	}
}

func (f *findings) repair(r Repair) { f.repairs = append(f.repairs, r) }

// result is the outcome; format is the detail where nothing was found.
func (f *findings) result(format string, args ...any) Result {
	if f.state == "" {
		return pass(format, args...)
	}
	return Result{State: f.state, Detail: join(f.details, "; "), Fix: join(f.fixes, "; "), Repairs: f.repairs}
}

// join joins the first few of many.
func join(items []string, separator string) string {
	const most = 6
	if len(items) > most {
		return strings.Join(items[:most], separator) + fmt.Sprintf("%sand %d more", separator, len(items)-most)
	}
	return strings.Join(items, separator)
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
