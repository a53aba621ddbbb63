package san

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// FaultKind is what goes wrong.
type FaultKind string

// Faults. Those of lvmlockd, sanlock and whole hosts are methods of Host.
const (
	// FaultHang stops the program for Fault.For, or until the fault is cleared; before
	// it does anything, or with After set when all is done and nothing yet printed.
	FaultHang FaultKind = "hang"
	// FaultExit ends the program with ExitCode and Stderr, doing nothing. With Volume
	// set only that volume of an lvchange fails, the others are changed.
	FaultExit FaultKind = "exit"
	// FaultGarbage prints Stdout, or half a JSON report, in place of the real answer.
	FaultGarbage FaultKind = "garbage"
	// FaultWarnings prints Stdout, or a usual warning, before the real answer.
	FaultWarnings FaultKind = "warnings"
	// FaultMissing: the program is not installed.
	FaultMissing FaultKind = "missing"
	// FaultUnlock: -an removes the device, keeps the lock and still exits 0.
	FaultUnlock FaultKind = "unlock"
	// FaultActivate: the lock is taken, then the device cannot be made.
	FaultActivate FaultKind = "activate"
	// FaultGlobalLock: another host keeps the global lock; reports of all VGs fail.
	FaultGlobalLock FaultKind = "global lock"
)

// FaultKinds are all kinds.
func FaultKinds() []FaultKind {
	return []FaultKind{FaultHang, FaultExit, FaultGarbage, FaultWarnings, FaultMissing, FaultUnlock, FaultActivate, FaultGlobalLock}
}

// Fault makes the calls that match it go wrong. An empty Host, Tool, Match or Volume
// matches all.
type Fault struct {
	ID     int // set by AddFault
	Kind   FaultKind
	Host   string
	Tool   string // "lvchange", "lvs", ...
	Match  string // words of the command line, as in "-aey"
	Volume string // "vg/lv" among the arguments
	// Nth is the only matching call that it hits, counted from 1; 0: all.
	Nth int
	// Times is how many calls it hits before it is used up; 0: no limit.
	Times    int
	For      time.Duration // FaultHang; 0: until cleared
	After    bool          // FaultHang
	Stuck    bool          // FaultHang: SIGTERM does not end it
	ExitCode int           // FaultExit; 0 means 5
	Stderr   string        // FaultExit
	Stdout   string        // FaultGarbage, FaultWarnings

	Matched, Hit int // calls so far; set by the SAN
}

// AddFault arms a fault and returns its id.
func (s *SAN) AddFault(f Fault) (int, error) {
	if !slices.Contains(FaultKinds(), f.Kind) {
		return 0, fmt.Errorf("no fault of kind %q", f.Kind)
	}
	err := s.update(func(st *state) error {
		st.NextFault++
		f.ID, f.Matched, f.Hit = st.NextFault, 0, 0
		st.Faults = append(st.Faults, &f)
		return nil
	})
	return f.ID, err
}

// ClearFaults disarms the faults with these ids, or all; what hangs in them goes on.
func (s *SAN) ClearFaults(ids ...int) error {
	return s.update(func(st *state) error {
		st.Faults = slices.DeleteFunc(st.Faults, func(f *Fault) bool {
			return len(ids) == 0 || slices.Contains(ids, f.ID)
		})
		return nil
	})
}

// Faults are the armed faults with their counts.
func (s *SAN) Faults() ([]Fault, error) {
	var out []Fault
	err := s.view(func(st *state) error {
		for _, f := range st.Faults {
			out = append(out, *f)
		}
		return nil
	})
	return out, err
}

func (f *Fault) matches(host string, argv []string) bool {
	if f.Host != "" && f.Host != host || f.Tool != "" && f.Tool != argv[0] {
		return false
	}
	line := " " + strings.Join(argv[1:], " ") + " "
	if f.Match != "" && !strings.Contains(line, " "+f.Match+" ") {
		return false
	}
	return f.Volume == "" || strings.Contains(line, " "+f.Volume+" ")
}

// hits counts a call for the faults that it matches, and returns those that it meets.
func (s *SAN) hits(host string, argv []string) ([]Fault, error) {
	var out []Fault
	err := s.update(func(st *state) error {
		for _, f := range st.Faults {
			if !f.matches(host, argv) {
				continue
			}
			f.Matched++
			if f.Nth != 0 && f.Matched != f.Nth || f.Times != 0 && f.Hit >= f.Times {
				continue
			}
			f.Hit++
			out = append(out, *f)
		}
		return nil
	})
	return out, err
}

// armed reports whether a fault is still there.
func (s *SAN) armed(id int) bool {
	found := false
	_ = s.view(func(st *state) error {
		found = slices.ContainsFunc(st.Faults, func(f *Fault) bool { return f.ID == id })
		return nil
	})
	return found
}
