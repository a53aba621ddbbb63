package config

import (
	"fmt"
	"slices"
)

// Problem is one mistake in a configuration file.
type Problem struct {
	File    string
	Line    int // 1-based
	Message string
}

// String is "file:line: message", the form compilers and editors use.
func (p Problem) String() string { return fmt.Sprintf("%s:%d: %s", p.File, p.Line, p.Message) }

// Error is a refused configuration: every mistake found, in the order of the file.
type Error struct {
	Problems []Problem
}

// Error returns the first mistake and how many more there are, on one line.
func (e *Error) Error() string {
	if len(e.Problems) == 1 {
		return e.Problems[0].String()
	}
	return fmt.Sprintf("%s (and %d more: run `virtlvm config check`)", e.Problems[0], len(e.Problems)-1)
}

func newError(problems []Problem) *Error {
	slices.SortStableFunc(problems, func(a, b Problem) int { return a.Line - b.Line })
	return &Error{Problems: problems}
}
