package kinds

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"virtlvm/internal/api"
	"virtlvm/internal/domain"
	"virtlvm/internal/lvm"
	"virtlvm/internal/run"
)

// hostDevice is QEMU's driver for block devices.
const hostDevice = "host_device"

// copySteps are the command lines of a copy, see qemu-img(1). Formats are always said,
// never looked for: the content of a raw disk is its guest's. The page cache is left out,
// so that what is compared has been on the disk. A destination may be larger than what a
// guest sees of the source: no more than that is compared.
func copySteps(p copyPlan, virtual, room int64, driver string) [][]string {
	src, dst := device(p.Source), device(p.Destination)
	var steps [][]string
	if p.ToFormat == formatQcow2 {
		steps = append(steps, formatStep(dst, virtual))
	}
	convert := []string{"qemu-img", "convert", "-p", "-n", "-t", "none", "-T", "none", "-f", p.Format, "-O", p.ToFormat}
	if p.Bandwidth > 0 {
		convert = append(convert, "-r", strconv.FormatInt(p.Bandwidth*mebibyte, 10))
	}
	compare := []string{"qemu-img", "compare", "-p", "-T", "none"}
	if p.ToFormat == formatRaw && room != virtual {
		compare = append(compare, "--image-opts", imageOpts(p.Format, 0, driver, src), imageOpts(formatRaw, virtual, driver, dst))
	} else {
		compare = append(compare, "-f", p.Format, "-F", p.ToFormat, src, dst)
	}
	return append(steps, append(convert, src, dst), compare)
}

// compareStep is the number of the step that compares.
func compareStep(p copyPlan) int {
	if p.ToFormat == formatQcow2 {
		return 3
	}
	return 2
}

// imageOpts names an image by options; size, where not 0, is how much of it counts. Names
// of volumes have no comma.
func imageOpts(format string, size int64, driver, path string) string {
	opts := "driver=" + format
	if size > 0 {
		opts += ",size=" + strconv.FormatInt(size, 10)
	}
	return opts + ",file.driver=" + driver + ",file.filename=" + path
}

func formatStep(device string, size int64) []string {
	return []string{"qemu-img", "create", "-q", "-f", formatQcow2, device, strconv.FormatInt(size, 10)}
}

// lastStep is the progress of the step that runs, in thousandths: each ends its own with a
// new line.
func lastStep(out string) int64 { return permille(out[strings.LastIndexByte(out, '\n')+1:]) }

// QemuImg implements Images with qemu-img.
type QemuImg struct {
	*domain.Inspector
	// Runner runs what changes an image.
	Runner run.Runner
}

// Format implements Images.
func (q QemuImg) Format(ctx context.Context, device, format string, size int64) error {
	if format != formatQcow2 {
		return nil
	}
	argv := formatStep(device, size)
	if _, err := q.Runner.Run(ctx, run.Cmd{Name: argv[0], Args: argv[1:]}); err != nil {
		return api.NewError(api.KindInternal, fmt.Sprintf("cannot make an image on %s: %v", device, err))
	}
	return nil
}

// Overlay implements Images. qemu-img opens the images below and so sees to it that they are
// what they are said to be; all of them must be active.
func (q QemuImg) Overlay(ctx context.Context, device string, size int64, backing, format string) error {
	argv := []string{"create", "-q", "-f", formatQcow2, "-F", format, "-b", backing, device, strconv.FormatInt(size, 10)}
	if _, err := q.Runner.Run(ctx, run.Cmd{Name: "qemu-img", Args: argv}); err != nil {
		return api.NewError(api.KindInternal, fmt.Sprintf("cannot make an image on %s above %s: %v", device, backing, err))
	}
	return nil
}

// Resize implements Images.
func (q QemuImg) Resize(ctx context.Context, device, format string, size int64, smaller bool) error {
	argv := []string{"resize", "-q", "-f", format}
	if smaller {
		argv = append(argv, "--shrink")
	}
	if _, err := q.Runner.Run(ctx, run.Cmd{Name: "qemu-img", Args: append(argv, device, strconv.FormatInt(size, 10))}); err != nil {
		return api.NewError(api.KindInternal, fmt.Sprintf("cannot resize the image on %s: %v", device, err))
	}
	return nil
}

// Measure implements Images.
func (q QemuImg) Measure(ctx context.Context, format string, size int64) (int64, error) {
	res, err := q.Runner.Run(ctx, run.Cmd{Name: "qemu-img", Args: []string{"measure", "--output=json", "-O", format, "--size", strconv.FormatInt(size, 10)}})
	if err != nil {
		return 0, api.NewError(api.KindInternal, fmt.Sprintf("cannot tell the size of a %s image: %v", format, err))
	}
	var answer struct {
		Full int64 `json:"fully-allocated"`
	}
	if err := json.Unmarshal(res.Stdout, &answer); err != nil || answer.Full < size {
		return 0, api.NewError(api.KindInternal, fmt.Sprintf("cannot tell the size of a %s image: qemu-img printed %q", format, oneLine(string(res.Stdout))))
	}
	return answer.Full, nil
}

// splitName takes "vg/lv", or its path, apart.
func splitName(name string) (vg, lv string, err error) {
	return lvm.SplitName(strings.TrimPrefix(name, "/dev/"))
}
