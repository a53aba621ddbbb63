package cli

import (
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"virtlvm/internal/api"
)

func TestReorder(t *testing.T) {
	for name, tt := range map[string]struct{ in, want []string }{
		"nothing":                   {nil, nil},
		"global after argument":     {[]string{"volumes", "vg", "--json"}, []string{"--json", "volumes", "vg"}},
		"global with a value":       {[]string{"volumes", "--socket", "/s", "vg"}, []string{"--socket", "/s", "volumes", "vg"}},
		"global with equals":        {[]string{"volumes", "vg", "--timeout=5s"}, []string{"--timeout=5s", "volumes", "vg"}},
		"one dash":                  {[]string{"volumes", "vg", "-json"}, []string{"-json", "volumes", "vg"}},
		"own flag after argument":   {[]string{"activate", "vg/lv", "--shared"}, []string{"activate", "--shared", "vg/lv"}},
		"own flag with a value":     {[]string{"hooks", "--guest", "-x", "--json"}, []string{"--json", "hooks", "--guest", "-x"}},
		"value is missing":          {[]string{"hooks", "--guest"}, []string{"hooks", "--guest"}},
		"subcommand":                {[]string{"config", "--json", "check", "f"}, []string{"--json", "config", "check", "f"}},
		"argument named as command": {[]string{"volumes", "status"}, []string{"volumes", "status"}},
		"unknown command":           {[]string{"frob", "status", "--json"}, []string{"--json", "frob", "status"}},
		"unknown flag":              {[]string{"volumes", "vg", "--frob"}, []string{"volumes", "--frob", "vg"}},
		"help":                      {[]string{"volumes", "vg", "-h"}, []string{"volumes", "-h", "vg"}},
		"end of options":            {[]string{"config", "check", "--", "--json"}, []string{"config", "check", "--", "--json"}},
		"a dash is an argument":     {[]string{"config", "check", "-"}, []string{"config", "check", "-"}},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tt.want, reorder((&program{}).app(io.Discard), tt.in))
		})
	}
}

func TestHowAMigrationWent(t *testing.T) {
	side := func(state string, steps ...string) api.HandoffSide {
		s := api.HandoffSide{State: state}
		for _, step := range steps {
			s.Steps = append(s.Steps, api.HandoffStep{Step: step})
		}
		return s
	}
	for want, m := range map[string]api.Migration{
		"under way":                           {Source: side(api.HandoffUnderWay), Destination: side(api.HandoffUnknown)},
		"done":                                {Source: side(api.HandoffUnknown), Destination: side("exclusive", "switched", "exclusive")},
		"done, and the guest has ended since": {Source: side("released", "gone", "released"), Destination: side("released", "taken", "switched", "released")},
		"over, the guest has ended on both hosts": {Source: side("released", "gone", "released"), Destination: side("released", "taken", "failed", "released")},
		"failed, the source has its volumes back": {Source: side("exclusive", "taken back", "exclusive"), Destination: side("released", "taken", "failed", "released")},
		"failed":                         {Source: side(api.HandoffUnknown), Destination: side("released", "taken", "failed", "released")},
		"refused, nothing was changed":   {Source: side("refused", "refused"), Destination: side("refused", "refused")},
		"only the definition was copied": {Source: side("nothing lent"), Destination: side("nothing lent")},
		"its end is not known here":      {Source: side("released", "gone", "released"), Destination: side(api.HandoffUnknown)},
	} {
		assert.Equal(t, want, howItWent(m))
	}
}

func TestCell(t *testing.T) {
	for in, want := range map[string]string{
		"":                "-",
		"vm1":             "vm1",
		"a b":             "a b",
		"ü 机器":            "ü 机器",
		"a\tb":            `"a\tb"`,
		"vm\n1":           `"vm\n1"`,
		"\x1b[31mred":     `"\x1b[31mred"`,
		"\u202egnp":       `"\u202egnp"`,
		"\xff":            `"\xff"`,
		"no \"quotes\" ↑": `no "quotes" ↑`,
	} {
		assert.Equal(t, want, cell(in))
	}
}

func TestTook(t *testing.T) {
	for in, want := range map[time.Duration]string{
		0: "", -time.Second: "", time.Microsecond: "<1ms", 12400 * time.Microsecond: "12ms", 3449 * time.Millisecond: "3.4s",
		59999 * time.Millisecond: "1m", 125400 * time.Millisecond: "2m5s", 2 * time.Hour: "2h",
	} {
		assert.Equal(t, want, took(in), in.String())
	}
}

func TestSize(t *testing.T) {
	for in, want := range map[int64]string{
		0: "0 B", 1023: "1023 B", 1024: "1.00 KiB", 20 << 30: "20.00 GiB", 3 << 39: "1.50 TiB", 1<<63 - 1: "8.00 EiB",
	} {
		assert.Equal(t, want, size(in))
	}
}

func TestStampIsLocal(t *testing.T) {
	old := time.Local
	time.Local = time.FixedZone("here", 2*3600)
	t.Cleanup(func() { time.Local = old })
	assert.Equal(t, "2026-01-02 05:04:05", stamp(time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)))
	assert.Empty(t, stamp(time.Time{}))
}

func TestNeedsAttention(t *testing.T) {
	good := api.Status{Ready: true, Database: "ok", Lockd: "ok", VGs: []api.VG{{Name: "vg"}}}
	assert.False(t, needsAttention(good))
	for name, spoil := range map[string]func(*api.Status){
		"break glass":  func(s *api.Status) { s.BreakGlass = true },
		"not ready":    func(s *api.Status) { s.Ready = false },
		"database":     func(s *api.Status) { s.Database = "corrupt" },
		"locks":        func(s *api.Status) { s.Lockd = "lvmlockd is not running" },
		"pending":      func(s *api.Status) { s.Pending = []api.Unwanted{{}} },
		"problem":      func(s *api.Status) { s.Problems = []string{"x"} },
		"broken spool": func(s *api.Status) { s.Spool.Broken = 1 },
		"stuck group":  func(s *api.Status) { s.VGs = []api.VG{{Stuck: "lvchange"}} },
	} {
		t.Run(name, func(t *testing.T) {
			s := good
			spoil(&s)
			assert.True(t, needsAttention(s))
		})
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestOutputThatCannotBeWritten(t *testing.T) {
	var stderr stringWriter
	assert.Equal(t, api.ExitError, Main([]string{"virtlvm", "--help"}, fullDisk{}, &stderr))
	assert.Equal(t, "virtlvm: cannot write the output: no space left on device\n", string(stderr))
}

type stringWriter string

func (s *stringWriter) Write(b []byte) (int, error) {
	*s += stringWriter(b)
	return len(b), nil
}
