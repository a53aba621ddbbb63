package cli

import (
	"strings"

	"github.com/urfave/cli/v2"
)

// reorder puts options before arguments, since the parser stops at the first argument
// and users type `virtlvm volumes vg_san --json`. The result is: global options, the
// words of the command, its options, its arguments. Everything after "--" is an argument.
// An option that nobody knows stays with the command, whose parser refuses it.
func reorder(app *cli.App, in []string) []string {
	var global, path, local, rest []string
	commands, flags := app.Commands, []cli.Flag(nil)
	for i := 0; i < len(in); i++ {
		arg := in[i]
		if arg == "--" {
			rest = append(append(rest, arg), in[i+1:]...)
			break
		}
		if !strings.HasPrefix(arg, "-") || arg == "-" {
			if c := find(commands, arg); c != nil && len(rest) == 0 {
				path = append(path, arg)
				commands, flags = c.Subcommands, c.Flags
				continue
			}
			rest = append(rest, arg)
			continue
		}
		words := []string{arg}
		name, _, hasValue := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		flag, to := lookup(flags, name), &local
		if flag == nil && lookup(app.Flags, name) != nil {
			flag, to = lookup(app.Flags, name), &global
		}
		if flag != nil && takesValue(flag) && !hasValue && i+1 < len(in) {
			i++
			words = append(words, in[i])
		}
		*to = append(*to, words...)
	}
	out := append(global, path...)
	return append(append(out, local...), rest...)
}

func find(commands []*cli.Command, name string) *cli.Command {
	for _, c := range commands {
		if c.HasName(name) {
			return c
		}
	}
	return nil
}

func lookup(flags []cli.Flag, name string) cli.Flag {
	for _, f := range flags {
		for _, n := range f.Names() {
			if n == name {
				return f
			}
		}
	}
	return nil
}

func takesValue(f cli.Flag) bool {
	d, ok := f.(cli.DocGenerationFlag)
	return ok && d.TakesValue()
}
