package store

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/model"
)

func TestFenced(t *testing.T) {
	s := New(Options{Path: filepath.Join(t.TempDir(), "virtlvm.db")})
	t.Cleanup(func() { _ = s.Close() })
	f := model.Fenced{Host: "kvm-b", BootID: "boot", Here: "ours", By: "uid 0", At: 7}
	require.NoError(t, s.PutFenced(t.Context(), f))
	f.At = 8
	require.NoError(t, s.PutFenced(t.Context(), f), "again")
	require.NoError(t, s.PutFenced(t.Context(), model.Fenced{Host: "kvm-a", By: "uid 0"}))
	all, err := s.Fenced(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []model.Fenced{{Host: "kvm-a", By: "uid 0"}, f}, all)
	require.NoError(t, s.DropFenced(t.Context(), "kvm-b"))
	require.NoError(t, s.DropFenced(t.Context(), "kvm-b"), "not there")
	all, err = s.Fenced(t.Context())
	require.NoError(t, err)
	assert.Len(t, all, 1)
}

// What the others have granted is kept with the hold.
func TestClaimOfAHold(t *testing.T) {
	s := New(Options{Path: filepath.Join(t.TempDir(), "virtlvm.db")})
	t.Cleanup(func() { _ = s.Close() })
	h := model.Hold{Owner: "u", Volume: model.VolumeID{VG: "v", LV: "l"}, Name: "vg/lv", Role: model.RoleWritable, Mode: model.ModeEX, Phase: model.PhaseHeld, Claim: model.ModeSH, BootID: "b"}
	require.NoError(t, s.ChangeHolds(t.Context(), HoldChange{Put: []model.Hold{h}}))
	all, err := s.Holds(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []model.Hold{h}, all)
}
