package san

import (
	"os"
)

// TB is the part of testing.TB that New needs.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
	Cleanup(func())
}

// New makes a SAN for a test and removes it at the test's end. It lies in memory where it
// can: the many small files of an activation are slow on a disk.
func New(tb TB, o Options) *SAN {
	tb.Helper()
	parent := ""
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		parent = "/dev/shm"
	}
	dir, err := os.MkdirTemp(parent, "virtlvm-san-")
	if err != nil && parent != "" {
		dir, err = os.MkdirTemp("", "virtlvm-san-")
	}
	if err != nil {
		tb.Fatalf("cannot make a folder for a SAN: %v", err)
	}
	s, err := Create(dir, o)
	if err != nil {
		_ = os.RemoveAll(dir)
		tb.Fatalf("%v", err)
	}
	tb.Cleanup(func() {
		_ = s.Close()
		_ = os.RemoveAll(dir)
	})
	return s
}
