package hook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"syscall"
	"time"

	"virtlvm/internal/api"
)

// maxAnswer is the largest answer that is read, in bytes: a domain XML in base64 and
// some room.
const maxAnswer = maxXML/3*4 + 1<<20

// answerError is an answer that is no verdict.
type answerError struct {
	status  int    // HTTP status
	message string // virtlvmd's own words, may be empty
}

func (e *answerError) Error() string {
	if e.message != "" {
		return e.message
	}
	return fmt.Sprintf("virtlvmd answered HTTP status %d", e.status)
}

// garbageError is an answer with status 2xx that cannot be understood.
type garbageError struct{ err error }

func (e *garbageError) Error() string {
	return fmt.Sprintf("virtlvmd gave an answer that cannot be understood (%v)", e.err)
}

// post sends the call and returns the verdict. The error is *answerError,
// *garbageError, or one of the connection.
func post(ctx context.Context, socket string, call api.HookCall) (api.HookVerdict, error) {
	var verdict api.HookVerdict
	body, err := json.Marshal(call)
	if err != nil {
		return verdict, fmt.Errorf("cannot encode the call: %w", err)
	}
	transport := &http.Transport{
		DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, socket) },
		DisableKeepAlives:  true,
		DisableCompression: true,
	}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://virtlvmd"+api.RouteHook, bytes.NewReader(body))
	if err != nil {
		return verdict, fmt.Errorf("cannot make the request: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return verdict, err
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return verdict, err
	}
	if resp.StatusCode/100 != 2 {
		e := &answerError{status: resp.StatusCode}
		var body api.Error
		if json.Unmarshal(data, &body) == nil {
			e.message = body.Message
		}
		return verdict, e
	}
	if len(data) > maxAnswer {
		return verdict, &garbageError{errors.New("too long")}
	}
	if err := json.Unmarshal(data, &verdict); err != nil {
		return api.HookVerdict{}, &garbageError{err}
	}
	return verdict, nil
}

// dial connects to the socket. Where more hooks wait than its queue takes, as when all
// guests of a host end at once, the kernel says EAGAIN: wait for a place.
func dial(ctx context.Context, socket string) (net.Conn, error) {
	const pause = 50 * time.Millisecond
	var dialer net.Dialer
	for {
		conn, err := dialer.DialContext(ctx, "unix", socket)
		if !errors.Is(err, syscall.EAGAIN) {
			return conn, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
