package main

import (
	"bytes"
	"encoding/xml"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func millis(all ...int) samples {
	var s samples
	for _, ms := range all {
		s = append(s, time.Duration(ms)*time.Millisecond)
	}
	return s
}

func TestPercentile(t *testing.T) {
	hundred := make(samples, 0, 100)
	for i := range 100 {
		hundred = append(hundred, time.Duration(100-i)*time.Millisecond)
	}
	tests := map[string]struct {
		all  samples
		p    int
		want float64
	}{
		"none":             {nil, 50, 0},
		"one":              {millis(7), 99, 7},
		"odd":              {millis(3, 1, 2), 50, 2},
		"even: the lower":  {millis(4, 1, 3, 2), 50, 2},
		"outliers":         {millis(1, 1, 1, 900), 50, 1},
		"p95 of a hundred": {hundred, 95, 95},
		"p99 of a hundred": {hundred, 99, 99},
		"p95 of few":       {millis(1, 2, 9), 95, 9},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			before := append(samples(nil), tt.all...)
			assert.Equal(t, tt.want, tt.all.percentile(tt.p))
			assert.Equal(t, before, tt.all, "the order of the rounds stays")
		})
	}
}

func TestCostsRoundByRound(t *testing.T) {
	total := costs{{10 * time.Millisecond, 6 * time.Millisecond}, {30 * time.Millisecond, 8 * time.Millisecond}}
	tools := costs{{4 * time.Millisecond, time.Millisecond}, {20 * time.Millisecond, 3 * time.Millisecond}}
	left := total.minus(tools)
	assert.Equal(t, millis(6, 10), left.wall())
	assert.Equal(t, millis(5, 5), left.cpu())
	assert.Equal(t, 5.0, left.cpu().mean())
	assert.Equal(t, 0.5, millis(1, 2, 3).ratio(millis(4, 4, 4)))
	assert.Zero(t, samples(nil).mean())
}

func TestEnough(t *testing.T) {
	in := plan{part: time.Hour}.enough(5, 1)
	assert.False(t, in(4))
	assert.True(t, in(5))
	late := plan{part: -time.Hour}.enough(5, 1)
	assert.False(t, late(1), "two rounds in any case")
	assert.True(t, late(2))
}

func TestReportLines(t *testing.T) {
	var out bytes.Buffer
	r := report{out: &out}
	r.note("a %s", "note")
	r.value("a_ms", 1.234, "ms", 0)
	r.value("b_ms", 5, "ms", 5)
	r.value("c_ratio", 0.26, "x", 0.25)
	r.times("d", millis(1, 2, 3), 2, 95)
	var lines []string
	for line := range strings.Lines(out.String()) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	assert.Equal(t, []string{
		"# a note", "a_ms 1.23 ms", "b_ms 5.00 ms <= 5 ok", "c_ratio 0.26 x <= 0.25 MISSED", "d_ms 2.00 ms <= 2 ok", "d_p95_ms 3.00 ms",
	}, lines)
	assert.NoError(t, r.err)
}

func TestGuest(t *testing.T) {
	s := &stage{repo: "../.."}
	var disks []string
	for i := range 32 {
		disks = append(disks, disk("block", "/dev/vg_san/lv", i))
	}
	g, err := s.newGuest("guest32", 132, disks...)
	require.NoError(t, err)
	var d struct {
		Name  string `xml:"name"`
		UUID  string `xml:"uuid"`
		Disks []struct {
			Source struct {
				Dev string `xml:"dev,attr"`
			} `xml:"source"`
			Target struct {
				Dev string `xml:"dev,attr"`
			} `xml:"target"`
		} `xml:"devices>disk"`
	}
	require.NoError(t, xml.Unmarshal(g.xml, &d))
	assert.Equal(t, "guest32", d.Name)
	assert.Equal(t, "11111111-2222-4333-8444-000000000132", d.UUID)
	require.Len(t, d.Disks, 32)
	names := map[string]bool{}
	for _, one := range d.Disks {
		assert.Equal(t, "/dev/vg_san/lv", one.Source.Dev)
		names[one.Target.Dev] = true
	}
	assert.Len(t, names, 32, "each disk has a target of its own")
	assert.True(t, names["vda"] && names["vdz"] && names["vdaa"] && names["vdaf"], "%v", names)
}

// The hook to compare with must do the whole work, or it is too fast.
func TestPlainHook(t *testing.T) {
	tools := t.TempDir()
	script := "#!/bin/sh\necho \"$@\" >>\"${0%/*}/ran\"\n[ \"$2\" != vg_san/bad ]\n"
	require.NoError(t, os.WriteFile(filepath.Join(tools, "lvchange"), []byte(script), 0o755))
	run := func(reader, op string, lvs ...string) (code int, ran string) {
		var disks []string
		for i, lv := range lvs {
			disks = append(disks, disk("block", "/dev/"+lv, i))
		}
		g, err := (&stage{repo: "../.."}).newGuest("g", 1, append(disks, disk("file", "/images/a.raw", 9))...)
		require.NoError(t, err)
		_ = os.Remove(filepath.Join(tools, "ran"))
		cmd := exec.Command("./plain-hook.sh", "g", op, "begin", "-")
		cmd.Env = []string{"PATH=" + tools + ":/usr/bin:/bin", "PLAIN_HOOK_READER=" + reader}
		cmd.Stdin = bytes.NewReader(g.xml)
		out, err := cmd.CombinedOutput()
		require.NotNil(t, cmd.ProcessState, "%v", err)
		assert.Empty(t, string(out))
		text, _ := os.ReadFile(filepath.Join(tools, "ran"))
		return cmd.ProcessState.ExitCode(), string(text)
	}
	readers := []string{"sed"}
	if _, err := exec.LookPath("xmllint"); err == nil {
		readers = append(readers, "xmllint")
	}
	for _, reader := range readers {
		t.Run(reader, func(t *testing.T) {
			code, ran := run(reader, "prepare", "vg_san/lv0", "vg_san/lv-1")
			assert.Zero(t, code)
			assert.Equal(t, "-aey vg_san/lv0\n-aey vg_san/lv-1\n", ran)
			code, ran = run(reader, "prepare", "vg_san/lv0", "vg_san/bad", "vg_san/lv1")
			assert.Equal(t, 1, code)
			assert.Equal(t, "-aey vg_san/lv0\n-aey vg_san/bad\n", ran)
			code, ran = run(reader, "release", "vg_san/lv0", "vg_san/lv1")
			assert.Zero(t, code)
			assert.Equal(t, "-an vg_san/lv0\n-an vg_san/lv1\n", ran)
			code, ran = run(reader, "start", "vg_san/lv0")
			assert.Zero(t, code)
			assert.Empty(t, ran)
		})
	}
}

func TestCostsIn(t *testing.T) {
	took, notes := costsIn("=== RUN   TestCost\ncost_of blkdiscard: fallocate\ncost erase 241.29\ncost zeroout 132.95\n--- PASS: TestCost (156.28s)\nPASS\n")
	assert.Equal(t, map[string]float64{"erase": 241.29, "zeroout": 132.95}, took)
	assert.Equal(t, []string{"cost_of blkdiscard: fallocate"}, notes)
	took, notes = costsIn("    cost_test.go:44: this file system cannot do it: x\n--- SKIP: TestCost (0.00s)\n")
	assert.Empty(t, took)
	assert.Equal(t, []string{"cost_test.go:44: this file system cannot do it: x", "--- SKIP: TestCost (0.00s)"}, notes)
}

func TestCovered(t *testing.T) {
	at := func(from, to int) span { return span{time.UnixMilli(int64(from)), time.UnixMilli(int64(to))} }
	assert.Zero(t, covered(nil))
	assert.Equal(t, 15*time.Millisecond, covered([]span{at(20, 30), at(0, 4), at(1, 3), at(2, 5), at(25, 30)}))
}
