package client

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"syscall"

	"virtlvm/internal/api"
)

// explain turns a failure of the connection into an *api.Error with the fix.
//
// Before the connection stood, nothing was asked: the daemon is unreachable. After it,
// a request that changes something may have been carried out: the outcome is unknown.
func (d *door) explain(ctx context.Context, method string, err error) error {
	var dial *dialError
	if errors.As(err, &dial) && ctx.Err() == nil {
		return dial.explain()
	}
	why := "broke off the connection"
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		why = "did not answer in time"
	case errors.Is(ctx.Err(), context.Canceled):
		why = "was not waited for"
	}
	if method == http.MethodGet || dial != nil {
		return api.NewError(api.KindUnreachable, fmt.Sprintf("virtlvmd%s %s; see `systemctl status virtlvmd`%s", d.where, why, d.where))
	}
	return api.NewError(api.KindUnknown, fmt.Sprintf("virtlvmd%s %s, so the outcome is not known: it may still go on; look with `virtlvm commands`", d.where, why))
}

func (e *dialError) explain() error {
	var typed *api.Error
	switch {
	case errors.As(e.err, &typed):
		return typed
	case errors.Is(e.err, fs.ErrPermission):
		return api.NewError(api.KindForbidden, fmt.Sprintf("may not open %s: run as root or as a member of its group", e.socket))
	case errors.Is(e.err, fs.ErrNotExist):
		return api.NewError(api.KindUnreachable, fmt.Sprintf("virtlvmd cannot be reached: there is no %s; run `systemctl start virtlvmd.socket virtlvmd.service`", e.socket))
	case errors.Is(e.err, syscall.ECONNREFUSED):
		return api.NewError(api.KindUnreachable, fmt.Sprintf("virtlvmd cannot be reached: nobody listens on %s; run `systemctl restart virtlvmd.socket virtlvmd.service`", e.socket))
	}
	return api.NewError(api.KindUnreachable, fmt.Sprintf("virtlvmd cannot be reached: %v; see `systemctl status virtlvmd.socket virtlvmd.service`", e.Error()))
}
