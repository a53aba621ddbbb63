package relay

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"time"

	"virtlvm/internal/api"
)

// word is what may stand on a command line that a shell on the other host reads.
var word = regexp.MustCompile(`^[A-Za-z0-9._/:=@+-]+$`)

// SSH makes the command that runs remote on the host of t. ssh asks nothing: not for a
// password, not for a passphrase, not whether a host key is right; it fails instead. A
// host that has fallen silent is noticed within 15 s.
//
// options are added as they stand in ssh_config(5), such as "IdentitiesOnly=yes"; the
// first of two wins. An error: a target or a word that a shell could take for more.
func SSH(t api.Target, connect time.Duration, options []string, remote ...string) (Command, error) {
	if err := check(t, remote); err != nil {
		return Command{}, err
	}
	seconds := max(1, int((connect+time.Second-1)/time.Second))
	args := []string{"-T"}
	for _, o := range slices.Concat(options, []string{
		"BatchMode=yes",
		"ConnectTimeout=" + strconv.Itoa(seconds),
		"ServerAliveInterval=5",
		"ServerAliveCountMax=3",
		// What a configuration for people sets for this host must not replace our command
		// or drop the reason of a failure.
		"RemoteCommand=none",
		"LogLevel=INFO",
	}) {
		args = append(args, "-o", o)
	}
	if t.User != "" {
		args = append(args, "-l", t.User)
	}
	if t.Port != 0 {
		args = append(args, "-p", strconv.Itoa(t.Port))
	}
	// After "--" neither the host nor the command can be an option.
	return Command{Name: "ssh", Args: append(append(args, "--", t.Host), remote...)}, nil
}

// check goes over the target once more: it may not have come from ParseTarget.
func check(t api.Target, remote []string) error {
	if t.Host == "" {
		return fmt.Errorf("cannot make a command: there is no host to reach by ssh")
	}
	again, err := api.ParseTarget(t.String())
	if err != nil || again != t {
		return fmt.Errorf("cannot make a command: %q is not a host to reach by ssh", t.String())
	}
	for _, w := range remote {
		if !word.MatchString(w) {
			return fmt.Errorf("cannot make a command: %q may not stand on it", w)
		}
	}
	return nil
}
