package cluster

import (
	"context"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var withMutants = flag.String("mutants", "", "break rules of the engine and see that the simulation notices; how many schedules each")

type mutant struct{ name, file, old, new string }

// mutants are rules of the engine that are taken away, one at a time. Two are not among them. That
// a migration waits for what is still ending here saves it a refusal at best. That what a guest has
// given up is not lent matters only where its end has the volume group's turn first, in a moment
// that no point of a schedule lies in.
var mutants = []mutant{
	{
		"promotes without looking for other shared holders", "ensure.go",
		"func (m *Manager) convertible(ctx context.Context, vols []model.Volume, now *local) []model.Volume {\n", "if true {\nreturn vols\n}\n",
	},
	{
		"a prepare without the migration's grant passes", "incoming.go",
		"if !ok || carried.ID != grant.ID {", "if false && (!ok || carried.ID != grant.ID) {",
	},
	{
		"prepare does not ask whether the grant is good", "incoming.go",
		"if !answer.Good {\n\t\tm.tell", "if false {\n\t\tm.tell",
	},
	{
		"lends without a migration under way", "lend.go",
		"if !listed || g.Job.Async != jobOut", "if listed && g.Job.Async != jobOut {\nreturn &g, nil\n}\nif !listed",
	},
	{
		"incoming volumes that no prepare follows are kept", "incoming.go",
		"func (m *Manager) checkIncoming(ctx context.Context, uuid string) {\n", "if true {\nreturn\n}\n",
	},
	{
		"a migrate hook whose daemon died leaves its hold", "guests.go",
		"if h.Attempt.AnsweredMillis == 0 {", "if false {",
	},
	{
		"a reader does not ask whether a writer is lent", "incoming.go",
		"if m.Peers == nil {\n\t\treturn nil // without peers", "if true {\n\t\treturn nil // without peers",
	},
	{
		"promotes while the migration is under way", "incoming.go",
		"return g.Job.Async != jobIn && g.State != \"\" && h.Attempt.Seen", "return h.Attempt.Seen",
	},
	{
		"takes a lent volume back while the migration is under way", "incoming.go",
		"return g.Job.Async != jobOut && g.State != \"paused\"", "return true",
	},
	{
		"does not wait for commands of the last daemon", "leftover.go",
		"func (m *Manager) awaitLeftovers(ctx context.Context) {\n", "if true {\nreturn\n}\n",
	},
	{
		"does not undo a failed start", "acquire.go",
		"func (m *Manager) undo(ctx context.Context, vg string, all []taken) {\n", "if true {\nreturn\n}\n",
	},
	{
		"a second guest on the same host may have the volume too", "acquire.go",
		"func (m *Manager) conflict(owner string, n model.Need, a model.Actual) error {\n", "if true {\nreturn nil\n}\n",
	},
	{
		"ends a hold though its guest runs", "guests.go",
		"\tcase guests.Alive:\n\t\treturn seen\n", "\tcase guests.Alive:\n\t\treturn ending\n",
	},
	{
		"an old release ends the hold of a new start", "guests.go",
		"answered > 0 && at >= answered", "true || at >= answered",
	},
	{
		"a stale look counts", "guests.go",
		"return m.calls[uuid] != s.calls[uuid]", "return false",
	},
	{
		"a start whose verdict came too late keeps its volumes", "hook.go",
		"if err == nil && ctx.Err() != nil {", "if false {",
	},
	{
		"lends what is not yet promoted here", "lend.go",
		"if h.Phase == model.PhaseIncoming || h.Phase != model.PhaseEnding && !now.ofHold(h).Is(h.Wanted()) {", "if false && !now.ofHold(h).Is(h.Wanted()) {",
	},
	{
		"a reader asks only hosts that are known to live", "incoming.go",
		"if h.Self { // a dead host", "if h.Self || h.State != model.HostLive { // a dead host",
	},
	{
		"holds of an earlier boot count", "reconcile.go",
		"if h.BootID != m.BootID {\n\t\t\tchange.Delete", "if false {\n\t\t\tchange.Delete",
	},
}

// claimMutants are those of VGs without lvmlockd, which TestSimClaims must notice.
var claimMutants = []mutant{
	{
		"an intent is not told to who asks", "claims.go",
		"if !slices.Contains(lvs, h.Volume.LV) {", "if !slices.Contains(lvs, h.Volume.LV) || h.Claim == \"\" {",
	},
	{
		"the first of two does not wait for the other's intent to go", "claimask.go",
		"c.LV != w.volume.ID.LV || compatible(w.mode, c) {", "c.LV != w.volume.ID.LV || compatible(w.mode, c) || intent(c) && m.Host < host {",
	},
	{
		"a member that does not answer does not count", "claimask.go",
		"case m.isFenced(ctx, host):", "case true:",
	},
	{
		"a claim is made exclusive while another shares it", "claimask.go",
		"func compatible(mode model.LockMode, c api.Claim) bool {\n", "if c.Claimed == string(model.ModeSH) {\nreturn true\n}\n",
	},
	{
		"members need not be the same", "claims.go",
		"case !slices.Equal(members, q.Members):", "case false:",
	},
}

// seldom are tests that notice mutants for which 200 schedules are too few.
var seldom = map[string]string{
	"does not wait for commands of the last daemon":         "TestSafetyLeftoverWithoutPid$",
	"does not undo a failed start":                          "TestRetainedSurvivesAFailedStart$",
	"holds of an earlier boot count":                        "TestRebootDropsTheHolds$",
	"a stale look counts":                                   "TestLookBeforeACallDoesNotCount$",
	"a start whose verdict came too late keeps its volumes": "TestHookGoneBeforeTheVerdict$",
	"lends what is not yet promoted here":                   "TestIncomingIsNotLent$",
	"a reader asks only hosts that are known to live":       "TestReaderDuringAMigration$",
}

// broken is the file of a mutant, and its code without the rule.
func (m mutant) broken(t *testing.T) (file, code string) {
	t.Helper()
	file, err := filepath.Abs(filepath.Join("../../internal/activation", m.file))
	require.NoError(t, err)
	whole, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(whole), m.old), "%s: %q", m.file, m.old)
	with := m.new
	if strings.HasSuffix(m.old, "{\n") {
		with = m.old + m.new
	}
	return file, strings.Replace(string(whole), m.old, with, 1)
}

// The rules that make mutants takes away are where it looks for them.
func TestMutantsAreFound(t *testing.T) {
	for _, m := range slices.Concat(mutants, claimMutants) {
		m.broken(t)
	}
}

// TestMutants takes rules of the engine away and wants a simulation, or a test, to fail: one that
// cannot fail is worth nothing. It compiles each of them, so it is not part of make test;
// see make mutants.
func TestMutants(t *testing.T) {
	if *withMutants == "" {
		t.Skip("only with -mutants")
	}
	for i, m := range slices.Concat(mutants, claimMutants) {
		sim := "-run=TestSim$"
		if i >= len(mutants) {
			sim = "-run=TestSimClaims$"
		}
		t.Run(m.name, func(t *testing.T) {
			dir := t.TempDir()
			file, code := m.broken(t)
			mutant := filepath.Join(dir, m.file)
			require.NoError(t, os.WriteFile(mutant, []byte(code), 0o600))
			overlay, err := json.Marshal(map[string]map[string]string{"Replace": {file: mutant}})
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600))
			patience, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			run := func(args ...string) (string, error) {
				args = append([]string{"test", "-count=1", "-vet=off", "-timeout=9m", "-overlay=" + filepath.Join(dir, "overlay.json")}, args...)
				out, err := exec.CommandContext(patience, "go", args...).CombinedOutput()
				return string(out), err
			}
			out, err := "", error(nil)
			noticed := "--- FAIL: Test"
			if test := seldom[m.name]; test != "" {
				out, err = run("-run="+test, ".", "../../internal/activation")
			} else {
				noticed = "[rapid] failed after"
				out, err = run(".", sim, "-rapid.nofailfile", "-rapid.shrinktime=1ms", "-rapid.checks="+*withMutants)
			}
			assert.Error(t, err)
			assert.Contains(t, out, noticed, "nothing notices")
			for line := range strings.Lines(out) {
				if strings.Contains(line, noticed) || strings.Contains(line, "undefined") || strings.Contains(line, "declared and not used") {
					t.Log(strings.TrimSpace(line))
				}
			}
			assert.NotContains(t, out, "[build failed]", "%s", out)
		})
	}
}
