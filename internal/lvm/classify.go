package lvm

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"virtlvm/internal/api"
	"virtlvm/internal/run"
)

// Classify turns what a Runner returned for a command of this package into a typed
// error: *Error for what LVM says it did not do, also where it then exits with 0 (a lock
// that could not be dropped); *api.Error, with the Runner's error behind it, where the
// program is missing (locking), has not ended (stuck) or was ended by its deadline
// (unknown). nil means that LVM reported success, which is no proof.
func Classify(cmd run.Cmd, res run.Result, err error) error {
	var exit *run.ExitError
	var missing *run.NotFoundError
	var late *run.TimeoutError
	switch {
	case err == nil:
		return classifyExit(cmd, res, nil)
	case errors.As(err, &late):
		return lateError(late, err)
	case errors.As(err, &missing):
		return api.WrapError(api.KindLocking, fmt.Sprintf("%v; are lvm2 and lvm2-lockd installed?", err), err)
	case errors.As(err, &exit):
		return classifyExit(cmd, res, exit)
	}
	return err
}

func lateError(late *run.TimeoutError, err error) error {
	line := strings.Join(late.Argv, " ")
	select {
	case <-late.Done:
		return api.WrapError(api.KindUnknown, fmt.Sprintf("%s was ended by its deadline: what it did is not known", line), err)
	default:
		return api.WrapError(api.KindStuck, fmt.Sprintf("%s (pid %d) has passed its deadline and still runs: is the storage there?", line, late.PID), err)
	}
}

// classifyExit reads stderr. exit is nil for exit code 0.
func classifyExit(cmd run.Cmd, res run.Result, exit *run.ExitError) error {
	stderr := string(res.Stderr)
	if exit != nil && stderr == "" {
		stderr = exit.Stderr // how it was ended, where it said nothing itself
	}
	e := &Error{Argv: cmd.Argv(), Stderr: stderr, Failures: parseStderr(cmd, stderr)}
	if exit == nil {
		// Success with complaints: only a lock that stays is a failure all the same.
		e.Failures = slices.DeleteFunc(e.Failures, func(f Failure) bool { return f.Kind != UnlockFailed })
		if len(e.Failures) == 0 {
			return nil
		}
		return e
	}
	e.ExitCode, e.cause = exit.ExitCode, exit
	if len(e.Failures) == 0 {
		e.Failures = []Failure{{Kind: Other, Reason: lastWords(stderr, exit.ExitCode), Stderr: stderr}}
	}
	return e
}

// lastWords is the last line that is no warning.
func lastWords(stderr string, code int) string {
	words := ""
	for line := range strings.Lines(stderr) {
		if line = strings.TrimSpace(line); line != "" && (words == "" || !chatter(line)) {
			words = line
		}
	}
	if words == "" {
		return fmt.Sprintf("it exited with code %d and said nothing", code)
	}
	return words
}

// chatter tells lines that explain or warn, and are no failure in themselves.
func chatter(line string) bool {
	for _, prefix := range []string{"WARNING:", "Reading VG ", "Retrying ", "Skipping ", "File descriptor ", "Duplicate "} {
		if strings.HasPrefix(line, prefix) {
			return true
		}
	}
	return false
}
