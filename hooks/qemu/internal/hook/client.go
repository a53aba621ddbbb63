package hook

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"virtlvm/internal/api"
)

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
//
// It speaks HTTP/1.0 by itself: net/http, with all of TLS below it, would double this
// program, and libvirt waits for its start at each step of each guest's life.
func post(ctx context.Context, socket string, call api.HookCall) (api.HookVerdict, error) {
	var verdict api.HookVerdict
	body, err := json.Marshal(call)
	if err != nil {
		return verdict, fmt.Errorf("cannot encode the call: %w", err)
	}
	status, data, err := exchange(ctx, socket, body)
	if err != nil {
		return verdict, err
	}
	if status/100 != 2 {
		e := &answerError{status: status}
		var body api.Error
		if json.Unmarshal(data, &body) == nil {
			e.message = body.Message
		}
		return verdict, e
	}
	if err := json.Unmarshal(data, &verdict); err != nil {
		return api.HookVerdict{}, &garbageError{err}
	}
	return verdict, nil
}

// exchange sends one request and reads the whole answer.
func exchange(ctx context.Context, socket string, body []byte) (status int, answer []byte, err error) {
	conn, err := dial(ctx, socket)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = conn.Close() }()
	// Whatever waits on the connection when ctx ends, ends.
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	head := fmt.Sprintf("POST %s HTTP/1.0\r\nHost: virtlvmd\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", api.RouteHook, len(body))
	_, writeErr := conn.Write(append([]byte(head), body...))
	// One that does not want to read everything may have said why.
	status, answer, err = readAnswer(bufio.NewReader(conn))
	switch {
	case err == nil:
		return status, answer, nil
	case ctx.Err() != nil:
		return 0, nil, ctx.Err()
	case writeErr != nil:
		return 0, nil, writeErr
	}
	return 0, nil, err
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
