package store

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/model"
)

func TestLockHints(t *testing.T) {
	s := New(Options{Path: t.TempDir() + "/virtlvm.db"})
	defer func() { assert.NoError(t, s.Close()) }()
	a := model.LockHint{Volume: model.VolumeID{VG: "v1", LV: "a"}, Name: "vg/a", Host: "kvm-a", Mode: model.ModeEX, Since: 5}
	b := model.LockHint{Volume: model.VolumeID{VG: "v2", LV: "b"}, Name: "vg2/b", Mode: model.ModeOff, Since: 6, Was: "kvm-b(ex)", WrongAt: 7}
	require.NoError(t, s.ChangeLockHints(ctx, []model.LockHint{b, a}, nil))
	all, err := s.LockHints(ctx, "")
	require.NoError(t, err)
	assert.Equal(t, []model.LockHint{a, b}, all)

	a.Host, a.Mode = "", model.ModeSH
	require.NoError(t, s.ChangeLockHints(ctx, []model.LockHint{a}, []model.VolumeID{b.Volume}))
	all, err = s.LockHints(ctx, "v1")
	require.NoError(t, err)
	assert.Equal(t, []model.LockHint{a}, all)
	all, err = s.LockHints(ctx, "v2")
	require.NoError(t, err)
	assert.Empty(t, all)

	a.Mode = "sideways"
	assert.Error(t, s.ChangeLockHints(ctx, []model.LockHint{a}, nil), "the database knows the modes")
}
