package kinds

import (
	"bytes"
	"encoding/xml"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// virshBench runs backupScript with a virsh whose answers are files: what one prints, its exit
// code in the last line; several answers of one command are used up one after another.
type virshBench struct {
	t   *testing.T
	dir string
}

const fakeVirsh = `#!/bin/sh
[ "$1 $2" = "-c qemu:///system" ] || exit 9
shift 2
name=$1
[ "$3" != --completed ] || name=completed
[ "$name" != backup-begin ] || cat >"$DIR/xml"
echo "$*" >>"$DIR/calls"
for n in 1 2 3 4; do
	if [ -e "$DIR/$name.$n" ]; then
		answer=$(cat "$DIR/$name.$n")
		[ ! -e "$DIR/$name.$((n + 1))" ] || rm "$DIR/$name.$n"
		case $answer in
		error:*) echo "$answer" >&2; exit 1 ;;
		*) printf '%s\n' "$answer"; exit 0 ;;
		esac
	fi
done
exit 0
`

const (
	running   = "Job type:         Unbounded   \nOperation:        Backup\nTime elapsed:     12 ms\n"
	noJob     = "Job type:         None\n"
	completed = "Job type:         Completed   \nOperation:        Backup\nTime elapsed:     12 ms\n"
)

func newVirshBench(t *testing.T, answers map[string][]string) *virshBench {
	t.Helper()
	b := &virshBench{t, t.TempDir()}
	require.NoError(t, os.WriteFile(filepath.Join(b.dir, "virsh"), []byte(fakeVirsh), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(b.dir, "sleep"), []byte("#!/bin/sh\nexec /bin/sleep 0.02\n"), 0o755))
	for name, all := range answers {
		for i, text := range all {
			require.NoError(t, os.WriteFile(filepath.Join(b.dir, name+"."+string(rune('1'+i))), []byte(text), 0o600))
		}
	}
	return b
}

func (b *virshBench) start(freeze bool) (cmd *exec.Cmd, stdout, stderr *bytes.Buffer) {
	b.t.Helper()
	argv := backupStep("UUID", "vda", "/dev/vg_two/snap", "raw", freeze)
	cmd = exec.Command(argv[0], argv[1:]...)
	cmd.Env = []string{"PATH=" + b.dir + ":/usr/bin:/bin", "DIR=" + b.dir, "LC_ALL=C"}
	stdout, stderr = &bytes.Buffer{}, &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	require.NoError(b.t, cmd.Start())
	return cmd, stdout, stderr
}

func (b *virshBench) calls() []string {
	b.t.Helper()
	text, err := os.ReadFile(filepath.Join(b.dir, "calls"))
	require.NoError(b.t, err)
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

func TestBackupScript(t *testing.T) {
	begin := "backup-begin UUID --backupxml /dev/stdin --reuse-external"
	ended := "domjobinfo UUID --completed --keep-completed"
	for name, tt := range map[string]struct {
		freeze  bool
		answers map[string][]string
		code    int
		stdout  string
		stderr  string
		calls   []string
	}{
		"done": {
			false,
			map[string][]string{"domjobinfo": {running, noJob}, "completed": {completed}},
			0, "", "",
			[]string{begin, "domjobinfo UUID", "domjobinfo UUID", ended},
		},
		"done at once, frozen": {
			true,
			map[string][]string{"domjobinfo": {noJob}, "completed": {completed}},
			0, "frozen\n", "",
			[]string{"domfsfreeze UUID", begin, "domfsthaw UUID", "domjobinfo UUID", ended},
		},
		"the agent does not freeze, but may have begun to": {
			true,
			map[string][]string{"domfsfreeze": {"error: Guest agent is not responding"}, "domjobinfo": {noJob}, "completed": {completed}},
			0, "", "Guest agent is not responding",
			[]string{"domfsfreeze UUID", begin, "domfsthaw UUID", "domjobinfo UUID", ended},
		},
		"thawed where it does not begin, if not the first time": {
			true,
			map[string][]string{"backup-begin": {"error: Operation not supported"}, "domfsthaw": {"error: busy", "ok"}},
			1, "frozen\n", "Operation not supported",
			[]string{"domfsfreeze UUID", begin, "domfsthaw UUID", "domfsthaw UUID"},
		},
		"libvirt is restarted meanwhile": {
			false,
			map[string][]string{"domjobinfo": {running, "error: failed to connect to the hypervisor", running, noJob}, "completed": {completed}},
			0, "", "",
			[]string{begin, "domjobinfo UUID", "domjobinfo UUID", "domjobinfo UUID", "domjobinfo UUID", ended},
		},
		"libvirt knows nothing of its end": {
			false,
			map[string][]string{"domjobinfo": {noJob}, "completed": {noJob}},
			1, "", "libvirt does not know any more how the backup has ended",
			[]string{begin, "domjobinfo UUID", ended},
		},
		"it fails": {
			false,
			map[string][]string{"domjobinfo": {noJob}, "completed": {"Job type:         Failed\nOperation:        Backup\nError message:    No space left on device"}},
			1, "", "the backup has failed: Job type: Failed Operation: Backup Error message: No space left on device",
			[]string{begin, "domjobinfo UUID", ended},
		},
		"another job has ended since": {
			false,
			map[string][]string{"domjobinfo": {noJob}, "completed": {"Job type:         Completed\nOperation:        Outgoing migration"}},
			1, "", "the backup has failed",
			[]string{begin, "domjobinfo UUID", ended},
		},
		"the guest ends": {
			false,
			map[string][]string{"domjobinfo": {running, "error: Requested operation is not valid: domain is not running"}},
			1, "", "the guest ended before the backup had",
			[]string{begin, "domjobinfo UUID", "domjobinfo UUID"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newVirshBench(t, tt.answers)
			cmd, stdout, stderr := b.start(tt.freeze)
			_ = cmd.Wait()
			assert.Equal(t, tt.code, cmd.ProcessState.ExitCode(), stderr.String())
			assert.Equal(t, tt.stdout, stdout.String())
			assert.Contains(t, stderr.String(), tt.stderr)
			assert.Equal(t, tt.calls, b.calls())
			doc, err := os.ReadFile(filepath.Join(b.dir, "xml"))
			require.NoError(t, err)
			assert.Equal(t, "<domainbackup mode='push'><disks><disk name='vda' backup='yes' type='block'><driver type='raw'/><target dev='/dev/vg_two/snap'/></disk></disks></domainbackup>\n", string(doc))
		})
	}
}

// A signal aborts the backup and waits until it is gone.
func TestBackupScriptStopped(t *testing.T) {
	b := newVirshBench(t, map[string][]string{"domjobinfo": {running}})
	cmd, _, stderr := b.start(true)
	has := func(call string) func() bool {
		return func() bool {
			text, err := os.ReadFile(filepath.Join(b.dir, "calls"))
			return err == nil && strings.Contains(string(text), call+"\n")
		}
	}
	require.Eventually(t, has("domjobinfo UUID"), 20*time.Second, 5*time.Millisecond)
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.Eventually(t, has("domjobabort UUID"), 20*time.Second, 5*time.Millisecond)
	require.NoError(t, os.WriteFile(filepath.Join(b.dir, "domjobinfo.1"), []byte(noJob), 0o600))
	_ = cmd.Wait()
	assert.Equal(t, 143, cmd.ProcessState.ExitCode(), stderr.String())
	assert.Contains(t, b.calls(), "domfsthaw UUID")
}

func TestBackupXML(t *testing.T) {
	doc := backupXML("vda", "/srv/it's <here>.img", "qcow2")
	var any struct{}
	require.NoError(t, xml.Unmarshal([]byte(doc), &any))
	assert.Contains(t, doc, "type='file'><driver type='qcow2'/><target file='/srv/it&#39;s &lt;here&gt;.img'/>")
}

func TestHasAgent(t *testing.T) {
	const channel = `<domstatus><domain><devices><channel type='unix'><target type='virtio' name='%s' state='%s'/></channel></devices></domain></domstatus>`
	for doc, want := range map[string]bool{
		strings.NewReplacer("%s' state='%s", "org.qemu.guest_agent.0' state='connected").Replace(channel):    true,
		strings.NewReplacer("%s' state='%s", "org.qemu.guest_agent.0' state='disconnected").Replace(channel): false,
		strings.NewReplacer("%s' state='%s", "com.redhat.spice.0' state='connected").Replace(channel):        false,
		"<domstatus>": false,
		"":            false,
	} {
		assert.Equal(t, want, hasAgent([]byte(doc)), doc)
	}
}
