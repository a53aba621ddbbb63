package daemon

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/store"
)

// A daemon that ends with its host gives everything up, however long what went on has taken to
// end; one that is stopped alone, or cannot tell, leaves guests their locks.
func TestStopWithTheHost(t *testing.T) {
	for name, tt := range map[string]struct {
		systemctl string
		down      bool
	}{
		"the host":     {"echo stopping; exit 1", true},
		"alone":        {"echo running", false},
		"while broken": {"echo degraded; exit 1", false},
		"not known":    {"exit 1", false},
	} {
		t.Run(name, func(t *testing.T) {
			d, dir := host(t, false, nil), t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(dir, "systemctl"), []byte("#!/bin/sh\n[ $1 = is-system-running ] || exit 3\n"+tt.systemctl+"\n"), 0o700))
			var log bytes.Buffer
			d.log = slog.New(slog.NewTextHandler(&log, nil))
			cfg := d.config.Load()
			cfg.Paths.StateDir, cfg.Paths.RunDir, cfg.Paths.LibvirtRun = dir, dir, dir
			cfg.Paths.Tools = []string{dir}
			require.NoError(t, os.Mkdir(d.outDir(), 0o700))
			d.store = store.New(store.Options{Path: filepath.Join(dir, "virtlvm.db")})
			var err error
			d.engine, err = d.newEngine()
			require.NoError(t, err)
			d.jobs = d.newJobs()
			d.commands = d.newCommands()
			d.looked = make(chan struct{}) // a command that does not end
			require.NoError(t, d.stop(func() {}, time.Millisecond))
			assert.Equal(t, tt.down, bytes.Contains(log.Bytes(), []byte("the host goes down")), "%s", log.String())
		})
	}
}
