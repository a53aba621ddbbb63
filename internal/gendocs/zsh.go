package main

import (
	"fmt"
	"strings"
)

const zshHead = `#compdef virtlvm
# zsh completion for virtlvm(8)
# Generated from the command line by make docs; do not edit.

# The first column of a table, without its heading.
_virtlvm_column() {
	command virtlvm --timeout 2s $1 2>/dev/null | sed -n '2,$s/  .*//p' | sort -u
}

_virtlvm_volume() {
	local -a found
	found=(${(f)"$(_virtlvm_column volumes)"})
	compadd -a found
}

_virtlvm_group() {
	local -a found
	found=(${(fu)"$(_virtlvm_column volumes | sed 's,/.*,,')"})
	compadd -a found
}

_virtlvm_guest() {
	local -a found
	found=(${(f)"$(_virtlvm_column guests)"})
	compadd -a found
}
`

// zsh writes the completion for zsh: one function for each command. The options of the
// program are good everywhere and stand in a variable of the outermost function.
func zsh(root command) string {
	var b strings.Builder
	b.WriteString(zshHead)
	for _, c := range root.subs {
		zshCommand(&b, "_virtlvm__", c)
	}
	b.WriteString("\n_virtlvm() {\n\tlocal -a everywhere\n\teverywhere=(")
	zshOptions(&b, root.options, "\n\t\t")
	b.WriteString("\n\t)\n")
	zshChoice(&b, "_virtlvm", nil, root.subs)
	b.WriteString("}\n\n_virtlvm \"$@\"\n")
	return b.String()
}

func zshCommand(b *strings.Builder, prefix string, c command) {
	name := prefix + c.name
	for _, sub := range c.subs {
		zshCommand(b, name+"__", sub)
	}
	fmt.Fprintf(b, "\n%s() {\n", name)
	defer b.WriteString("}\n")
	if len(c.subs) > 0 {
		zshChoice(b, name, c.options, c.subs)
		return
	}
	b.WriteString("\t_arguments $everywhere")
	zshOptions(b, c.options, zshNext)
	for i, kind := range c.args {
		fmt.Fprintf(b, "%s'%d:%s:%s'", zshNext, i+1, kindLabel(kind), zshAction(kind))
	}
	b.WriteString("\n")
}

// zshNext goes on with a command on the next line.
const zshNext = " \\\n\t\t"

// zshChoice writes what finds the command and goes on in its function.
func zshChoice(b *strings.Builder, name string, options []option, commands []command) {
	b.WriteString("\tlocal curcontext=$curcontext state line\n\tlocal -a commands\n\t_arguments -C $everywhere")
	zshOptions(b, options, zshNext)
	b.WriteString(zshNext + "'1:command:->command'" + zshNext + "'*::argument:->argument'\n\tcase $state in\n\tcommand)\n\t\tcommands=(\n")
	for _, c := range commands {
		fmt.Fprintf(b, "\t\t\t%s\n", zshQuote(c.name+":"+c.usage))
	}
	b.WriteString("\t\t)\n\t\t_describe -t commands command commands\n\t\t;;\n\targument)\n")
	fmt.Fprintf(b, "\t\t(( $+functions[%s__$words[1]] )) && %s__$words[1]\n\t\t;;\n\tesac\n", name, name)
}

func zshOptions(b *strings.Builder, options []option, before string) {
	for _, o := range options {
		flags := o.flags()
		exclusive := ""
		if len(flags) > 1 {
			exclusive = "(" + strings.Join(flags, " ") + ")"
		}
		for _, f := range flags {
			spec := exclusive + f
			if o.placeholder != "" && strings.HasPrefix(f, "--") {
				spec += "="
			}
			spec += "[" + strings.NewReplacer("[", `\[`, "]", `\]`).Replace(o.usage) + "]"
			if o.placeholder != "" {
				spec += ":" + o.placeholder + ":" + zshAction(o.kind)
			}
			b.WriteString(before + zshQuote(spec))
		}
	}
}

func zshAction(kind string) string {
	switch kind {
	case noKind:
		return " "
	case file:
		return "_files"
	}
	return "_virtlvm_" + kind
}

func kindLabel(kind string) string {
	if kind == noKind {
		return "argument"
	}
	return kind
}

func zshQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
