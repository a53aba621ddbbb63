package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// emptyC is the smallest program: what no hook in any language can do without.
const emptyC = "int main(void) { return 0; }\n"

// buildEmpty builds a C and a Go program that do nothing, as small as they get.
func (s *stage) buildEmpty(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "gcc", "-O2", "-static", "-x", "c", "-o", s.program("empty-c"), "-")
	cmd.Stdin = strings.NewReader(emptyC)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot build an empty C program: %w\n%s", err, out)
	}
	cmd = exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", s.program("empty-go"), "./test/bench/empty")
	cmd.Dir, cmd.Env = s.repo, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot build an empty Go program: %w\n%s", err, out)
	}
	return nil
}

// bare is a process that does next to nothing.
type bare struct {
	name string
	argv []string
	took costs
}

// bareProcesses tell how much of a hook call is the start and the end of a process here: of
// an empty C and an empty Go program, of the shell, of the hook where it only says its usage.
func (b *bench) bareProcesses() []*bare {
	return []*bare{
		{name: "empty_c_process", argv: []string{b.program("empty-c")}},
		{name: "empty_go_process", argv: []string{b.program("empty-go")}},
		{name: "true_process", argv: []string{"/bin/true"}},
		{name: "bash_process", argv: []string{"/bin/bash", "-c", ":"}},
		{name: "hook_process", argv: []string{b.program("hook/qemu")}},
	}
}

func (p *bare) run(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, p.argv[0], p.argv[1:]...)
	began := time.Now()
	err := cmd.Run() // the hook's exit code is 2
	if cmd.ProcessState == nil {
		return fmt.Errorf("cannot run %s: %w", p.argv, err)
	}
	p.took = append(p.took, costOf(time.Since(began), cmd.ProcessState))
	return nil
}
