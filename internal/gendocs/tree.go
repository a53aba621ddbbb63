package main

import (
	"strings"

	"github.com/urfave/cli/v2"

	clitext "virtlvm/internal/cli"
)

// What a word on the command line names, and so what completes it. noKind: nothing we know.
const (
	noKind = ""
	volume = "volume"
	group  = "group"
	guest  = "guest"
	file   = "file"
)

// command is a command, or at the root the program itself.
type command struct {
	name     string
	usage    string // a few words
	synopsis string // options and arguments, without the names of program and command
	text     string // sentences
	options  []option
	args     []string // kind of each argument
	subs     []command
}

// option is a flag.
type option struct {
	names       []string // without dashes, the long one first
	usage       string   // without the marks of the placeholder
	placeholder string   // of its value, "" for a switch
	kind        string
	env         []string
	otherwise   string // its default, "" for none
}

func describe(app *cli.App) command {
	root := command{name: app.Name, usage: app.Usage, synopsis: synopsis(app.UsageText, 1)}
	root.text, _, _ = strings.Cut(app.Description, clitext.ExampleMark)
	// The library adds these to each command line when it runs.
	root.options = options(append(app.Flags, cli.HelpFlag, cli.VersionFlag))
	root.subs = describeAll(app.Commands, 2)
	return root
}

func describeAll(commands []*cli.Command, words int) []command {
	all := make([]command, 0, len(commands))
	for _, c := range commands {
		if c.Hidden {
			continue
		}
		d := command{
			name: c.Name, usage: c.Usage, synopsis: synopsis(c.UsageText, words), options: options(c.Flags),
			subs: describeAll(c.Subcommands, words+1),
		}
		d.text, _, _ = strings.Cut(c.Description, clitext.ExampleMark)
		if len(d.subs) == 0 {
			d.args = arguments(d)
		}
		all = append(all, d)
	}
	return all
}

// synopsis is a usage line without its first words.
func synopsis(usage string, words int) string {
	fields := strings.Fields(usage)
	return strings.Join(fields[min(words, len(fields)):], " ")
}

func options(flags []cli.Flag) []option {
	all := make([]option, 0, len(flags))
	for _, f := range flags {
		o := option{names: f.Names()}
		if d, ok := f.(cli.DocGenerationFlag); ok {
			o.usage, o.env = d.GetUsage(), d.GetEnvVars()
			if d.TakesValue() {
				o.placeholder, o.otherwise = "VALUE", strings.Trim(d.GetDefaultText(), `"`)
			}
		}
		before, rest, _ := strings.Cut(o.usage, "`")
		if name, after, ok := strings.Cut(rest, "`"); ok {
			o.usage = before + name + after
			o.placeholder = name
		}
		o.kind = kindOf(o.placeholder)
		if o.names[0] == guest {
			o.kind = guest
		}
		all = append(all, o)
	}
	return all
}

// arguments reads the kinds of a command's arguments from its synopsis.
func arguments(c command) []string {
	var kinds []string
	words := strings.Fields(c.synopsis)
	for i := 0; i < len(words); i++ {
		word := strings.Trim(words[i], "[].")
		if name, isOption := strings.CutPrefix(word, "--"); isOption {
			if c.takesValue(name) {
				i++
			}
			continue
		}
		kinds = append(kinds, kindOf(word))
	}
	return kinds
}

func (c command) takesValue(name string) bool {
	for _, o := range c.options {
		if o.names[0] == name {
			return o.placeholder != ""
		}
	}
	return false
}

func kindOf(placeholder string) string {
	switch placeholder {
	case "VG/LV":
		return volume
	case "VG":
		return group
	case "GUEST":
		return guest
	case "FILE", "PATH":
		return file
	}
	return noKind
}

// flags are the words by which an option is given: "--limit", "-h".
func (o option) flags() []string {
	words := make([]string, 0, len(o.names))
	for _, n := range o.names {
		if len(n) == 1 {
			words = append(words, "-"+n)
		} else {
			words = append(words, "--"+n)
		}
	}
	return words
}
