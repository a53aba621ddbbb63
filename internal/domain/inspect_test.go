package domain

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/run"
)

// fakeQemu answers qemu-img from a table of headers by path, and keeps the commands.
type fakeQemu struct {
	out  map[string]string
	err  error
	cmds []run.Cmd
}

func (f *fakeQemu) Run(_ context.Context, cmd run.Cmd) (run.Result, error) {
	f.cmds = append(f.cmds, cmd)
	if f.err != nil {
		return run.Result{ExitCode: 1}, f.err
	}
	path := cmd.Args[len(cmd.Args)-1]
	out, ok := f.out[path]
	if !ok {
		return run.Result{ExitCode: 1}, &run.ExitError{
			Argv: cmd.Argv(), ExitCode: 1,
			Stderr: "warning\nqemu-img: Could not open '" + path + "': Image is not in qcow2 format\n",
		}
	}
	return run.Result{Stdout: []byte(out)}, nil
}

// header is the output of qemu-img 7.2 for a qcow2 image, shortened.
func header(backing, format string) string {
	more := ""
	if backing != "" {
		more = fmt.Sprintf(`"full-backing-filename": %q, "backing-filename": %q,`, backing, backing)
	}
	if format != "" {
		more += fmt.Sprintf(`"backing-filename-format": %q,`, format)
	}
	return `{` + more + `
    "virtual-size": 1048576,
    "filename": "x",
    "format": "qcow2",
    "format-specific": {"type": "qcow2", "data": {"compat": "1.1", "corrupt": false}},
    "dirty-flag": false
}
`
}

func TestInspectCommand(t *testing.T) {
	f := &fakeQemu{out: map[string]string{"/dev/vg/top": header("/dev/vg/base", "qcow2")}}
	i := &Inspector{Runner: f}
	h, err := i.Inspect(t.Context(), Source{Path: "/dev/vg/top", Format: "qcow2"})
	require.NoError(t, err)
	assert.Equal(t, Header{Size: 1 << 20, Backing: &Source{Path: "/dev/vg/base", Format: "qcow2"}}, h)
	assert.Equal(t, []run.Cmd{{
		Name: "prlimit",
		Args: []string{
			"--as=1073741824", "--cpu=10", "qemu-img", "info", "-U", "-f", "qcow2", "--output=json", "/dev/vg/top",
		},
		Timeout: 30 * time.Second,
	}}, f.cmds)
}

// What a disk is declared to be decides, whatever its content says.
func TestInspectNeverProbes(t *testing.T) {
	for _, format := range []string{"raw", "", "luks", "vmdk", "vdi", "host_device", "--help", "qcow3"} {
		f := &fakeQemu{out: map[string]string{"/dev/vg/lv": header("/dev/vg/other", "raw")}}
		i := &Inspector{Runner: f}
		h, err := i.Inspect(t.Context(), Source{Path: "/dev/vg/lv", Format: format})
		require.NoError(t, err)
		assert.Empty(t, h)
		assert.Empty(t, f.cmds, "an image of format %q must not be opened", format)
	}
}

func TestInspectHeaders(t *testing.T) {
	for name, c := range map[string]struct {
		out  string
		want Header
	}{
		"none":            {header("", ""), Header{Size: 1 << 20}},
		"no format":       {header("/dev/vg/base", ""), Header{Size: 1 << 20, Backing: &Source{Path: "/dev/vg/base", Format: "raw"}}},
		"relative":        {header("base", "qcow2"), Header{Size: 1 << 20, Backing: &Source{Path: "/dev/vg/base", Format: "qcow2"}}},
		"relative up":     {header("../vg2/base", "raw"), Header{Size: 1 << 20, Backing: &Source{Path: "/dev/vg/../vg2/base", Format: "raw"}}},
		"network":         {header("nbd://host/x", "qcow2"), Header{Size: 1 << 20, Backing: &Source{Format: "qcow2"}}},
		"warning before":  {"warning: {odd} stuff\n" + header("base", "raw"), Header{Size: 1 << 20, Backing: &Source{Path: "/dev/vg/base", Format: "raw"}}},
		"data file":       {strings.Replace(header("", ""), `"corrupt"`, `"data-file": "data", "corrupt"`, 1), Header{Size: 1 << 20, Data: &Source{Path: "/dev/vg/data", Format: "raw"}}},
		"qed":             {`{"format": "qcow2", "backing-filename": "b"}`, Header{Backing: &Source{Path: "/dev/vg/b", Format: "raw"}}},
		"newline in name": {header("/dev/vg/a\nb", "raw"), Header{Size: 1 << 20, Backing: &Source{Path: "/dev/vg/a\nb", Format: "raw"}}},
	} {
		t.Run(name, func(t *testing.T) {
			i := &Inspector{Runner: &fakeQemu{out: map[string]string{"/dev/vg/top": c.out}}}
			h, err := i.Inspect(t.Context(), Source{Path: "/dev/vg/top", Format: "qcow2"})
			require.NoError(t, err)
			assert.Equal(t, c.want, h)
		})
	}
}

func TestInspectRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		out  string
		err  error
		want string
	}{
		"empty":         {out: " ", want: "no usable JSON"},
		"garbage":       {out: "segfault", want: "no usable JSON"},
		"truncated":     {out: header("a", "raw")[:60], want: "no usable JSON"},
		"garbage after": {out: header("a", "raw") + "x", want: "no usable JSON"},
		"wrong type":    {out: `{"format": "qcow2", "backing-filename": 7}`, want: "no usable JSON"},
		"other format":  {out: `{"format": "raw"}`, want: `reports format "raw"`},
		"no format":     {out: `{}`, want: `reports format ""`},
		"unknown ref":   {out: header("fat:/dev/vg/x", "raw"), want: `cannot tell what "fat:/dev/vg/x" names`},
		"json data":     {out: `{"format": "qcow2", "format-specific": {"data": {"data-file": "json:{}"}}}`, want: "data file: cannot tell"},
		"not installed": {err: &run.NotFoundError{Name: "prlimit", Err: exec.ErrNotFound}, want: "cannot run prlimit"},
		"hangs":         {err: &run.TimeoutError{Argv: []string{"prlimit"}, PID: 7}, want: "has not answered in time"},
		"killed":        {err: &run.ExitError{Argv: []string{"prlimit"}, ExitCode: -1}, want: "exit code -1"},
		"other image":   {want: "Could not open '/dev/vg/top': Image is not in qcow2 format"},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fakeQemu{out: map[string]string{}, err: c.err}
			if c.out != "" {
				f.out["/dev/vg/top"] = c.out
			}
			_, err := (&Inspector{Runner: f}).Inspect(t.Context(), Source{Path: "/dev/vg/top", Format: "qcow2"})
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, `the image header of "/dev/vg/top", format qcow2`)
			assert.NotContains(t, err.Error(), "\n")
		})
	}

	f := &fakeQemu{}
	for want, s := range map[string]Source{
		"not an absolute path":     {Path: "-x", Format: "qcow2"},
		"storage pool \"p\"":       {Pool: "p", Volume: "v", Format: "qcow2"},
		"declare the <backingStor": {Path: "/dev/vg/lv", Format: "qcow2", Sliced: true},
	} {
		_, err := (&Inspector{Runner: f}).Inspect(t.Context(), s)
		require.ErrorContains(t, err, want)
	}
	assert.Empty(t, f.cmds)
}

// execRunner runs commands for real.
type execRunner struct{}

func (execRunner) Run(ctx context.Context, cmd run.Cmd) (run.Result, error) {
	var out, errOut bytes.Buffer
	c := exec.CommandContext(ctx, cmd.Name, cmd.Args...)
	c.Stdout, c.Stderr = &out, &errOut
	err := c.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = &run.ExitError{Argv: cmd.Argv(), ExitCode: exit.ExitCode(), Stderr: errOut.String()}
	}
	return run.Result{Stdout: out.Bytes(), Stderr: errOut.Bytes()}, err
}

// The real qemu-img, where there is one, must print what the fake does.
func TestInspectRealImages(t *testing.T) {
	for _, tool := range []string{"prlimit", "qemu-img"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip("the real tools are not on this machine: ", err)
		}
	}
	dir := t.TempDir()
	create := func(args ...string) {
		out, err := exec.Command("qemu-img", append([]string{"create", "-q", "-f"}, args...)...).CombinedOutput()
		require.NoError(t, err, string(out))
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	json := `json:{"driver":"raw","file":{"driver":"file","filename":"` + at("base") + `"}}`
	create("raw", at("base"), "1M")
	create("qcow2", "-b", "base", "-F", "raw", at("relative"))
	create("qcow2", "-b", at("relative"), "-F", "qcow2", at("absolute"))
	create("qcow2", "-b", json, "-F", "raw", at("json"))
	create("qcow2", "-o", "data_file="+at("data"), at("split"), "1M")
	create("qcow2", at("alone"), "1M")
	create("qed", "-b", at("base"), "-F", "raw", at("qed"))
	i := &Inspector{Runner: execRunner{}}
	raw := &Source{Path: at("base"), Format: "raw"}
	for _, c := range []struct {
		s    Source
		want Header
	}{
		{Source{Path: at("relative"), Format: "qcow2"}, Header{Size: 1 << 20, Backing: raw}},
		{Source{Path: at("absolute"), Format: "qcow2"}, Header{Size: 1 << 20, Backing: &Source{Path: at("relative"), Format: "qcow2"}}},
		{Source{Path: at("json"), Format: "qcow2"}, Header{Size: 1 << 20, Backing: raw}},
		{Source{Path: at("split"), Format: "qcow2"}, Header{Size: 1 << 20, Data: &Source{Path: at("data"), Format: "raw"}}},
		{Source{Path: at("alone"), Format: "qcow2"}, Header{Size: 1 << 20}},
		{Source{Path: at("qed"), Format: "qed"}, Header{Size: 1 << 20, Backing: raw}},
		{Source{Path: at("alone"), Format: "raw"}, Header{}},
	} {
		h, err := i.Inspect(t.Context(), c.s)
		require.NoError(t, err)
		assert.Equal(t, c.want, h, c.s)
	}
	_, err := i.Inspect(t.Context(), *raw.as("qcow2"))
	require.ErrorContains(t, err, "Image is not in qcow2 format")
	_, err = i.Inspect(t.Context(), Source{Path: at("missing"), Format: "qcow2"})
	require.ErrorContains(t, err, "No such file")
}

func (s Source) as(format string) *Source {
	s.Format = format
	return &s
}
