package kinds

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
)

func TestCopySteps(t *testing.T) {
	for name, tt := range map[string]struct {
		from, to      string
		virtual, room int64
		bandwidth     int64
		want          []string
	}{
		"raw": {"raw", "raw", 100, 100, 0, []string{
			"qemu-img convert -p -n -t none -T none -f raw -O raw /dev/vg/a /dev/vg/b",
			"qemu-img compare -p -T none -f raw -F raw /dev/vg/a /dev/vg/b",
		}},
		"larger destination": {"raw", "raw", 100, 200, 0, []string{
			"qemu-img convert -p -n -t none -T none -f raw -O raw /dev/vg/a /dev/vg/b",
			"qemu-img compare -p -T none --image-opts driver=raw,file.driver=host_device,file.filename=/dev/vg/a driver=raw,size=100,file.driver=host_device,file.filename=/dev/vg/b",
		}},
		"to qcow2, slowly": {"raw", "qcow2", 100, 300, 20, []string{
			"qemu-img create -q -f qcow2 /dev/vg/b 100",
			"qemu-img convert -p -n -t none -T none -f raw -O qcow2 -r 20971520 /dev/vg/a /dev/vg/b",
			"qemu-img compare -p -T none -f raw -F qcow2 /dev/vg/a /dev/vg/b",
		}},
		"from qcow2": {"qcow2", "raw", 100, 104, 0, []string{
			"qemu-img convert -p -n -t none -T none -f qcow2 -O raw /dev/vg/a /dev/vg/b",
			"qemu-img compare -p -T none --image-opts driver=qcow2,file.driver=host_device,file.filename=/dev/vg/a driver=raw,size=100,file.driver=host_device,file.filename=/dev/vg/b",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			p := copyPlan{CopyArgs: api.CopyArgs{Source: "vg/a", Destination: "vg/b", Format: tt.from, ToFormat: tt.to, Bandwidth: tt.bandwidth}}
			var lines []string
			for _, argv := range copySteps(p, tt.virtual, tt.room, hostDevice) {
				lines = append(lines, strings.Join(argv, " "))
			}
			assert.Equal(t, tt.want, lines)
			assert.Equal(t, "compare", copySteps(p, tt.virtual, tt.room, hostDevice)[compareStep(p)-1][1])
		})
	}
}

// What is written to a file is on the disk when qemu-img says that it is done; by itself it
// leaves that to the kernel.
func TestSnapshotStepsToAFile(t *testing.T) {
	p := snapshotPlan{SnapshotArgs: api.SnapshotArgs{Volume: "vg/a", To: "/backup/a", Format: "raw", ToFormat: "qcow2", Bandwidth: 2}}
	var lines []string
	for _, argv := range p.steps("a-7", 100, 100) {
		lines = append(lines, strings.Join(argv, " "))
	}
	assert.Equal(t, []string{
		"qemu-img convert -p -t writeback -T none -f raw -O qcow2 -r 2097152 /dev/vg/a /backup/a.a-7.part",
		"qemu-img compare -p -f raw -F qcow2 /dev/vg/a /backup/a.a-7.part",
	}, lines)
}

// The real qemu-img, where there is one, must take the command lines, find a difference,
// and print its progress as it is read.
func TestCopyWithRealQemuImg(t *testing.T) {
	if _, err := exec.LookPath("qemu-img"); err != nil {
		t.Skip("the real qemu-img is not on this machine: ", err)
	}
	for _, tt := range []struct {
		from, to string
		room     int64
	}{{"raw", "raw", 3 << 20}, {"raw", "raw", 4 << 20}, {"raw", "qcow2", 8 << 20}, {"qcow2", "raw", 4 << 20}, {"qcow2", "qcow2", 8 << 20}} {
		t.Run(tt.from+" to "+tt.to, func(t *testing.T) {
			const virtual = 3 << 20
			dir := t.TempDir()
			src, dst := filepath.Join(dir, "a"), filepath.Join(dir, "b")
			if tt.from == "qcow2" {
				runTool(t, "qemu-img", "create", "-q", "-f", "qcow2", src, "3M")
			} else {
				require.NoError(t, os.WriteFile(src, []byte(strings.Repeat("content ", virtual/8)), 0o600))
			}
			old := make([]byte, tt.room)
			for i := range old {
				old[i] = 0xee
			}
			require.NoError(t, os.WriteFile(dst, old, 0o600))
			p := copyPlan{CopyArgs: api.CopyArgs{Source: "vg/a", Destination: "vg/b", Format: tt.from, ToFormat: tt.to}}
			var out strings.Builder
			steps := copySteps(p, virtual, tt.room, "file")
			for i, argv := range steps {
				for n, word := range argv {
					// Not every file system knows O_DIRECT.
					argv[n] = strings.NewReplacer("/dev/vg/a", src, "/dev/vg/b", dst, "none", "writeback").Replace(word)
				}
				out.WriteString(runTool(t, argv...))
				if i < len(steps)-1 && strings.Contains(argv[1], "convert") {
					assert.Contains(t, out.String(), "(100.00/100%)")
				}
			}
			assert.Zero(t, lastStep(out.String()), "the last step has ended")
			assert.Equal(t, "Images are identical.", lastWords(out.String(), ""))

			f, err := os.OpenFile(dst, os.O_RDWR, 0)
			require.NoError(t, err)
			if tt.to == "raw" {
				_, err = f.WriteAt([]byte("x"), 2<<20)
				require.NoError(t, err)
				last := steps[len(steps)-1]
				text, err := exec.Command(last[0], last[1:]...).CombinedOutput()
				require.Error(t, err)
				assert.Equal(t, "Content mismatch at offset 2097152!", lastWords(string(text), ""))
			}
			require.NoError(t, f.Close())
		})
	}
}

func runTool(t *testing.T, argv ...string) string {
	t.Helper()
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	require.NoError(t, err, "%q: %s", argv, out)
	return string(out)
}

func TestProgressOfQemuImg(t *testing.T) {
	for out, want := range map[string]int64{
		"":                                    0,
		"    (0.00/100%)\r    (12.34/100%)\r": 123,
		"    (0.00/100%)\r    (100.00/100%)\r\n    (50.00/100%)\r": 500,
		"    (100.00/100%)\r\n":                        0,
		"    (100.00/100%)\r\nImages are identical.\n": 0,
		"(x/100%)": 0, "(101/100%)": 0, "(1e9/100%)": 0,
	} {
		assert.Equal(t, want, lastStep(out), "%q", out)
	}
}

func TestLastWords(t *testing.T) {
	for _, tt := range []struct{ out, err, want string }{
		{"", "", ""},
		{"    (0.00/100%)\r    (1.00/100%)\r", "qemu-img: warning\nqemu-img: error while writing at byte 7: No space left on device\n", "qemu-img: error while writing at byte 7: No space left on device"},
		{"    (100.00/100%)\r\n    (3.00/100%)\r\nContent mismatch at offset 512!\n    (100.00/100%)\r\n", "", "Content mismatch at offset 512!"},
		{"", "\n \n", ""},
	} {
		assert.Equal(t, tt.want, lastWords(tt.out, tt.err))
	}
}
