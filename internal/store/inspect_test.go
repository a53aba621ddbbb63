package store_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
	"virtlvm/internal/model"
	"virtlvm/internal/store"
)

func TestInspect(t *testing.T) {
	path := filepath.Join(t.TempDir(), "virtlvm.db")
	_, err := store.Inspect(path)
	require.ErrorIs(t, err, os.ErrNotExist)

	ctx := t.Context()
	s := store.New(store.Options{Path: path, Now: func() time.Time { return time.UnixMilli(5000) }})
	_, err = s.AddHookCall(ctx, api.HookCall{Guest: "vm1", Op: "prepare", Stamp: api.Stamp{BootID: "b", LibvirtdPID: 42, LibvirtdStart: 7}})
	require.NoError(t, err)
	ours := model.Volume{ID: model.VolumeID{VG: "v", LV: "l"}, VG: "vg", LV: "lv"}
	seen := model.Volume{ID: model.VolumeID{VG: "v", LV: "m"}, VG: "vg", LV: "lw"}
	for kind, v := range map[string]model.Volume{"activate": ours, "deactivate": seen} {
		_, err = s.Begin(ctx, store.Intent{Kind: kind, Argv: []string{"lvchange"}, Targets: []model.Volume{v}, BootID: "b"}, store.HoldChange{})
		require.NoError(t, err)
	}

	look := func(t *testing.T) {
		i, err := store.Inspect(path)
		require.NoError(t, err)
		defer func() { require.NoError(t, i.Close()) }()
		damage, err := i.Damage(ctx)
		require.NoError(t, err)
		assert.Empty(t, damage)
		at, err := i.LastHook(ctx, "b", 42, 7)
		require.NoError(t, err)
		assert.Equal(t, time.UnixMilli(5000).UTC(), at.UTC())
		for _, other := range []struct {
			boot  string
			pid   int
			start uint64
		}{{"c", 42, 7}, {"b", 43, 7}, {"b", 42, 8}} {
			at, err = i.LastHook(ctx, other.boot, other.pid, other.start)
			require.NoError(t, err)
			assert.True(t, at.IsZero(), "another boot, another process")
		}
		for id, want := range map[model.VolumeID]bool{ours.ID: true, seen.ID: false, {VG: "v", LV: "x"}: false} {
			got, err := i.Activated(ctx, id)
			require.NoError(t, err)
			assert.Equal(t, want, got, id)
		}
		_, err = s.AddHookCall(ctx, api.HookCall{Guest: "vm1"})
		assert.NoError(t, err, "writing goes on meanwhile")
	}
	t.Run("beside the daemon", look)
	require.NoError(t, s.Close())
	t.Run("without one", look)
}

func TestInspectDamage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "virtlvm.db")
	s := store.New(store.Options{Path: path})
	for range 200 {
		_, err := s.AddHookCall(t.Context(), api.HookCall{Guest: "vm1", Op: "prepare"})
		require.NoError(t, err)
	}
	require.NoError(t, s.Close())
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	info, err := f.Stat()
	require.NoError(t, err)
	// The second half: the header must stay readable.
	_, err = f.WriteAt(make([]byte, info.Size()/2), info.Size()/2)
	require.NoError(t, err)
	require.NoError(t, f.Close())

	i, err := store.Inspect(path)
	require.NoError(t, err)
	defer func() { require.NoError(t, i.Close()) }()
	damage, err := i.Damage(t.Context())
	require.NoError(t, err)
	assert.NotEmpty(t, damage)
	assert.NotContains(t, damage, "\n")

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = i.Damage(ended)
	assert.ErrorIs(t, err, context.Canceled)

	garbage := filepath.Join(t.TempDir(), "x.db")
	require.NoError(t, os.WriteFile(garbage, []byte("this is no database, and long enough to be read as one"), 0o600))
	g, err := store.Inspect(garbage)
	require.NoError(t, err)
	defer func() { require.NoError(t, g.Close()) }()
	damage, err = g.Damage(t.Context())
	require.NoError(t, err)
	assert.NotEmpty(t, damage)
}
