package lvm

import (
	"context"

	"virtlvm/internal/run"
)

// Attr reads LVM's lv_attr of a volume "vg/lv" on this host (lvs(8), "lv_attr"), such as
// "-wi-ao----". It is for show: it never tells who holds a volume elsewhere, nor how.
func (l *LVM) Attr(ctx context.Context, name string) (string, error) {
	cmd := run.Cmd{
		Name: "lvs", Args: []string{"--reportformat", "json", "-o", "lv_attr", name},
		Err: CheckName(name),
	}
	res, err := l.runner.Run(ctx, cmd)
	res = withLog(res)
	if err := Classify(cmd, res, err); err != nil {
		return "", err
	}
	rep, err := parseReport("lvs", res.Stdout)
	if err != nil {
		return "", err
	}
	for _, part := range rep.Report {
		for _, r := range part.LV {
			return r.text("lv_attr"), nil
		}
	}
	return "", nil
}
