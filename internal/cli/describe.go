package cli

import (
	"bufio"
	"io"

	"github.com/urfave/cli/v2"
)

// ExampleMark stands between the text of a command's description and its example.
const ExampleMark = "\n\nExample:\n  "

// Describe returns the command line for programs that write about it, such as the
// generator of the man page. It is not to be run.
func Describe() *cli.App {
	p := &program{out: bufio.NewWriter(io.Discard)}
	return p.app(io.Discard)
}
