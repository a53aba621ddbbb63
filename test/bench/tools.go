package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"virtlvm/test/san"
)

// buildTool builds the program that stands in for each of LVM's tools.
func (s *stage) buildTool(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "gcc", "-O2", "-static", "-Wall", "-Werror", "-o", s.program("tool"), filepath.Join(s.repo, "test/bench/tool/tool.c"))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot build the tools of the fake SAN: %w\n%s", err, out)
	}
	return nil
}

// tools runs what a host's tools are asked for, in this process: a program that has to read
// the SAN's state first would take longer than all that is measured here. Its socket lies
// beside the tools.
type tools struct {
	host   *san.Host
	dir    string
	listen net.Listener

	mu  sync.Mutex
	ran map[string]int // by name
}

// newTools makes a folder with the tools of a host and serves them until close.
func newTools(h *san.Host, dir, program string) (*tools, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	code, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	for _, name := range san.Tools() {
		if err := os.WriteFile(filepath.Join(dir, name), code, 0o755); err != nil {
			return nil, err
		}
	}
	t := &tools{host: h, dir: dir, ran: map[string]int{}}
	if t.listen, err = net.Listen("unix", filepath.Join(dir, ".san")); err != nil {
		return nil, err
	}
	go t.serve()
	return t, nil
}

func (t *tools) close() error { return t.listen.Close() }

func (t *tools) serve() {
	for {
		conn, err := t.listen.Accept()
		if err != nil {
			return // closed
		}
		go func() {
			defer func() { _ = conn.Close() }()
			// The tool says it where its answer does not come.
			_ = t.answer(conn)
		}()
	}
}

func (t *tools) answer(conn net.Conn) error {
	request, err := io.ReadAll(conn)
	if err != nil {
		return err
	}
	argv := strings.Split(strings.TrimSuffix(string(request), "\x00"), "\x00")
	t.mu.Lock()
	t.ran[argv[0]]++
	t.mu.Unlock()
	var out, errs bytes.Buffer
	code := t.host.Exec(context.Background(), argv, &out, &errs)
	head := binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(nil, uint32(code)), uint32(out.Len()))
	buffers := net.Buffers{head, out.Bytes(), errs.Bytes()}
	_, err = buffers.WriteTo(conn)
	return err
}

// programs counts the runs of LVM's tools on a host so far, by name.
func (h *host) programs() map[string]int {
	h.tools.mu.Lock()
	defer h.tools.mu.Unlock()
	ran := map[string]int{}
	for name, n := range h.tools.ran {
		ran[name] = n
	}
	return ran
}

// since is how many more runs there are than before.
func since(before, after map[string]int) (n int) {
	for tool, m := range after {
		n += m - before[tool]
	}
	return n
}

// ranText tells which tools have been run since before.
func ranText(before, after map[string]int) string {
	var all []string
	for _, tool := range san.Tools() {
		if n := after[tool] - before[tool]; n > 0 {
			all = append(all, fmt.Sprintf("%d %s", n, tool))
		}
	}
	return strings.Join(all, ", ")
}
