package daemon

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/activation"
	"virtlvm/internal/config"
	"virtlvm/internal/run"
)

// Where journalctl is, it is asked; where it is not, nothing is known.
func TestUnopened(t *testing.T) {
	dir := t.TempDir()
	cfg := config.Default()
	cfg.Paths.LibvirtRun = dir
	d := &Daemon{exec: run.NewExec(run.ExecOptions{Dirs: []string{dir}, OutDir: dir})}
	d.config.Store(cfg)
	since := time.Unix(1_800_000_000, 0)
	_, err := d.unopened(t.Context(), since)
	require.Error(t, err)
	script := `#!/bin/sh
case "$*" in *" --priority=err --since=@1800000000 _UID=0 _COMM=libvirtd _COMM=virtqemud") ;; *) exit 1 ;; esac
echo '{"__REALTIME_TIMESTAMP":"1800000020000000","MESSAGE":"Cannot access storage file '"'/dev/vg_two/data'"': No such file or directory"}'
`
	require.NoError(t, os.WriteFile(filepath.Join(dir, "journalctl"), []byte(script), 0o700))
	found, err := d.unopened(t.Context(), since)
	require.NoError(t, err)
	assert.Equal(t, []activation.Unopened{{At: since.Add(20 * time.Second), Path: "/dev/vg_two/data"}}, found)

	assert.False(t, d.guestsRun())
	require.NoError(t, os.WriteFile(filepath.Join(dir, "vm1.xml"), nil, 0o600))
	assert.True(t, d.guestsRun())
}
