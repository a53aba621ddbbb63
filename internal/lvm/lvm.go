// Package lvm knows LVM's command lines: what to run, what the JSON reports and the
// messages on stderr mean, and which device-mapper devices are there. It decides
// nothing. All texts and formats are those of LVM 2.03.16 to 2.03.40 in the C locale.
package lvm

import (
	"context"
	"fmt"
	"strings"

	"virtlvm/internal/api"
	"virtlvm/internal/model"
	"virtlvm/internal/run"
)

// LVM reads and changes volumes through a Runner. Safe for concurrent use.
type LVM struct {
	runner  run.Runner
	sysRoot string
}

// New makes an LVM; sysRoot is where sysfs is mounted, "/sys" on a real host.
func New(r run.Runner, sysRoot string) *LVM { return &LVM{runner: r, sysRoot: sysRoot} }

// Activate activates volumes, each "vg/lv", in mode EX or SH; on an active volume it
// converts the lock in place. With several volumes some may be activated though an
// *Error comes back: see Error.
func (l *LVM) Activate(ctx context.Context, mode model.LockMode, names ...string) error {
	return l.do(ctx, ActivateCmd(mode, names...))
}

// Deactivate deactivates volumes and drops their locks. Volumes that were not active are
// no error.
func (l *LVM) Deactivate(ctx context.Context, names ...string) error {
	return l.do(ctx, DeactivateCmd(names...))
}

// LockStart starts the lockspace of a VG. Success is no proof: look for it afterwards
// with lease.Reader.Local.
func (l *LVM) LockStart(ctx context.Context, vg string) error {
	return l.do(ctx, LockStartCmd(vg))
}

// Version is LVM's own version, such as "2.03.31".
func (l *LVM) Version(ctx context.Context) (string, error) {
	cmd := run.Cmd{Name: "lvs", Args: []string{"--version"}}
	res, err := l.runner.Run(ctx, cmd)
	if err := Classify(cmd, res, err); err != nil {
		return "", err
	}
	for line := range strings.Lines(string(res.Stdout)) {
		// "  LVM version:     2.03.31(2) (2025-02-27)"
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), "LVM version:"); ok {
			version, _, _ := strings.Cut(strings.TrimSpace(rest), "(")
			if version = strings.TrimSpace(version); version != "" {
				return version, nil
			}
		}
	}
	return "", api.NewError(api.KindInternal, fmt.Sprintf("cannot read LVM's version: lvs --version printed %q", head(res.Stdout)))
}

func (l *LVM) do(ctx context.Context, cmd run.Cmd) error {
	res, err := l.runner.Run(ctx, cmd)
	return Classify(cmd, res, err)
}

// head is enough of a program's output to recognise it in a message.
func head(out []byte) string {
	const limit = 200
	s := strings.ToValidUTF8(strings.TrimSpace(string(out)), "?")
	runes := []rune(s)
	if len(runes) > limit {
		return string(runes[:limit])
	}
	return s
}
