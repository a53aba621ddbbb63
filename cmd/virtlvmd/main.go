// Command virtlvmd is the daemon of one host: it decides for the libvirt hook, runs every
// LVM command and keeps the journal. See virtlvmd(8).
package main

import (
	"flag"
	"fmt"
	"os"

	"virtlvm/internal/config"
	"virtlvm/internal/daemon"
	"virtlvm/internal/version"
)

func main() {
	path := flag.String("config", config.DefaultPath, "configuration `file`")
	showVersion := flag.Bool("version", false, "print the version and exit")
	check := flag.Bool("check", false, "print what virtlvm check shows, as JSON, without being a daemon")
	flag.Parse()
	if *showVersion {
		fmt.Printf("virtlvmd %s (%s)\n", version.Version, version.Commit)
		return
	}
	run := func() error { return daemon.Run(*path) }
	if *check {
		run = func() error { return daemon.Check(*path, os.Stdout) }
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "virtlvmd:", err)
		os.Exit(1)
	}
}
