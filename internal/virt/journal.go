package virt

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"virtlvm/internal/run"
)

// Unopened is a path that libvirt could not open.
type Unopened struct {
	At   time.Time
	Path string
}

// journalTimeout bounds a look into systemd's journal, and journalLines what is read of it.
const (
	journalTimeout = 3 * time.Second
	journalLines   = 200
)

// UnopenedSince lists, newest first, what libvirt could not open since a moment because it was not
// there, by what its daemon has written to systemd's journal (its default for errors): that a disk
// was not attached is neither an event, nor a hook call, nor in a status file. Where there is no
// journal nothing is known.
func UnopenedSince(ctx context.Context, runner run.Runner, since time.Time) ([]Unopened, error) {
	// Fields that begin with an underscore are written by journald (systemd.journal-fields(7)).
	res, err := runner.Run(ctx, run.Cmd{Name: "journalctl", Timeout: journalTimeout, Args: []string{
		"--quiet", "--no-pager", "--reverse", "--lines=" + strconv.Itoa(journalLines), "--output=json", "--output-fields=MESSAGE",
		"--priority=err", "--since=@" + strconv.FormatInt(since.Unix(), 10), "_UID=0", "_COMM=libvirtd", "_COMM=virtqemud",
	}})
	if err != nil {
		return nil, fmt.Errorf("cannot read what libvirt has logged: %w", err)
	}
	return unopened(string(res.Stdout), since), nil
}

var notThere = regexp.MustCompile(`^Cannot access storage file '([^']+)'.*: No such file or directory$`)

// unopened reads the JSON lines of journalctl; what is not understood is left out.
func unopened(out string, since time.Time) []Unopened {
	var all []Unopened
	for line := range strings.Lines(out) {
		var entry struct {
			Micros  string `json:"__REALTIME_TIMESTAMP"`
			Message string `json:"MESSAGE"` // an array where it is no UTF-8
		}
		if json.Unmarshal([]byte(line), &entry) != nil {
			continue
		}
		micros, err := strconv.ParseInt(entry.Micros, 10, 64)
		found := notThere.FindStringSubmatch(strings.TrimSpace(entry.Message))
		if at := time.UnixMicro(micros); err == nil && found != nil && !at.Before(since) {
			all = append(all, Unopened{at, found[1]})
		}
	}
	return all
}
