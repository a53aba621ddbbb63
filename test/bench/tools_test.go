package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/test/san"
)

// A tool is called by a path and by a name; its output, errors and exit code are those of the SAN.
func TestToolsAnswer(t *testing.T) {
	dir := t.TempDir()
	s, err := san.Create(filepath.Join(dir, "san"), san.Options{Hosts: []string{"kvm-a"}, VGs: []san.VGSpec{{Name: "vg"}}})
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	_, err = s.AddLV("vg", san.LVSpec{Name: "lv", Size: 4 << 20})
	require.NoError(t, err)
	h, err := s.Host("kvm-a")
	require.NoError(t, err)
	b := &stage{repo: "../..", programs: dir}
	require.NoError(t, b.buildTool(t.Context()))
	tools, err := newTools(h, filepath.Join(dir, "bin"), b.program("tool"))
	require.NoError(t, err)
	out, err := exec.CommandContext(t.Context(), filepath.Join(dir, "bin/lvs"), "--noheadings", "-o", "lv_name", "vg").Output()
	require.NoError(t, err)
	assert.Equal(t, "lv", strings.TrimSpace(string(out)))

	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", "lvchange -aey vg/none; echo $?")
	cmd.Env = append(os.Environ(), "PATH="+tools.dir)
	both, err := cmd.CombinedOutput()
	require.NoError(t, err)
	assert.Contains(t, string(both), "Failed to find logical volume \"vg/none\"\n5\n")
	assert.Equal(t, map[string]int{"lvs": 1, "lvchange": 1}, (&host{tools: tools}).programs())

	require.NoError(t, tools.close())
	err = exec.CommandContext(t.Context(), filepath.Join(dir, "bin/lvs")).Run()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	assert.Equal(t, 70, exit.ExitCode(), "no answer is no success")
}
