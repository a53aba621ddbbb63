// Command gendocs writes what follows from the command line's own description: the man
// page virtlvm(8) and the completions of bash and zsh.
//
//	gendocs DIR          write them below DIR
//	gendocs -check DIR   fail, naming the files, if any there is not as it would be written
//
// The man page's words that no command knows, such as its exit codes, are in
// DIR/man/virtlvm.8.in.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"virtlvm/internal/cli"
)

func main() {
	check := flag.Bool("check", false, "compare, write nothing")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: gendocs [-check] DIR")
		os.Exit(2)
	}
	if err := run(flag.Arg(0), *check); err != nil {
		fmt.Fprintln(os.Stderr, "gendocs:", err)
		os.Exit(1)
	}
}

func run(dir string, check bool) error {
	files, err := generate(dir)
	if err != nil {
		return err
	}
	var stale []error
	for name, want := range files {
		path := filepath.Join(dir, name)
		if !check {
			// Ours to make, and for everybody to read.
			if err := os.WriteFile(path, want, 0o644); err != nil { //nolint:gosec // public text
				return fmt.Errorf("cannot write: %w", err)
			}
			continue
		}
		if have, err := os.ReadFile(path); err != nil || !bytes.Equal(have, want) {
			stale = append(stale, fmt.Errorf("%s is not what the command line says now, run make docs", path))
		}
	}
	return errors.Join(stale...)
}

// generate returns the content of each file by its name below dir.
func generate(dir string) (map[string][]byte, error) {
	template, err := os.ReadFile(filepath.Join(dir, "man", "virtlvm.8.in"))
	if err != nil {
		return nil, fmt.Errorf("cannot read the man page's template: %w", err)
	}
	tree := describe(cli.Describe())
	page, err := manPage(string(template), tree)
	if err != nil {
		return nil, err
	}
	return map[string][]byte{
		"man/virtlvm.8":           []byte(page),
		"completion/virtlvm.bash": []byte(bash(tree)),
		"completion/_virtlvm":     []byte(zsh(tree)),
	}, nil
}
