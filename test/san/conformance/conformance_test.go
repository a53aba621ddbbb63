package conformance

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"virtlvm/test/san"
)

func newFake(t *testing.T, hosts ...string) Fake {
	t.Helper()
	return Fake{SAN: san.New(t, san.Options{Hosts: hosts, VGs: []san.VGSpec{{Name: "vg_san"}}})}
}

func TestFake(t *testing.T) {
	f := newFake(t, "kvm-a", "kvm-b")
	got, err := Run(context.Background(), f, Options{})
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(got), 80)
	require.Empty(t, got.Diff())
	_, err = f.SAN.Volume("vg_san", "conf1")
	require.Error(t, err, "nothing is left")
}

// TestSeesDifferences: a SAN that behaves in another way does not pass.
func TestSeesDifferences(t *testing.T) {
	f := newFake(t, "kvm-a", "kvm-b")
	_, err := f.SAN.AddFault(san.Fault{Kind: san.FaultExit, Tool: "lvchange", Match: "-asy", Times: 1, ExitCode: 3, Stderr: "  odd\n"})
	require.NoError(t, err)
	got, err := Run(context.Background(), f, Options{})
	require.NoError(t, err)
	require.Contains(t, got.Diff(), "+++ got\nexit 3\n2|  odd\n")
}

func TestOtherHostNamesAndSkip(t *testing.T) {
	f := newFake(t, "node1", "node2")
	var log []string
	got, err := Run(context.Background(), f, Options{
		Hosts: [2]string{"node1", "node2"}, Skip: []string{"thin", "snapshot"}, Log: func(l string) { log = append(log, l) },
	})
	require.NoError(t, err)
	require.Empty(t, got.Diff())
	require.NotContains(t, strings.Join(log, "\n"), "conf6")
	require.Contains(t, strings.Join(log, "\n"), "open kvm-a$ vg_san/conf1")
}

func TestLeftoversGo(t *testing.T) {
	f := newFake(t, "kvm-a", "kvm-b")
	_, err := f.SAN.AddLV("vg_san", san.LVSpec{Name: "conf1"})
	require.NoError(t, err)
	_, err = f.SAN.AddLV("vg_san", san.LVSpec{Name: "keep"})
	require.NoError(t, err)
	_, _, code, err := f.Run(context.Background(), "kvm-b", "lvchange -aey vg_san/conf1 vg_san/keep")
	require.NoError(t, err)
	require.Zero(t, code)
	got, err := Run(context.Background(), f, Options{})
	require.NoError(t, err)
	require.Empty(t, got.Diff())
	_, err = f.SAN.Volume("vg_san", "keep")
	require.NoError(t, err, "other volumes are left alone")
}

// broken is a Shell that cannot run anything from its nth command on.
type broken struct {
	Fake
	left int
}

func (b *broken) Run(ctx context.Context, host, cmd string) (string, string, int, error) {
	if b.left--; b.left < 0 {
		return "", "", 0, errors.New("no route to host")
	}
	return b.Fake.Run(ctx, host, cmd)
}

func TestShellFails(t *testing.T) {
	for _, left := range []int{0, 10} {
		_, err := Run(context.Background(), &broken{Fake: newFake(t, "kvm-a", "kvm-b"), left: left}, Options{})
		require.ErrorContains(t, err, "no route to host")
	}
}

func TestParse(t *testing.T) {
	steps, err := parseSteps("# c\n== title needs thin snapshot\nkvm-a$ x y\nexit 3\n1|  out\n2|err\n~kvm-b$ z\nopen kvm-a vg/lv\n== other\nkvm-a$ q\n")
	require.NoError(t, err)
	require.Equal(t, []step{
		{line: 3, needs: []string{"thin", "snapshot"}, kind: "run", host: "kvm-a", cmd: "x y", want: Outcome{Exit: 3, Stdout: []string{"  out"}, Stderr: []string{"err"}}},
		{line: 7, needs: []string{"thin", "snapshot"}, kind: "quiet", host: "kvm-b", cmd: "z"},
		{line: 8, needs: []string{"thin", "snapshot"}, kind: "open", host: "kvm-a", cmd: "vg/lv"},
		{line: 10, needs: []string{}, kind: "run", host: "kvm-a", cmd: "q"},
	}, steps)
	for _, bad := range []string{"1|before any", "kvm-a$ x\nexit y", "open kvm-a", "~kvm-a$ x\nexit 5", "kvm-a$ x\nnoise"} {
		_, err := parseSteps(bad)
		require.Error(t, err, bad)
	}
}

func TestNormalize(t *testing.T) {
	n := newNormalizer()
	n.name("pZpgZL-WPLZ-VNSv-Xjul-gkWG-XL6f-9HgcwX", "conf1")
	n.name("rzVnFw-xSeB-09td-ZB0l-XEew-JKuz-IwlU8M", "vg_san")
	for in, want := range map[string]string{
		"70254592                           lvm_vg_san           pZpgZL-WPLZ-VNSv-Xjul-gkWG-XL6f-9HgcwX 0000000327 0002 0001 3": "OOOOOOOO                           lvm_vg_san                                          <conf1> TTTTTTTTTT 0002 GGGG N",
		"LK LV ex pZpgZL-WPLZ-VNSv-Xjul-gkWG-XL6f-9HgcwX":                                                                       "LK LV ex <conf1>",
		"LK LV ex AHEJ6q-gy1M-ES2v-JzLi-cSbm-a6B4-pXAzEc":                                                                       "",
		"LK LV un pZpgZL-WPLZ-VNSv-Xjul-gkWG-XL6f-9HgcwX":                                                                       "",
		"p 236 lvmlockd": "",
		"vg_san-lv1:1":   "",
		"r lvm_vg_san:pZpgZL-WPLZ-VNSv-Xjul-gkWG-XL6f-9HgcwX:/dev/mapper/vg_san-lvmlock:70254592:3 p 236": "r lvm_vg_san:<conf1>:/dev/mapper/vg_san-lvmlock:OFFSET:VERSION p PID",
		"vg_san-conf1:0:LVM-rzVnFwxSeB09tdZB0lXEewJKuzIwlU8MpZpgZLWPLZVNSvXjulgkWGXL6f9HgcwX:L--w":        "vg_san-conf1:0:LVM-<vg_san><conf1>:L--w",
		"h 2 gen 12 timestamp 432 FAIL":                       "h 2 gen G timestamp T FAIL",
		"  LV locked by other host: vg_san/conf1 (host_id 2)": "  LV locked by other host: vg_san/conf1",
	} {
		require.Equal(t, want, strings.Join(n.lines(in+"\n"), "\n"), in)
	}
}
