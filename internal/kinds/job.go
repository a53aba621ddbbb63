package kinds

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"virtlvm/internal/backend"
	"virtlvm/internal/command"
)

// lookAtJob turns the state of a job into a sight, without progress.
func lookAtJob(ctx context.Context, jobs Jobs, key string) (command.Sight, backend.Report) {
	r, err := jobs.Look(ctx, key)
	if err != nil {
		return command.Sight{Where: command.Unknown, Reason: oneLine(err.Error())}, r
	}
	s := command.Sight{Where: command.Running}
	switch r.State {
	case backend.Exited:
		s.Where, s.Reason = command.Ended, r.String()
	case backend.Gone:
		s.Where, s.Reason = command.Gone, r.String()
	case backend.Running:
	}
	return s, r
}

// ended makes sure that a job does nothing any more, and returns how it ended.
func ended(ctx context.Context, jobs Jobs, key string) (backend.Report, error) {
	r, err := jobs.Look(ctx, key)
	if err != nil {
		return r, err
	}
	if r.State == backend.Running {
		return r, notKnown("job %s still runs", key)
	}
	if r.OK() {
		return r, nil
	}
	// systemd may have been asked to start it, and do so late.
	begun, err := jobs.Revoke(key)
	if err != nil {
		return r, err
	}
	if begun && r.State == backend.Gone && r.Why == backend.NeverRan {
		return r, notKnown("job %s has begun only now", key)
	}
	return r, nil
}

// touched reports whether a job that has not ended well may have written something. How far it
// had come need not be on the disk after a power cut.
func touched(r backend.Report) bool {
	return r.Step > 0 || r.State == backend.Gone && (r.Why == backend.Rebooted || r.Why == backend.Lost)
}

// percent is what qemu-img -p prints, again and again on one line: "    (12.34/100%)".
var percent = regexp.MustCompile(`\(([0-9]+(?:\.[0-9]+)?)/100%\)`)

// permille is the last progress in the output of qemu-img, 0 where there is none.
func permille(out string) int64 {
	all := percent.FindAllStringSubmatch(out, -1)
	if len(all) == 0 {
		return 0
	}
	f, err := strconv.ParseFloat(all[len(all)-1][1], 64)
	if err != nil || f < 0 || f > 100 {
		return 0
	}
	return int64(f * 10)
}

// offset is a line of progress of zeroScript.
var offset = regexp.MustCompile(`(?m)^[0-9]+$`)

// lastWords are the last line a job has written that is no progress, standard error first.
func lastWords(stdout, stderr string) string {
	for _, text := range []string{stderr, offset.ReplaceAllString(percent.ReplaceAllString(stdout, ""), "")} {
		lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
		for i := len(lines) - 1; i >= 0; i-- {
			if line := oneLine(lines[i]); line != "" {
				return line
			}
		}
	}
	return ""
}

// why says how a job ended: its last words and its exit code.
func why(jobs Jobs, c command.Command, r backend.Report, began error) string {
	switch {
	case c.Cancelled != "":
		return "it was cancelled: " + c.Cancelled
	case began != nil && (r.State == backend.Gone || r.Step == 0):
		return began.Error()
	case r.State == backend.Gone && (r.Why == backend.NeverRan || r.Why == backend.Missing):
		return "the daemon ended before it began"
	}
	stdout, stderr, err := jobs.Output(c.Key)
	if err != nil {
		return r.String()
	}
	if words := lastWords(stdout, stderr); words != "" {
		return fmt.Sprintf("%s (%s)", words, r)
	}
	return r.String()
}
