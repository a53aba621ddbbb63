package relay

import (
	"bufio"
	"context"
	"errors"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"

	"virtlvm/internal/api"
)

// What may come before the relay's line.
const (
	maxNoise      = 64 << 10 // bytes
	maxNoiseLines = 100
)

// endGrace is how long the exit code of a command is waited for whose output has ended.
const endGrace = time.Second

// A banner without a newline may stand before the relay's line, so both are looked for
// at the end of a line as well.
var (
	helloLine = regexp.MustCompile(helloWord + `([0-9]{1,5})\.([0-9]{1,5})$`)
	errorLine = regexp.MustCompile(errorWord + `([a-z_]{1,32}) (.*)$`)
)

// Dial starts a command and waits for the line of the relay at its other end, until ctx
// ends. The error is a *DialError: nothing has been asked of any daemon then.
func Dial(ctx context.Context, cmd Command) (*Conn, error) {
	c, err := Start(cmd)
	if err != nil {
		failure := CannotRun
		if errors.Is(err, exec.ErrNotFound) {
			failure = NotInstalled
		}
		return nil, &DialError{Failure: failure, Program: cmd.Name, ExitCode: -1, Detail: oneLine(err.Error())}
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	failed := c.shake(ctx)
	if failed == nil && stop() {
		return c, nil
	}
	if failed == nil {
		failed = &DialError{Failure: TimedOut}
	}
	failed.Program = cmd.Name
	c.abort()
	return nil, failed
}

// shake reads up to the relay's line and judges it.
func (c *Conn) shake(ctx context.Context) *DialError {
	noise, lines := "", 0
	for total := 0; ; lines++ {
		line, err := readLine(c.buf, maxNoise-total)
		total += len(line)
		text := strings.TrimRight(line, "\r\n")
		if m := errorLine.FindStringSubmatch(text); m != nil {
			return &DialError{Failure: RelayRefused, Kind: api.Kind(m[1]), Detail: oneLine(m[2])}
		}
		if m := helloLine.FindStringSubmatch(text); m != nil && err == nil {
			return c.judge(m[1], m[2])
		}
		if noise == "" {
			noise = quoted(text)
		}
		switch {
		case ctx.Err() != nil:
			return c.failed(TimedOut, noise)
		case errors.Is(err, errTooMuch) || err == nil && lines+1 >= maxNoiseLines:
			return c.failed(Noise, noise)
		case err != nil:
			// The output has ended; how the command ends says why.
			c.EndsWithin(endGrace)
			return c.failed(NoRelay, noise)
		}
	}
}

// judge looks at the version that a relay has told. What it has sent unasked after its
// line is not HTTP: something else speaks there as well.
func (c *Conn) judge(major, minor string) *DialError {
	x, errX := strconv.Atoi(major)
	y, errY := strconv.Atoi(minor)
	switch {
	case errX != nil || errY != nil || !api.Compatible(x, y):
		return &DialError{Failure: WrongVersion, Detail: major + "." + minor}
	case c.buf.Buffered() > 0:
		extra, _ := c.buf.Peek(c.buf.Buffered())
		return c.failed(Noise, quoted(string(extra)))
	}
	return nil
}

var errTooMuch = errors.New("line too long")

// readLine reads up to a newline, at most limit bytes.
func readLine(r *bufio.Reader, limit int) (string, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > limit:
			return string(line), errTooMuch
		case !errors.Is(err, bufio.ErrBufferFull):
			return string(line), err
		}
	}
}

// quoted is enough of a text to recognise it by, on one line; "" stays "".
func quoted(s string) string {
	const limit = 120
	s = oneLine(s)
	if runes := []rune(s); len(runes) > limit {
		s = string(runes[:limit]) + "..."
	}
	if s == "" {
		return ""
	}
	return strconv.Quote(s)
}
