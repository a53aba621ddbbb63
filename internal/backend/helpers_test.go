package backend_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"virtlvm/internal/backend"
)

// broken is a systemd that cannot be reached.
type broken struct{}

var errNoBus = errors.New("no bus")

func (broken) Start(context.Context, backend.Unit) error { return errNoBus }

func (broken) State(context.Context, string) (backend.UnitState, error) {
	return backend.UnitState{}, errNoBus
}
func (broken) Stop(context.Context, string) error   { return errNoBus }
func (broken) Forget(context.Context, string) error { return errNoBus }

// killAll kills the shell of a job and what it has started.
func killAll(shell string) error {
	pid, err := strconv.Atoi(strings.TrimSpace(shell))
	if err != nil {
		return err
	}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return err
	}
	// The shell first, or it would still write its record.
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return err
	}
	for _, child := range strings.Fields(string(children)) {
		n, err := strconv.Atoi(child)
		if err != nil {
			return err
		}
		if err := syscall.Kill(n, syscall.SIGKILL); err != nil {
			return err
		}
	}
	return nil
}
