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
	log    *reportLog // takes what warn and fail print; nil: stderr does
}

type tool func(*call) int

// tools are the programs by name.
func tools() map[string]tool {
	return map[string]tool{
		"lvchange": (*call).lvchange, "vgchange": (*call).vgchange, "lvcreate": (*call).lvcreate,
		"lvremove": (*call).lvremove, "lvresize": (*call).lvresize, "lvextend": (*call).lvresize,
		"lvreduce": (*call).lvresize, "lvs": (*call).lvs, "vgs": (*call).vgs, "pvs": (*call).pvs, "lvmconfig": (*call).lvmconfig,
		"lvmlockctl": (*call).lvmlockctl, "sanlock": (*call).sanlock, "dmsetup": (*call).dmsetup,
		"qemu-img": (*call).qemuImg, "blkdiscard": (*call).discard,
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
	fn := c.san.tools()[c.tool]
	faulty, err := c.begin()
	if err != nil {
		return c.broken(err)
	}
	if faulty {
		if c.faults, err = c.san.hits(c.host.name, append([]string{c.tool}, c.args...)); err != nil {
			return c.broken(err)
		}
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

// begin looks whether the host is up, and whether a fault is armed for it.
func (c *call) begin() (faulty bool, err error) {
	err = c.san.view(func(st *state) error {
		hs := st.Hosts[c.host.name]
		if hs.Down {
			return errHostDown
		}
		c.boots = hs.Boots
		argv := append([]string{c.tool}, c.args...)
		faulty = slices.ContainsFunc(st.Faults, func(f *Fault) bool { return f.matches(c.host.name, argv) })
		return nil
	})
	return faulty, err
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

// wait lets the time go by that the real program takes, scaled.
func (c *call) wait(d time.Duration) {
	if c.san.Wait != nil {
		c.san.Wait(c.ctx, c.host.name, append([]string{c.tool}, c.args...), d)
		return
	}
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
func (c *call) say(format string, a ...any) { fmt.Fprintf(&c.out, "  "+format+"\n", a...) }

func (c *call) warn(format string, a ...any) {
	if c.log != nil {
		c.log.add("warn", fmt.Sprintf(format, a...))
		return
	}
	fmt.Fprintf(&c.err, "  "+format+"\n", a...)
}

// fail is warn for what LVM logs as an error; only a report tells the two apart.
func (c *call) fail(format string, a ...any) {
	if c.log != nil {
		c.log.add("error", fmt.Sprintf(format, a...))
		return
	}
	c.warn(format, a...)
}

func orDefault(s, def string) string {
	if s == "" {
		return def
	}
	return s
}
