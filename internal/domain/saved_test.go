package domain

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMarkSaved(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "vm1.save"), nil, 0o600))
	guests := []*Domain{{Name: "vm1"}, {Name: "vm2"}}
	require.NoError(t, MarkSaved(guests, dir))
	assert.True(t, guests[0].Saved)
	assert.False(t, guests[1].Saved)
	require.NoError(t, MarkSaved(guests, filepath.Join(dir, "none")), "libvirt makes the folder with the first image")
	assert.False(t, guests[0].Saved)
	require.ErrorContains(t, MarkSaved(guests, filepath.Join(dir, "vm1.save")), "cannot tell whether guest vm1 has a managed-save image")
}
