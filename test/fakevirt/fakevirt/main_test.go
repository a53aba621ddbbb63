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

// TestMigration moves a guest between two hosts' folders by virsh's words.
func TestMigration(t *testing.T) {
	dir := t.TempDir()
	hook, calls := filepath.Join(dir, "hook"), filepath.Join(dir, "calls")
	require.NoError(t, os.WriteFile(hook, []byte("#!/bin/sh\n"+
		`cat >/dev/null; echo "$VIRTLVM_HOOK_SOCKET $2" >>"`+calls+`"; [ ! -e "`+calls+`.$2" ] || { echo "virtlvm: no" >&2; exit 1; }`+"\n"), 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "disks/dev/vg"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "disks/dev/vg/lv"), make([]byte, 8192), 0o600))
	environ := map[string][]string{}
	for _, host := range []string{"kvm-a", "kvm-b"} {
		environ[host] = []string{
			"FAKEVIRT_DIR=" + filepath.Join(dir, host), "FAKEVIRT_ROOT=" + filepath.Join(dir, "disks"), "FAKEVIRT_HOOK=" + hook,
			"FAKEVIRT_HOST=" + host, "VIRTLVM_HOOK_SOCKET=" + host,
		}
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "peers"), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "peers", host), []byte(strings.Join(environ[host], "\n")+"\n"), 0o600))
	}
	virsh := func(host string, args ...string) (int, string, string) {
		var out, errs bytes.Buffer
		code := run(context.Background(), args, append(environ[host], "FAKEVIRT_PEERS="+filepath.Join(dir, "peers")), &out, &errs)
		return code, out.String(), errs.String()
	}
	ok := func(want, host string, args ...string) {
		t.Helper()
		code, out, errs := virsh(host, args...)
		assert.Equal(t, 0, code, errs)
		assert.Equal(t, want, out)
	}
	t.Cleanup(func() { virsh("kvm-a", "destroy", "vm1"); virsh("kvm-b", "destroy", "vm1") })
	def := filepath.Join(dir, "vm1.xml")
	require.NoError(t, os.WriteFile(def, []byte(definition), 0o600))
	ok("Domain 'vm1' defined from "+def+"\n\n", "kvm-a", "define", def)
	ok("Domain 'vm1' started\n\n", "kvm-a", "start", "vm1")

	require.NoError(t, os.WriteFile(calls+".prepare", nil, 0o600))
	code, _, errs := virsh("kvm-a", "migrate", "--live", "vm1", "qemu+ssh://kvm-b/system")
	assert.Equal(t, 1, code)
	assert.Contains(t, errs, hook+" vm1 prepare begin -) unexpected exit status 1: virtlvm: no\n")
	require.NoError(t, os.Remove(calls+".prepare"))
	ok(" Id   Name   State\n-----------------------\n 1    vm1    running\n\n", "kvm-a", "list")

	require.NoError(t, os.Remove(calls))
	ok("", "kvm-a", "migrate", "--live", "vm1", "qemu+ssh://kvm-b/system", "--persistent", "--undefinesource")
	data, err := os.ReadFile(calls)
	require.NoError(t, err)
	assert.Equal(t, "kvm-b migrate\nkvm-b prepare\nkvm-b start\nkvm-b started\nkvm-a stopped\nkvm-a release\n", string(data))
	ok(" Id   Name   State\n-----------------------\n\n", "kvm-a", "list")
	ok("Domain 'vm1' suspended\n\n", "kvm-b", "suspend", "vm1")
	ok(" Id   Name   State\n-----------------------\n 2    vm1    paused\n\n", "kvm-b", "list")
	ok("Domain 'vm1' resumed\n\n", "kvm-b", "resume", "vm1")

	step := filepath.Join(dir, "step")
	require.NoError(t, os.WriteFile(step, []byte("#!/bin/sh\necho \"after $1\"; [ \"$1\" != performing ]\n"), 0o755))
	environ["kvm-b"] = append(environ["kvm-b"], "FAKEVIRT_STEP="+step)
	code, out, errs := virsh("kvm-b", "migrate", "--live", "vm1", "qemu+ssh://kvm-a/system")
	assert.Equal(t, 1, code)
	assert.Contains(t, errs, "operation aborted: migration out: canceled by client")
	assert.Equal(t, "after begun\nafter migrate hook\nafter prepare hook\nafter start hook\nafter launched\nafter started hook\nafter performing\n", out)
	ok(" Id   Name   State\n-----------------------\n 2    vm1    running\n\n", "kvm-b", "list")

	for want, args := range map[string][]string{
		"same host 00000000":                        {"vm1", "qemu:///system"},
		"unable to connect to server at 'kvm-c:22'": {"vm1", "qemu+ssh://kvm-c/system"},
	} {
		code, _, errs = virsh("kvm-b", append([]string{"migrate"}, args...)...)
		assert.Equal(t, 1, code)
		assert.Contains(t, errs, want)
	}
	for _, args := range [][]string{{}, {"vm1"}, {"-nonsense", "vm1", "qemu+ssh://kvm-a/"}, {"vm1", "qemu+ssh:///system"}, {"vm1", "%"}} {
		code, _, errs = virsh("kvm-b", append([]string{"migrate"}, args...)...)
		assert.Equal(t, 2, code, args)
		assert.Contains(t, errs, "error: cannot migrate: ")
	}
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
