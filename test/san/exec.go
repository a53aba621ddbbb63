package san

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Exit codes of LVM and of the fake itself.
const (
	exitOK       = 0
	exitUsage    = 3 // LVM: the command line makes no sense
	exitFailed   = 5 // LVM: anything else
	exitMissing  = 127
	exitTerm     = 143 // ended by SIGTERM
	exitHostDown = 255 // as ssh says it
)

// call is one run of a program.
type call struct {
	san    *SAN
	host   *Host
	ctx    context.Context
	boots  int // of the host when the call began
	tool   string
	args   []string
	faults []Fault
	out    bytes.Buffer
	err    bytes.Buffer
}

type tool func(*call) int

// tools are the programs by name.
func tools() map[string]tool {
	return map[string]tool{
		"lvchange": (*call).lvchange, "vgchange": (*call).vgchange, "lvcreate": (*call).lvcreate,
		"lvremove": (*call).lvremove, "lvresize": (*call).lvresize, "lvextend": (*call).lvresize,
		"lvreduce": (*call).lvresize, "lvs": (*call).lvs, "vgs": (*call).vgs,
		"lvmlockctl": (*call).lvmlockctl, "sanlock": (*call).sanlock, "dmsetup": (*call).dmsetup,
		"qemu-img": (*call).qemuImg,
	}
}

// Tools are the names of the programs that Exec knows.
func Tools() []string {
	names := []string{"prlimit", "lvm"}
	for name := range tools() {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Exec runs a program on the host, as a shell there would, and returns its exit code.
// argv[0] may be a path. Ending ctx is the program's SIGTERM.
func (h *Host) Exec(ctx context.Context, argv []string, stdout, stderr io.Writer) int {
	c := &call{san: h.san, host: h, ctx: ctx}
	code := c.run(argv)
	// Writing fails only where nobody reads any more.
	_, _ = stdout.Write(c.out.Bytes())
	_, _ = stderr.Write(c.err.Bytes())
	return code
}

func (c *call) run(argv []string) int {
	wrapped := len(argv) > 0 && filepath.Base(argv[0]) == "prlimit"
	if argv = unwrap(argv); len(argv) == 0 {
		return exitMissing
	}
	c.tool, c.args = filepath.Base(argv[0]), argv[1:]
	down := false
	err := c.san.view(func(st *state) error {
		hs := st.Hosts[c.host.name]
		down, c.boots = hs.Down, hs.Boots
		return nil
	})
	if err != nil {
		return c.broken(err)
	}
	if down {
		return c.hostDown()
	}
	fn := tools()[c.tool]
	if c.faults, err = c.san.hits(c.host.name, append([]string{c.tool}, c.args...)); err != nil {
		return c.broken(err)
	}
	if fn == nil || c.fault(FaultMissing, "") != nil {
		if wrapped {
			fmt.Fprintf(&c.err, "prlimit: failed to execute %s: No such file or directory\n", c.tool)
		} else {
			fmt.Fprintf(&c.err, "%s: command not found\n", c.tool)
		}
		return exitMissing
	}
	return c.withFaults(fn)
}

// withFaults runs a tool between the faults that concern the whole program.
func (c *call) withFaults(fn tool) int {
	hang := c.fault(FaultHang, "")
	if hang != nil && !hang.After && !c.hang(hang) {
		return exitTerm
	}
	if f := c.fault(FaultExit, ""); f != nil && (f.Volume == "" || c.tool != "lvchange") {
		c.err.WriteString(f.Stderr)
		return f.exitCode()
	}
	code := fn(c)
	if f := c.fault(FaultGarbage, ""); f != nil {
		c.out.Reset()
		c.out.WriteString(orDefault(f.Stdout, "  {\n      \"report\": [\n          {\n              \"lv\": [\n                  {\"lv_na\x00\xff"))
	}
	if f := c.fault(FaultWarnings, ""); f != nil {
		text := c.out.String()
		c.out.Reset()
		c.out.WriteString(orDefault(f.Stdout, "  WARNING: Device /dev/vdb not initialized in udev database even after waiting 10000000 microseconds.\n") + text)
	}
	if hang != nil && hang.After && !c.hang(hang) {
		c.out.Reset()
		c.err.Reset()
		return exitTerm
	}
	return code
}

// unwrap takes off what only runs another program: `prlimit --as=N CMD`, `lvm CMD`.
func unwrap(argv []string) []string {
	for len(argv) > 0 {
		switch filepath.Base(argv[0]) {
		case "prlimit":
			argv = argv[1:]
			for len(argv) > 0 && strings.HasPrefix(argv[0], "-") {
				argv = argv[1:]
			}
		case "lvm":
			argv = argv[1:]
		default:
			return argv
		}
	}
	return nil
}

// fault is the first fault of a kind that this call has met and that concerns volume;
// "" asks for any.
func (c *call) fault(kind FaultKind, volume string) *Fault {
	for i := range c.faults {
		f := &c.faults[i]
		if f.Kind == kind && (volume == "" || f.Volume == "" || f.Volume == volume) {
			return f
		}
	}
	return nil
}

func (f *Fault) exitCode() int {
	if f.ExitCode == 0 {
		return exitFailed
	}
	return f.ExitCode
}

// hang waits; false: SIGTERM came.
func (c *call) hang(f *Fault) bool {
	term := c.ctx.Done()
	if f.Stuck {
		term = nil
	}
	var end <-chan time.Time
	if f.For > 0 {
		t := time.NewTimer(f.For)
		defer t.Stop()
		end = t.C
	}
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-term:
			return false
		case <-end:
			return true
		case <-tick.C:
			if !c.san.armed(f.ID) {
				return true
			}
		}
	}
}

// wait lets the time go by that the real program takes, scaled.
func (c *call) wait(d time.Duration) {
	if d = time.Duration(float64(d) * c.san.DelayScale); d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-c.ctx.Done():
	}
}

var errHostDown = errors.New("host is down")

// update and view are the SAN's, for the host as it was when the call began: a program
// does not outlive its host.
func (c *call) update(fn func(*state, *hostState) error) error {
	return c.san.update(func(st *state) error {
		hs, err := c.still(st)
		if err != nil {
			return err
		}
		return fn(st, hs)
	})
}

func (c *call) view(fn func(*state, *hostState) error) error {
	return c.san.view(func(st *state) error {
		hs, err := c.still(st)
		if err != nil {
			return err
		}
		return fn(st, hs)
	})
}

func (c *call) still(st *state) (*hostState, error) {
	hs := st.Hosts[c.host.name]
	if hs.Down || hs.Boots != c.boots {
		return nil, errHostDown
	}
	return hs, nil
}

// broken reports a failure of the fake itself, or of the host.
func (c *call) broken(err error) int {
	if errors.Is(err, errHostDown) {
		return c.hostDown()
	}
	fmt.Fprintf(&c.err, "sanfake: %v\n", err)
	return 70
}

func (c *call) hostDown() int {
	c.out.Reset()
	c.err.Reset()
	fmt.Fprintf(&c.err, "host %s is down\n", c.host.name)
	return exitHostDown
}

// say and warn print as LVM does, indented by two spaces.
func (c *call) say(format string, a ...any)  { fmt.Fprintf(&c.out, "  "+format+"\n", a...) }
func (c *call) warn(format string, a ...any) { fmt.Fprintf(&c.err, "  "+format+"\n", a...) }

func orDefault(s, def string) string {
	if s == "" {
		return def
	}
	return s
}
