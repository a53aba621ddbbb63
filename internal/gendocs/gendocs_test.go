package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/urfave/cli/v2"
)

const packaging = "../../packaging"

func TestFilesInTheTreeAreCurrent(t *testing.T) {
	assert.NoError(t, run(packaging, true), "run make docs")
}

func TestCheckNamesEachStaleFile(t *testing.T) {
	dir := t.TempDir()
	for _, sub := range []string{"man", "completion"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, sub), 0o755))
	}
	template, err := os.ReadFile(filepath.Join(packaging, "man/virtlvm.8.in"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "man/virtlvm.8.in"), template, 0o644))
	require.NoError(t, run(dir, false))
	require.NoError(t, run(dir, true))

	require.NoError(t, os.Truncate(filepath.Join(dir, "completion/_virtlvm"), 10))
	require.NoError(t, os.Remove(filepath.Join(dir, "man/virtlvm.8")))
	err = run(dir, true)
	assert.ErrorContains(t, err, "completion/_virtlvm is not")
	assert.ErrorContains(t, err, "man/virtlvm.8 is not")
	assert.NotContains(t, err.Error(), "virtlvm.bash")
}

func TestTemplateWithoutAMark(t *testing.T) {
	_, err := manPage("@OPTIONS@\n", command{})
	assert.ErrorContains(t, err, "@COMMANDS@")
}

// sample has each kind of option and argument.
func sample() command {
	return describe(&cli.App{
		Name: "x", UsageText: "x COMMAND",
		Commands: []*cli.Command{
			{
				Name: "move", Usage: "move a volume", UsageText: "x move [--to HOST] VG/LV GUEST [FILE]",
				Description: "Moves `it`. With --to it goes there.\n.so what\n\nMore.\n\nExample:\n  x move a/b",
				Flags:       []cli.Flag{&cli.StringFlag{Name: "to", Usage: "the `HOST` to go to", EnvVars: []string{"X_TO"}, Value: "here"}},
			},
			{Name: "secret", Usage: "not for people", Hidden: true},
			{Name: "set", Usage: "gather", UsageText: "x set WHAT", Subcommands: []*cli.Command{{Name: "a-b", Usage: "set a", UsageText: "x set a-b [VG]"}}},
		},
	})
}

func TestTree(t *testing.T) {
	tree := sample()
	require.Len(t, tree.subs, 2, "hidden commands are not told")
	move := tree.subs[0]
	assert.Equal(t, []string{volume, guest, file}, move.args)
	assert.Equal(t, "[--to HOST] VG/LV GUEST [FILE]", move.synopsis)
	require.Len(t, move.options, 1)
	assert.Equal(t, option{names: []string{"to"}, usage: "the HOST to go to", placeholder: "HOST", env: []string{"X_TO"}, otherwise: "here"}, move.options[0])
	assert.Equal(t, []string{group}, tree.subs[1].subs[0].args)
	assert.Equal(t, []string{"--help", "-h"}, tree.options[0].flags())
}

func TestManPageOfACommand(t *testing.T) {
	var b strings.Builder
	for _, c := range sample().subs {
		manCommand(&b, nil, c)
	}
	assert.Equal(t, `.TP
\fBmove\fR [\fB\-\-to\fR \fIHOST\fR] \fIVG\fR/\fILV\fR \fIGUEST\fR [\fIFILE\fR]
Moves \fBit\fR.
With \fB\-\-to\fR it goes there. .so what
.IP
More.
.RS
.TP
\fB\-\-to\fR \fIHOST\fR
The HOST to go to.
Default: here.
The environment variable \fBX_TO\fR does the same.
.RE
.TP
\fBset a\-b\fR [\fIVG\fR]
Set a.
`, b.String())
	assert.Equal(t, `\&.so x`, prose(".so x"), "no text is taken for a request")
}

func TestBashOptionOfTwoCommands(t *testing.T) {
	var b strings.Builder
	o := option{names: []string{"guest"}, placeholder: "NAME", kind: "guest"}
	bashValue(&b, o)
	bashValue(&b, o)
	bashValue(&b, option{names: []string{"disk"}, placeholder: "NAME", kind: "guest"})
	assert.Equal(t, "\t\t--guest) kind='guest' ;;\n\t\t--disk) kind='guest' ;;\n", b.String())
}

// answers stands in for virtlvm: what the completions ask it.
const answers = `#!/bin/sh
case "$*" in
"--timeout 2s volumes") cat <<'END'
VOLUME         TYPE    SIZE
vg_san/vm1     linear  1.00 GiB
vg_san/vm2     linear  1.00 GiB
vg_b/a         linear  1.00 GiB
END
;;
"--timeout 2s guests") cat <<'END'
GUEST                STATE
vm1                  running
$(touch pwned) x     running
END
;;
*) exit 2 ;;
esac
`

func TestBashCompletion(t *testing.T) {
	script, err := filepath.Abs(filepath.Join(packaging, "completion/virtlvm.bash"))
	require.NoError(t, err)
	for line, want := range map[string]string{
		"vol":                          "volumes|volume",
		"com":                          "commands|command",
		"--json co":                    "commands|command|config",
		"--socket /s co":               "commands|command|config",
		"--socket = /s co":             "commands|command|config",
		"config ":                      "check",
		"config check dir/":            "dir/a b|dir/c",
		"config check dir/c ":          "",
		"volumes ":                     "vg_b|vg_san",
		"activate vg_san/":             "vg_san/vm1|vg_san/vm2",
		"activate --shared vg_b":       "vg_b/a",
		"activate vg_b/a ":             "",
		"activate --sh":                "--shared",
		"activate --js":                "--json",
		"hooks --l":                    "--limit",
		"hooks --limit ":               "",
		"hooks --guest v":              "vm1",
		"hooks --guest = v":            "vm1",
		"hooks --guest =":              `\$\(touch\ pwned\)\ x|vm1`,
		"hooks --guest $":              `\$\(touch\ pwned\)\ x`,
		"--socket dir/c":               "dir/c",
		"status ":                      "",
		"frob ":                        "",
		"hooks --guest status --limit": "--limit",
	} {
		t.Run(line, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(dir, "virtlvm"), []byte(answers), 0o755))
			require.NoError(t, os.Mkdir(filepath.Join(dir, "dir"), 0o755))
			for _, name := range []string{"dir/a b", "dir/c"} {
				require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o644))
			}
			cmd := exec.Command("bash", append([]string{"--norc", "-uc", `
				source "$0"; COMP_WORDS=(virtlvm "$@"); COMP_CWORD=$#; _virtlvm
				IFS='|'; printf %s "${COMPREPLY[*]-}"`, script}, strings.Split(line, " ")...)...)
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "LC_ALL=C")
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			assert.Equal(t, want, string(out))
			assert.NoFileExists(t, filepath.Join(dir, "pwned"), "a guest's name is not evaluated")
		})
	}
}

// The completion of zsh runs in a real, interactive zsh on a pseudo-terminal: each line is
// typed and completed, and ^X writes it down and clears it.
const zshSession = `
zmodload zsh/zpty
zpty z zsh -fi
zpty -w z "PS1=; fpath=($1 \$fpath); autoload -Uz compinit; compinit -u -D"
zpty -w z 'note() { print -r -- "$BUFFER" >>lines; BUFFER=; }; zle -N note; bindkey "^X" note; echo >lines'
wait_for() { repeat 600; do (( $(wc -l <lines) >= $1 )) && return; sleep 0.05; done; exit 1; } 2>/dev/null
wait_for 1
count=1
for line in $argv[2,-1]; do
	zpty -nw z "$line"$'\t\C-X'
	wait_for $((++count))
done
sed 1d lines`

func TestZshCompletion(t *testing.T) {
	if _, err := exec.LookPath("zsh"); err != nil {
		t.Skip("no zsh on this machine")
	}
	functions, err := filepath.Abs(filepath.Join(packaging, "completion"))
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "virtlvm"), []byte(answers), 0o755))
	typed := []string{
		"virtlvm hoo", "virtlvm --json volumes vg_b", "virtlvm activate vg_b", "virtlvm activate --sh",
		"virtlvm config ch", "virtlvm hooks --guest=v", "virtlvm hooks --limit=5 --gu",
	}
	cmd := exec.Command("zsh", append([]string{"-fc", zshSession, "zsh", functions}, typed...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "LC_ALL=C", "TERM=dumb", "HOME="+dir)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Equal(t, []string{
		"virtlvm hooks ", "virtlvm --json volumes vg_b ", "virtlvm activate vg_b/a ", "virtlvm activate --shared ",
		"virtlvm config check ", "virtlvm hooks --guest=vm1 ", "virtlvm hooks --limit=5 --guest=",
	}, strings.Split(strings.TrimRight(string(out), "\n"), "\n"))
}
