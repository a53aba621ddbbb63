package fakevirt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
)

// HookCall is one call of the hook: its four arguments and standard input.
type HookCall struct {
	Guest, Op, SubOp, Extra string
	XML                     []byte
}

// HookResult is how the hook ended.
type HookResult struct {
	Code           int
	Stdout, Stderr string
	// Command is what stands before the arguments in libvirt's message; empty: the usual.
	Command string
}

// HookFunc calls the hook and waits for its end, however long that takes.
type HookFunc func(ctx context.Context, call HookCall) HookResult

const (
	hookPath    = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	hookCommand = "LC_ALL=C " + hookPath + " /etc/libvirt/hooks/qemu"
)

// ExecHook runs the program at path as the hook, with libvirt's environment and env
// ("NAME=value") besides.
func ExecHook(path string, env ...string) HookFunc {
	return func(ctx context.Context, call HookCall) HookResult {
		cmd := exec.CommandContext(ctx, path, call.Guest, call.Op, call.SubOp, call.Extra)
		cmd.Env = append([]string{"LC_ALL=C", hookPath}, env...)
		cmd.Stdin = bytes.NewReader(call.XML)
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		err := cmd.Run()
		r := HookResult{Stdout: out.String(), Stderr: errs.String(), Command: "LC_ALL=C " + hookPath + " " + path}
		var exit *exec.ExitError
		switch {
		case errors.As(err, &exit):
			r.Code = exit.ExitCode()
		case err != nil:
			// libvirt: "cannot execute binary": the child exits 126 or so.
			r.Code, r.Stderr = 126, err.Error()
		}
		return r
	}
}

// hook makes one call; the error is libvirt's line for a hook that failed.
func (h *Host) hook(ctx context.Context, name, op, subOp, extra string, xml []byte) error {
	_, err := h.filter(ctx, name, op, subOp, extra, xml)
	return err
}

// filter makes a call of which libvirt reads the standard output as well. A host that is
// dead, or dies meanwhile, hears nothing of it: ErrHostGone.
func (h *Host) filter(ctx context.Context, name, op, subOp, extra string, xml []byte) (stdout string, err error) {
	if h.dead() {
		return "", ErrHostGone
	}
	if h.o.Hook == nil {
		return "", nil
	}
	r := h.o.Hook(ctx, HookCall{Guest: name, Op: op, SubOp: subOp, Extra: extra, XML: xml})
	if h.dead() {
		return "", ErrHostGone
	}
	if r.Code == 0 {
		return r.Stdout, nil
	}
	if r.Command == "" {
		r.Command = hookCommand
	}
	words := []string{r.Command}
	for _, arg := range []string{name, op, subOp, extra} {
		words = append(words, quote(arg))
	}
	status := fmt.Sprintf("exit status %d", r.Code)
	if r.Code < 0 {
		status = "fatal signal"
	}
	message := fmt.Sprintf("Hook script execution failed: internal error: Child process (%s) unexpected %s",
		strings.Join(words, " "), status)
	if r.Stderr != "" {
		message += ": " + strings.TrimSuffix(r.Stderr, "\n")
	}
	return "", errors.New(message)
}

// quote is virBufferEscapeShell: only where it has to be.
func quote(s string) string {
	if s != "" && !strings.ContainsAny(s, "\r\t\n !\"#$&'()*;<>?[\\]^`{|}~") {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
