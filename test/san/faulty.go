package san

import "time"

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
