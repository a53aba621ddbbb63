package backend_test

import (
	"context"
	"errors"

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
