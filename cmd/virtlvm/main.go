// Command virtlvm shows and steers virtlvmd on this host. See virtlvm(8).
package main

import (
	"os"

	"virtlvm/internal/cli"
)

func main() { os.Exit(cli.Main(os.Args, os.Stdout, os.Stderr)) }
