package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/test/fakevirt"
)

// TestMain lets this program be the QEMU of its own tests.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "qemu" {
		os.Exit(fakevirt.QEMUMain(os.Args[2:]))
	}
	os.Exit(m.Run())
}

const definition = `<domain type='qemu'><name>vm1</name><uuid>11111111-2222-3333-4444-555555555555</uuid>
  <devices><disk type='block' device='disk'><source dev='/dev/vg/lv'/><target dev='vda' bus='virtio'/></disk></devices></domain>`

// TestSession is one host's day, each command a run of its own.
func TestSession(t *testing.T) {
	dir := t.TempDir()
	def, hook := filepath.Join(dir, "vm1.xml"), filepath.Join(dir, "hook")
	require.NoError(t, os.WriteFile(def, []byte(definition), 0o600))
	require.NoError(t, os.WriteFile(hook, []byte("#!/bin/sh\n"+
		`cat >/dev/null; echo "$*" >>"$VIRTLVM_HOOK_SPOOL"; [ ! -e "$VIRTLVM_HOOK_SPOOL.no" ] || { echo "virtlvm: no" >&2; exit 1; }`+"\n"), 0o755))
	calls := filepath.Join(dir, "calls")
	environ := []string{"FAKEVIRT_DIR=" + dir, "FAKEVIRT_HOOK=" + hook, "FAKEVIRT_HOST=kvm-a", "VIRTLVM_HOOK_SPOOL=" + calls, "OTHER=1"}
	virsh := func(args ...string) (int, string, string) {
		var out, errs bytes.Buffer
		code := run(context.Background(), args, environ, &out, &errs)
		return code, out.String(), errs.String()
	}
	expect := func(wantCode int, wantOut, wantErr string, args ...string) {
		t.Helper()
		code, out, errs := virsh(args...)
		assert.Equal(t, wantCode, code)
		assert.Equal(t, wantOut, out)
		assert.Equal(t, wantErr, errs)
	}
	t.Cleanup(func() { virsh("destroy", "vm1") })

	expect(0, "Domain 'vm1' defined from "+def+"\n\n", "", "define", def)
	expect(0, " Id   Name   State\n-----------------------\n -    vm1    shut off\n\n", "", "list")
	expect(1, "", "error: Failed to start domain 'vm1'\n"+
		"error: Cannot access storage file '/dev/vg/lv': No such file or directory\n\n", "start", "vm1")
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "dev/vg"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "dev/vg/lv"), make([]byte, 8192), 0o600))
	expect(0, "Domain 'vm1' started\n\n", "", "start", "vm1")
	expect(0, " Id   Name   State\n-----------------------\n 2    vm1    running\n\n", "", "list")
	expect(1, "", "error: Failed to start domain 'vm1'\nerror: Requested operation is not valid: domain is already running\n\n", "start", "vm1")
	expect(0, "", "", "reconnect")
	expect(0, "Domain 'vm1' crashed\n\n", "", "crash", "vm1")
	expect(0, "Domain 'vm1' started\n\n", "", "start", "vm1")
	expect(0, "Domain 'vm1' is being shutdown\n\n", "", "shutdown", "vm1")
	require.NoError(t, os.WriteFile(calls+".no", nil, 0o600))
	code, _, errs := virsh("start", "vm1")
	assert.Equal(t, 1, code)
	assert.Contains(t, errs, "Hook script execution failed: internal error: Child process (LC_ALL=C PATH=")
	assert.Contains(t, errs, hook+" vm1 prepare begin -) unexpected exit status 1: virtlvm: no\n")

	data, err := os.ReadFile(calls)
	require.NoError(t, err)
	assert.Equal(t, strings.Split(`vm1 prepare begin -
vm1 stopped end -
vm1 release end failed
vm1 prepare begin -
vm1 start begin -
vm1 started begin -
vm1 reconnect begin -
vm1 stopped end -
vm1 release end crashed
vm1 prepare begin -
vm1 start begin -
vm1 started begin -
vm1 stopped end -
vm1 release end shutdown
vm1 prepare begin -
vm1 stopped end -
vm1 release end failed
`, "\n"), strings.Split(string(data), "\n"))
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{{}, {"start"}, {"frobnicate", "vm1"}, {"-nonsense"}, {"list", "x"}} {
		var out, errs bytes.Buffer
		code := run(context.Background(), args, []string{"FAKEVIRT_DIR=" + t.TempDir()}, &out, &errs)
		assert.Equal(t, 2, code, args)
		assert.Empty(t, out.String())
		assert.NotEmpty(t, errs.String())
	}
	var errs bytes.Buffer
	assert.Equal(t, 2, run(context.Background(), []string{"list"}, nil, &bytes.Buffer{}, &errs))
	assert.Contains(t, errs.String(), "without a folder")
}
