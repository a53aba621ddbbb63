package peer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"regexp"
	"strings"
	"time"
	"unicode"

	"virtlvm/internal/api"
)

// maxAnswer bounds an answer: far above all volumes of a guest.
const maxAnswer = 4 << 20

// RemoteError is what the daemon of another host has answered, with the kind it gave.
type RemoteError struct {
	Peer string
	Err  *api.Error
}

// Error is the other host's message after its name.
func (e *RemoteError) Error() string { return e.Peer + ": " + e.Err.Message }

// Answered tells it from a host that cannot be asked: this one is there.
func (e *RemoteError) Answered() {}

// Unwrap returns the answer.
func (e *RemoteError) Unwrap() error { return e.Err }

// Do makes one request of the daemon on host name: in is sent as JSON (nil: no body), the
// answer is decoded into out (nil: it is not looked at). The deadline is that of ctx, or
// call_timeout where it has none.
//
// A request that was surely not sent is tried once more on a fresh connection. One that
// may have been received is not; see the package for the kinds of errors.
func (p *Peers) Do(ctx context.Context, name, method, path string, in, out any) (err error) {
	began := time.Now()
	defer func() { p.observe(name, began, err) }()
	l, err := p.link(name)
	if err != nil {
		return err
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, p.Config().CallTimeout)
		defer cancel()
	}
	defer l.rest()
	var body []byte
	if in != nil {
		if body, err = json.Marshal(in); err != nil {
			return api.NewError(api.KindInternal, fmt.Sprintf("cannot ask %s: %v", name, err))
		}
	}
	answer, err := l.once(ctx, method, path, body)
	if errors.Is(err, errUnsent) && ctx.Err() == nil {
		// The other kept connections may be as dead as this one was.
		l.transport.CloseIdleConnections()
		answer, err = l.once(ctx, method, path, body)
	}
	if err != nil {
		return l.explain(ctx, method, err)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return l.odd(method, fmt.Sprintf("its answer to %s cannot be understood", path))
	}
	return nil
}

// errUnsent marks a request that the other host has surely not received.
var errUnsent = errors.New("not sent")

// oddError is an answer that came and is of no use.
type oddError struct{ what string }

func (e *oddError) Error() string { return e.what }

// once makes one try. The error is errUnsent, an *api.Error or *RemoteError, an
// *oddError, or that of a connection which broke after the request had left.
func (l *link) once(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	var conn *countedConn
	var mark int64
	trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		if c, ok := info.Conn.(*countedConn); ok {
			conn, mark = c, c.mark()
		}
	}}
	var content io.Reader
	if body != nil {
		// Without the type of the reader the transport cannot send it twice by itself.
		content = io.NopCloser(bytes.NewReader(body))
	}
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, trace), method, "http://virtlvmd"+path, content)
	if err != nil {
		return nil, api.NewError(api.KindInternal, fmt.Sprintf("cannot ask %s: %v", l.name, err))
	}
	req.ContentLength = int64(len(body))
	req.Header.Set("Content-Type", "application/json")
	resp, err := l.transport.RoundTrip(req)
	if err != nil {
		var typed *api.Error
		switch {
		case errors.As(err, &typed): // no connection
			return nil, err
		case conn == nil || conn.seal(mark):
			return nil, fmt.Errorf("%w: %w", errUnsent, err)
		}
		return nil, err
	}
	defer resp.Body.Close()
	tooLarge := &oddError{fmt.Sprintf("its answer is larger than %d MiB", maxAnswer>>20)}
	if resp.ContentLength > maxAnswer {
		return nil, tooLarge
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("its answer broke off: %w", err)
	case len(data) > maxAnswer:
		return nil, tooLarge
	case resp.StatusCode/100 != 2:
		return nil, l.refusal(resp.StatusCode, data)
	}
	return data, nil
}

// refusal turns an answer that is not 2xx into the error it carries.
func (w where) refusal(status int, data []byte) error {
	var e api.Error
	if json.Unmarshal(data, &e) != nil || e.Kind == "" || e.Message == "" {
		return &oddError{fmt.Sprintf("it answers %d without a reason", status)}
	}
	if !kindForm.MatchString(string(e.Kind)) {
		e.Kind = api.KindInternal
	}
	return &RemoteError{Peer: w.name, Err: api.NewError(e.Kind, tidy(e.Message))}
}

// kindForm is how kinds are written; a newer host may have one we do not know.
var kindForm = regexp.MustCompile(`^[a-z_]{1,32}$`)

// tidy makes what another host says one line of bearable length.
func tidy(s string) string {
	const most = 1000
	s = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(s, "?"), func(r rune) bool {
		return r == ' ' || !unicode.IsPrint(r)
	}), " ")
	if runes := []rune(s); len(runes) > most {
		s = string(runes[:most]) + "..."
	}
	return s
}

// explain makes the one line for an administrator.
func (l *link) explain(ctx context.Context, method string, err error) error {
	var typed *api.Error
	var odd *oddError
	switch {
	case errors.As(err, &typed):
		return err
	case errors.As(err, &odd):
		return l.odd(method, odd.what)
	}
	why := "the connection broke off"
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		why = "no answer in time"
	case ctx.Err() != nil:
		why = "the answer was not waited for"
	case strings.Contains(err.Error(), "malformed HTTP"):
		why = "what answers is not virtlvmd"
	}
	if errors.Is(err, errUnsent) {
		return api.WrapError(api.KindUnreachable, fmt.Sprintf("cannot reach %s: %s; try `virtlvm peer test %s`", l.name, why, l.name), err)
	}
	return l.lost(method, why, err)
}

// odd is an answer that tells nothing.
func (l *link) odd(method, what string) error {
	return l.lost(method, what+"; compare `virtlvm version` on both hosts", nil)
}

// lost is a request that has left and whose answer is not known: a question can simply be
// asked again, anything else may have been done.
func (l *link) lost(method, why string, cause error) error {
	if method == http.MethodGet {
		return api.WrapError(api.KindUnreachable, fmt.Sprintf("%s cannot be asked: %s", l.name, why), cause)
	}
	return api.WrapError(api.KindUnknown, fmt.Sprintf("%s may or may not have done it: %s", l.name, why), cause)
}
