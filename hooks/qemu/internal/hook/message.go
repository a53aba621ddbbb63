package hook

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"
	"syscall"
	"unicode"
)

// maxLine bounds the line on standard error, in bytes: libvirt puts it into its own.
const maxLine = 4096

const helpBreakGlass = "to start guests without virtlvm see BREAK GLASS in virtlvmd(8)"

// emit writes what the outcome says and returns the exit code.
func (o outcome) emit(env Env, held int) int {
	if o.line != "" {
		fmt.Fprintln(env.Stderr, "virtlvm: "+oneLine(o.line))
	}
	if len(o.stdout) == 0 {
		return o.code
	}
	// Half a document would be taken for the whole.
	if _, err := env.Stdout.Write(o.stdout); err != nil {
		fmt.Fprintln(env.Stderr, "virtlvm: "+oneLine(fmt.Sprintf("cannot pass the domain XML to libvirt: %v", err)))
		return held
	}
	return o.code
}

// refuse makes the line "cannot OPERATION GUEST: why".
func (r *run) refuse(why string) outcome {
	verb := "start"
	switch r.call.Op {
	case "migrate", "restore", "attach":
		verb = r.call.Op
	}
	return outcome{code: exitRefuse, line: fmt.Sprintf("cannot %s %s: %s", verb, label(r.call.Guest), why)}
}

// explain says why there is no verdict and what to do about it.
func (r *run) explain(err error) string {
	var answer *answerError
	var garbage *garbageError
	switch {
	case errors.As(err, &answer) && answer.message != "":
		return answer.message
	case errors.As(err, &answer), errors.As(err, &garbage):
		return err.Error() + "; see 'journalctl -u virtlvmd'; " + helpBreakGlass
	case errors.Is(err, errToldToGo):
		return err.Error()
	case errors.Is(err, errLate):
		return fmt.Sprintf("virtlvmd has not answered within %v; see 'virtlvm hooks' and 'journalctl -u virtlvmd'; %s",
			r.patience, helpBreakGlass)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "virtlvmd ended before it answered; see 'journalctl -u virtlvmd' and try again; " + helpBreakGlass
	}
	if !unreachable(err) {
		return cause(err) + "; see 'journalctl -u virtlvmd'; " + helpBreakGlass
	}
	return fmt.Sprintf("virtlvmd cannot be reached on %s (%s); see 'systemctl status virtlvmd.socket virtlvmd.service'; %s",
		r.env.Paths.Socket, cause(err), helpBreakGlass)
}

// unreachable reports whether there was never a connection.
func unreachable(err error) bool {
	var d *dialError
	return errors.As(err, &d)
}

// cause is the short reason of an error: "connection refused" rather than the chain.
func cause(err error) string {
	var errno syscall.Errno
	var answer *answerError
	switch {
	case errors.Is(err, errLate), errors.Is(err, errToldToGo):
		return err.Error()
	case errors.As(err, &answer):
		return answer.Error()
	case errors.As(err, &errno):
		return errno.Error()
	case errors.Is(err, fs.ErrNotExist):
		return "no such file or directory"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "virtlvmd ended before it answered"
	case unreachable(err):
		return err.Error()
	}
	// Other words are for programmers.
	return "virtlvmd gave no answer that can be understood"
}

// label is a guest's name or an operation as it stands in a message: quoted where it
// could be mistaken for something else.
func label(name string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:@+-"
	if name == "" || name[0] == '-' || strings.Trim(name, plain) != "" {
		return strconv.Quote(name)
	}
	return name
}

// oneLine makes exactly one printable line of what may come from anywhere.
func oneLine(s string) string {
	s = strings.ToValidUTF8(s, "?")
	s = strings.Map(func(c rune) rune {
		// U+2028 and its like are line ends as well, and Cf turns the direction of text.
		if unicode.In(c, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp) {
			return ' '
		}
		return c
	}, s)
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > maxLine {
		s = strings.ToValidUTF8(s[:maxLine], "") + "..."
	}
	return s
}
