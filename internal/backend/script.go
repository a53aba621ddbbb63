package backend

import (
	"fmt"
	"strings"
)

// Exit codes of job.sh itself, from sysexits.h, where no step has begun.
const (
	exitCannotBegin = 74 // its files cannot be opened
	exitRanAlready  = 75 // it runs, or has run
)

// script is job.sh. That it has begun is on the disk before a step does anything, so that a job
// that never ran is known as such after a power cut, too; and no step begins without a word of
// it. The lock is waited for: whoever looks at the job has it for a moment. A signal that asks the job to stop reaches the step as well, since
// they share a control group: the shell must outlive it, to write the exit record. dash
// and others run a trap only when the command in the foreground has ended.
func script(dir string, steps [][]string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `#!/bin/sh
# Written by virtlvmd. It refuses to run twice.
dir=%s
exec 9>>"$dir/lock" || exit %[2]d
flock -w 10 9 || exit %[3]d
rmdir "$dir/ready" || exit %[3]d
sync "$dir" || exit %[2]d
cd /
exec </dev/null >>"$dir/out" 2>>"$dir/err" || exit %[2]d
stopped=
trap 'stopped=143' TERM HUP
trap 'stopped=130' INT

end() {
	printf '%%s %%s\n' "$1" "$(date +%%s)" >"$dir/end.new" && sync "$dir/end.new" && mv "$dir/end.new" "$dir/end"
	exit "$1"
}

begin() {
	if [ -n "$stopped" ]; then
		end "$stopped"
	fi
	# In its place: a disk that is full has room for it.
	echo "$1" 1<>"$dir/step" || end %[2]d
}
`, quote(dir), exitCannotBegin, exitRanAlready)
	for i, argv := range steps {
		words := make([]string, 0, len(argv))
		for _, word := range argv {
			words = append(words, quote(word))
		}
		fmt.Fprintf(&b, "\nbegin %d\n%s || end $?\n", i+1, strings.Join(words, " "))
	}
	b.WriteString("\nend 0\n")
	return b.String()
}

// quote makes one word of the shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
