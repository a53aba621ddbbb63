package hook

import (
	"bufio"
	"errors"
	"io"
	"strconv"
	"strings"
)

// maxAnswer is the largest answer that is read, in bytes: a domain XML in base64 and
// some room.
const maxAnswer = maxXML/3*4 + 1<<20

// maxHeaders is the most lines that may stand before an answer's body.
const maxHeaders = 100

// errNoHTTP is an answer of something that is not virtlvmd.
var errNoHTTP = errors.New("no HTTP")

// readAnswer reads an HTTP answer as a server gives it to HTTP/1.0 (RFC 9112): a status
// line, headers, and a body that is as long as they say or goes on to the end of the
// connection. An answer that ends too early is io.EOF or io.ErrUnexpectedEOF.
func readAnswer(r *bufio.Reader) (status int, body []byte, err error) {
	line, err := readLine(r)
	if err != nil {
		return 0, nil, err
	}
	version, rest, _ := strings.Cut(line, " ")
	code, _, _ := strings.Cut(rest, " ")
	if status, err = strconv.Atoi(code); err != nil || len(code) != 3 || !strings.HasPrefix(version, "HTTP/1.") {
		return 0, nil, errNoHTTP
	}
	length := int64(-1)
	for range maxHeaders {
		if line, err = readLine(r); err != nil {
			return 0, nil, noEOF(err)
		}
		if line == "" {
			body, err = readBody(r, length)
			return status, body, err
		}
		name, value, _ := strings.Cut(line, ":")
		switch value = strings.TrimSpace(value); strings.ToLower(name) {
		case "content-length":
			twice := length >= 0
			if length, err = strconv.ParseInt(value, 10, 64); err != nil || length < 0 || twice {
				return 0, nil, errNoHTTP
			}
		case "transfer-encoding": // not to a client of HTTP/1.0
			return 0, nil, errNoHTTP
		}
	}
	return 0, nil, errNoHTTP
}

// readLine reads a line of at most the reader's buffer, without its end.
func readLine(r *bufio.Reader) (string, error) {
	line, err := r.ReadSlice('\n')
	switch {
	case errors.Is(err, bufio.ErrBufferFull):
		return "", errNoHTTP
	case errors.Is(err, io.EOF) && len(line) > 0:
		return "", io.ErrUnexpectedEOF
	case err != nil:
		return "", err
	}
	return strings.TrimRight(string(line), "\r\n"), nil
}

// readBody reads length bytes, or to the end where length is negative.
func readBody(r io.Reader, length int64) ([]byte, error) {
	limit := length
	if length < 0 || length > maxAnswer {
		limit = maxAnswer + 1
	}
	body, err := io.ReadAll(io.LimitReader(r, limit))
	switch {
	case err != nil:
		return nil, err
	case len(body) > maxAnswer, length > maxAnswer:
		return nil, &garbageError{errors.New("too long")}
	case int64(len(body)) < length:
		return nil, io.ErrUnexpectedEOF
	}
	return body, nil
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
