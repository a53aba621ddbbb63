package hook

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
)

func TestReadAnswer(t *testing.T) {
	garbage := new(garbageError)
	tests := map[string]struct {
		in     string
		status int
		body   string
		err    error
	}{
		"with a length":           {"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}", 200, "{}", nil},
		"to the end":              {"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{}\n", 200, "{}\n", nil},
		"a later version":         {"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length:0\r\n\r\n", 503, "", nil},
		"no reason":               {"HTTP/1.1 404\r\n\r\nx", 404, "x", nil},
		"bare line feeds":         {"HTTP/1.1 200 OK\nContent-Length: 1\n\nx", 200, "x", nil},
		"more than the length":    {"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nxy", 200, "x", nil},
		"nothing":                 {"", 0, "", io.EOF},
		"half a status line":      {"HTTP/1.0 2", 0, "", io.ErrUnexpectedEOF},
		"no headers":              {"HTTP/1.0 200 OK\r\n", 0, "", io.ErrUnexpectedEOF},
		"half a header":           {"HTTP/1.0 200 OK\r\nContent-Le", 0, "", io.ErrUnexpectedEOF},
		"less than the length":    {"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\n{}", 200, "", io.ErrUnexpectedEOF},
		"another protocol":        {"220 smtp ready\r\n\r\n", 0, "", errNoHTTP},
		"HTTP/2":                  {"HTTP/2 200 OK\r\n\r\n", 0, "", errNoHTTP},
		"status is no number":     {"HTTP/1.0 2oo OK\r\n\r\n", 0, "", errNoHTTP},
		"status too long":         {"HTTP/1.0 2000 OK\r\n\r\n", 0, "", errNoHTTP},
		"negative length":         {"HTTP/1.0 200 OK\r\nContent-Length: -1\r\n\r\n", 0, "", errNoHTTP},
		"length is no number":     {"HTTP/1.0 200 OK\r\nContent-Length: 1,1\r\n\r\nx", 0, "", errNoHTTP},
		"chunks":                  {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 0, "", errNoHTTP},
		"a line without an end":   {"HTTP/1.0 200 OK\r\nX: " + strings.Repeat("x", 1<<16), 0, "", errNoHTTP},
		"headers without an end":  {"HTTP/1.0 200 OK\r\n" + strings.Repeat("X: x\r\n", 1000), 0, "", errNoHTTP},
		"length over all bounds":  {"HTTP/1.0 200 OK\r\nContent-Length: 99999999999\r\n\r\nx", 200, "", garbage},
		"length over 64 bits":     {"HTTP/1.0 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\nx", 0, "", errNoHTTP},
		"a length below the last": {"HTTP/1.0 200 OK\r\nContent-Length: 5\r\nContent-Length: 1\r\n\r\nx", 0, "", errNoHTTP},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for _, r := range []io.Reader{strings.NewReader(tt.in), iotest.OneByteReader(strings.NewReader(tt.in))} {
				status, body, err := readAnswer(bufio.NewReader(r))
				assert.Equal(t, tt.status, status)
				assert.Equal(t, tt.body, string(body))
				switch {
				case tt.err == nil:
					assert.NoError(t, err)
				case errors.As(tt.err, &garbage):
					assert.ErrorAs(t, err, &garbage)
				default:
					assert.ErrorIs(t, err, tt.err)
				}
			}
		})
	}
}

func TestAnswerWithoutAnEnd(t *testing.T) {
	endless := io.MultiReader(strings.NewReader("HTTP/1.0 200 OK\r\n\r\n"), zeros{})
	_, body, err := readAnswer(bufio.NewReader(endless))
	var garbage *garbageError
	require.ErrorAs(t, err, &garbage)
	assert.Empty(t, body)
}

// A server does not know the length of a large answer beforehand.
func TestLargeAnswer(t *testing.T) {
	b := newBench(t)
	want := bytes.Repeat([]byte("<metadata/>\n"), 1<<17)
	b.answer(http.StatusOK, api.HookVerdict{Allow: true, XML: want})
	assert.Equal(t, 0, b.run("vm1", "migrate", "begin", "-"))
	assert.True(t, bytes.Equal(want, b.out.Bytes()))
	assert.Empty(t, b.errs.String())
}

// virtlvmd refuses a call before it has read it: its words count, not the broken pipe.
func TestAnswerBeforeTheCallIsRead(t *testing.T) {
	b := newBench(t)
	b.serve(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"kind":"bad_request","message":"too large"}`)
	})
	b.env.Stdin = bytes.NewReader(append([]byte(domainXML), make([]byte, 8<<20)...))
	assert.Equal(t, 1, b.run("vm1", "prepare", "begin", "-"))
	assert.Equal(t, "virtlvm: cannot start vm1: too large", b.line())
}
