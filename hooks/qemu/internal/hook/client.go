package hook

import (
	"bufio"
	"encoding/json"
	"fmt"

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
// *garbageError, *dialError, or one of the connection. It may block for ever: see run.cut.
//
// It speaks HTTP/1.0 by itself: net/http, with all of TLS below it, would double this
// program, and libvirt waits for its start at each step of each guest's life.
func post(socket string, call api.HookCall) (api.HookVerdict, error) {
	var verdict api.HookVerdict
	status, data, err := exchange(socket, request(call))
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
	return readVerdict(data)
}

// readVerdict reads the body of an answer. Nearly each is the first: the decoder would take
// longer to get ready than virtlvmd to decide.
func readVerdict(data []byte) (api.HookVerdict, error) {
	if string(data) == "{\"allow\":true}\n" {
		return api.HookVerdict{Allow: true}, nil
	}
	var verdict api.HookVerdict
	if err := json.Unmarshal(data, &verdict); err != nil {
		return api.HookVerdict{}, &garbageError{err}
	}
	return verdict, nil
}

// exchange sends one request and reads the whole answer.
func exchange(socket string, request []byte) (status int, answer []byte, err error) {
	conn, err := dial(socket)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = conn.Close() }()
	_, writeErr := conn.Write(request)
	// One that does not want to read everything may have said why.
	status, answer, err = readAnswer(bufio.NewReader(conn))
	if err != nil && writeErr != nil {
		err = writeErr
	}
	return status, answer, err
}
