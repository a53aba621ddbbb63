package main

import (
	"fmt"
	"strings"
)

// bashHead finds what names something. The names are data: a guest may be called
// `$(reboot)`, so they are compared and quoted, never handed to compgen -W, which would
// evaluate them.
const bashHead = `# bash completion for virtlvm(8)
# Generated from the command line by make docs; do not edit.
# shellcheck shell=bash

# The first column of a table, without its heading.
_virtlvm_column() {
	command virtlvm --timeout 2s "$1" 2>/dev/null | sed -n '2,$s/  .*//p' | sort -u
}

# _virtlvm_find KIND: what there is of the kind.
_virtlvm_find() {
	case $1 in
	volume) _virtlvm_column volumes ;;
	group) _virtlvm_column volumes | sed 's,/.*,,' | sort -u ;;
	guest) _virtlvm_column guests ;;
	esac
}

# _virtlvm_complete KIND WORD: fills COMPREPLY with what begins with the word.
_virtlvm_complete() {
	local found
	if [[ $1 == file ]]; then
		compopt -o filenames 2>/dev/null
		while IFS= read -r found; do
			COMPREPLY+=("$found")
		done < <(compgen -f -- "$2")
		return
	fi
	while IFS= read -r found; do
		[[ $found == "$2"* ]] && COMPREPLY+=("$(printf %q "$found")")
	done < <(_virtlvm_find "$1")
}

_virtlvm() {
	local words=() word value='' path='' count=0 i
	local current=${COMP_WORDS[COMP_CWORD]}
	# bash splits --option=value at the sign.
	[[ $current == '=' ]] && current=
	for ((i = 1; i < COMP_CWORD; i++)); do
		[[ ${COMP_WORDS[i]} == '=' ]] || words+=("${COMP_WORDS[i]}")
	done
	COMPREPLY=()

	# Walk to the command; value is the option whose value comes next.
	for word in "${words[@]}"; do
		if [[ -n $value ]]; then
			value=
			continue
		fi
		case "$path $word" in
`

const bashTail = `		*' -'*) ;;
		*) count=$((count + 1)) ;;
		esac
	done

	local kind='' candidates=''
	if [[ -n $value ]]; then
		case $value in
%s		esac
	elif [[ $current == -* ]]; then
		candidates='%s'
		case $path in
%s		esac
	else
		case "$path $count" in
%s		esac
	fi
	if [[ -n $kind ]]; then
		_virtlvm_complete "$kind" "$current"
	elif [[ -n $candidates ]]; then
		while IFS= read -r word; do
			COMPREPLY+=("$word")
		done < <(compgen -W "$candidates" -- "$current")
	fi
}

complete -F _virtlvm virtlvm
`

// bash writes the completion for bash. A path is the words of a command joined with
// slashes, "" for the program itself.
func bash(root command) string {
	var steps, values, flags, words strings.Builder
	steps.WriteString(bashValues(root.options, "*'"))
	for _, o := range root.options {
		bashValue(&values, o)
	}
	bashWalk(root, "", &steps, &values, &flags, &words)
	return bashHead + steps.String() + fmt.Sprintf(bashTail, values.String(), allFlags(root.options), flags.String(), words.String())
}

func bashWalk(c command, path string, steps, values, flags, words *strings.Builder) {
	var names []string
	for _, sub := range c.subs {
		names = append(names, sub.name)
		below := strings.TrimPrefix(path+"/"+sub.name, "/")
		fmt.Fprintf(steps, "\t\t'%s %s') path='%s' ;;\n", path, sub.name, below)
		steps.WriteString(bashValues(sub.options, "'"+below))
		for _, o := range sub.options {
			bashValue(values, o)
		}
		if len(sub.options) > 0 {
			fmt.Fprintf(flags, "\t\t%s) candidates+=' %s' ;;\n", below, allFlags(sub.options))
		}
		bashWalk(sub, below, steps, values, flags, words)
	}
	if len(names) > 0 {
		fmt.Fprintf(words, "\t\t'%s 0') candidates='%s' ;;\n", path, strings.Join(names, " "))
	}
	for i, kind := range c.args {
		if kind != noKind {
			fmt.Fprintf(words, "\t\t'%s %d') kind='%s' ;;\n", path, i, kind)
		}
	}
}

// bashValues are the case of the options that take a value, "" for none.
func bashValues(options []option, path string) string {
	var patterns []string
	for _, o := range options {
		if o.placeholder == "" {
			continue
		}
		for _, f := range o.flags() {
			patterns = append(patterns, path+" "+f+"'")
		}
	}
	if len(patterns) == 0 {
		return ""
	}
	return "\t\t" + strings.Join(patterns, " | ") + ") value=$word ;;\n"
}

// bashValue is the case of an option's value; several commands may have that option.
func bashValue(b *strings.Builder, o option) {
	if o.placeholder == "" || o.kind == noKind {
		return
	}
	line := fmt.Sprintf("\t\t%s) kind='%s' ;;\n", strings.Join(o.flags(), " | "), o.kind)
	if !strings.Contains(b.String(), line) {
		b.WriteString(line)
	}
}

func allFlags(options []option) string {
	var all []string
	for _, o := range options {
		all = append(all, o.flags()...)
	}
	return strings.Join(all, " ")
}
