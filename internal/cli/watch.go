package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"virtlvm/internal/api"
	"virtlvm/internal/client"
	"virtlvm/internal/model"
)

// patientWatch is how long a daemon may be away while a command is watched: it may be
// restarted meanwhile.
const patientWatch = 2 * time.Minute

// stalled is how long nothing may move before it is said.
const stalled = 30 * time.Second

// everyLine is the longest time without a line where the output is no terminal.
const everyLine = time.Minute

// watch follows a command until it has ended, or nobody but a person can say how.
func (p *program) watch(c *cli.Context, conn *client.Client, id int64) error {
	w := watcher{p: p, json: c.Bool("json")}
	heard := time.Now()
	for {
		command, err := limited(c, quick, func(ctx context.Context) (api.Command, error) { return conn.FreshCommand(ctx, id) })
		switch {
		case c.Err() != nil:
			return w.leave(id)
		case err == nil:
			heard = time.Now()
			if ended, err := w.show(command); ended || err != nil {
				return err
			}
		case api.KindOf(err) != api.KindUnreachable || time.Since(heard) > patientWatch:
			w.clear()
			return err
		}
		if err := p.out.Flush(); err != nil {
			return err
		}
		select {
		case <-time.After(p.pause):
		case <-c.Done():
			return w.leave(id)
		}
	}
}

// watcher prints what changes.
type watcher struct {
	p       *program
	json    bool
	last    api.Command
	percent int64
	printed time.Time
	bar     bool // the last line is a progress bar
}

// show prints a look at the command; ended: there is nothing more to come.
func (w *watcher) show(c api.Command) (ended bool, err error) {
	now := time.Now()
	first := w.last.ID == 0
	moved := first || c.State != w.last.State || c.PeerState != w.last.PeerState
	ended = !c.Finished.IsZero() || c.State == string(model.StateReconcileSkip)
	w.last = c
	switch {
	case w.json:
		if p := percent(c.Progress); moved || p != w.percent || ended {
			w.percent = p
			data, err := json.Marshal(c)
			if err != nil {
				return true, err
			}
			w.p.printf("%s\n", data)
		}
	case ended:
		w.clear()
	case w.p.width > 0:
		w.clear()
		w.p.printf("%s", bar(c, now, w.p.width-1))
		w.bar = true
	default:
		if p := percent(c.Progress) / 10; moved || p != w.percent || now.Sub(w.printed) >= everyLine {
			w.percent, w.printed = p, now
			w.p.printf("%s\n", describe(c, now))
		}
	}
	if !ended {
		return false, nil
	}
	err = verdict(c)
	if err == nil && !w.json {
		w.p.printf("%s (command %d)\n", cell(result(c)), c.ID)
	}
	return true, err
}

// clear takes the progress bar away.
func (w *watcher) clear() {
	if w.bar {
		w.p.printf("\r\x1b[K")
	}
	w.bar = false
}

// leave ends the watch; the command goes on.
func (w *watcher) leave(id int64) error {
	w.clear()
	return api.NewError(api.KindUnknown, fmt.Sprintf("command %d goes on by itself; watch it again with `virtlvm command watch %d`", id, id))
}

// describe is one line about a command that goes on.
func describe(c api.Command, now time.Time) string {
	state := c.State
	if c.PeerState != "" {
		state = fmt.Sprintf("%s on %s", c.PeerState, c.Executor)
	}
	text := fmt.Sprintf("%s  command %d  %s", stamp(now), c.ID, line(state))
	if p := progress(c.Progress, now); p != "" {
		return text + "  " + line(p)
	}
	return text + after("  ", line(c.Why))
}

// bar is describe for one line of a terminal that is width wide.
func bar(c api.Command, now time.Time, width int) string {
	const cells = 25
	p := c.Progress
	if p == nil || p.Total <= 0 {
		return clip(describe(c, now), width)
	}
	full := int(min(max(p.Done, 0), p.Total) * cells / p.Total)
	return clip(fmt.Sprintf("command %d  [%s%s]  %s", c.ID, strings.Repeat("#", full), strings.Repeat(".", cells-full), line(progress(p, now))), width)
}

func clip(s string, width int) string {
	if width > 0 && utf8.RuneCountInString(s) > width {
		return string([]rune(s)[:width])
	}
	return s
}

// progress is how far a command has come, as people read it: "42% of 10.00 GiB, 120.00 MiB/s,
// 49s left".
func progress(p *api.Progress, now time.Time) string {
	if p == nil {
		return ""
	}
	var parts []string
	switch {
	case p.Total > 0:
		parts = append(parts, fmt.Sprintf("%d%% of %s", percent(p), size(p.Total)))
	case p.Done > 0:
		parts = append(parts, size(p.Done))
	}
	if p.Phase != "" {
		parts = append(parts, p.Phase)
	}
	if still := p.At.Sub(p.Moved); !p.Moved.IsZero() && still >= stalled {
		return strings.Join(append(parts, "stalled for "+took(still)), ", ")
	}
	if p.Speed > 0 {
		parts = append(parts, size(p.Speed)+"/s")
	}
	if p.Left > 0 {
		parts = append(parts, took(time.Duration(p.Left)*time.Second)+" left")
	}
	if old := now.Sub(p.At); !p.At.IsZero() && old >= 2*time.Minute {
		parts = append(parts, "seen "+took(old)+" ago")
	}
	return strings.Join(parts, ", ")
}

func percent(p *api.Progress) int64 {
	if p == nil || p.Total <= 0 {
		return 0
	}
	return int64(float64(min(max(p.Done, 0), p.Total)) / float64(p.Total) * 100)
}

// widthOf is the width of the terminal that out is; 0 if it is none.
func widthOf(out io.Writer) int {
	f, ok := out.(*os.File)
	if !ok {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	switch {
	case errors.Is(err, unix.ENOTTY), err != nil:
		return 0
	case size.Col == 0:
		return 80
	}
	return int(size.Col)
}
