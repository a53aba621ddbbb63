package domain

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"virtlvm/internal/run"
)

// Bounds of one qemu-img run. An image may come from anybody, and a crafted header makes
// qemu-img allocate without end.
const (
	inspectMemory  = "1073741824" // bytes of address space
	inspectCPU     = "10"         // seconds
	inspectTimeout = 30 * time.Second
)

// Inspector reads image headers with qemu-img. Rule: the format always comes from the
// XML or from the parent's header, never from looking at the image. A guest can write a
// qcow2 header that names somebody else's volume into its own raw disk.
type Inspector struct {
	Runner run.Runner // must find prlimit (util-linux) and qemu-img
}

// Header is what an image's header says about other images.
type Header struct {
	Backing *Source // nil: none. Without path: not on this host's devices or files
	Data    *Source // external data file, nil: none
	Size    int64   // bytes that a guest sees
}

// HasHeader reports whether images of a format are followed. VMDK can name others too,
// but is not a format to put on a block device, and ends the chain here.
func HasHeader(format string) bool {
	switch format {
	case "qcow2", "qcow", "qed":
		return true
	}
	return false
}

// Inspect reads the header of one image, which must be readable: its volume active and
// locked. Images of a format without backing files, raw ones above all, are not opened.
// The paths returned are absolute; a backing file without declared format is raw.
func (i *Inspector) Inspect(ctx context.Context, s Source) (Header, error) {
	if !HasHeader(s.Format) || s.Empty() {
		return Header{}, nil
	}
	if !strings.HasPrefix(s.Path, "/") {
		return Header{}, fmt.Errorf("cannot read the image header of %s: not an absolute path", s)
	}
	if s.Sliced {
		return Header{}, fmt.Errorf("cannot read the image header of %s: it lies in a slice; declare the <backingStore> of the disk", s)
	}
	res, err := i.Runner.Run(ctx, run.Cmd{
		Name: "prlimit",
		Args: []string{
			"--as=" + inspectMemory, "--cpu=" + inspectCPU,
			"qemu-img", "info", "-U", "-f", s.Format, "--output=json", s.Path,
		},
		Timeout: inspectTimeout,
	})
	if err != nil {
		return Header{}, fmt.Errorf("cannot read the image header of %s, format %s: %w", s, s.Format, reason(err))
	}
	h, err := parseInfo(res.Stdout, s)
	if err != nil {
		return Header{}, fmt.Errorf("cannot use the image header of %s, format %s: %w", s, s.Format, err)
	}
	return h, nil
}

// reason keeps the last line of qemu-img's stderr, which is its own message, in place of
// the command line.
func reason(err error) error {
	var exit *run.ExitError
	if !errors.As(err, &exit) {
		return err
	}
	lines := strings.Split(strings.TrimSpace(exit.Stderr), "\n")
	if last := oneLine(lines[len(lines)-1]); last != "" {
		return errors.New(last)
	}
	return err
}

// parseInfo reads the output of `qemu-img info --output=json` (ImageInfo in QEMU's
// qapi/block-core.json) for image s.
func parseInfo(out []byte, s Source) (Header, error) {
	var info struct {
		Format        string `json:"format"`
		Backing       string `json:"backing-filename"`
		BackingFormat string `json:"backing-filename-format"`
		Size          int64  `json:"virtual-size"`
		Specific      struct {
			Data struct {
				DataFile string `json:"data-file"`
			} `json:"data"`
		} `json:"format-specific"`
	}
	if err := json.Unmarshal(object(out), &info); err != nil {
		return Header{}, fmt.Errorf("qemu-img printed no usable JSON: %w", err)
	}
	if info.Format != s.Format {
		return Header{}, fmt.Errorf("qemu-img reports format %q", info.Format)
	}
	h := Header{Size: info.Size}
	var err error
	if info.Backing != "" {
		if h.Backing, err = parseBacking(info.Backing, info.BackingFormat, s.Path); err != nil {
			return Header{}, err
		}
		if h.Backing.Format == "" {
			h.Backing.Format = "raw"
		}
	}
	if info.Specific.Data.DataFile != "" {
		if h.Data, err = parseBacking(info.Specific.Data.DataFile, "raw", s.Path); err != nil {
			return Header{}, fmt.Errorf("data file: %w", err)
		}
	}
	return h, nil
}

// object skips warnings before the JSON object, which starts a line.
func object(out []byte) []byte {
	if i := bytes.Index(append([]byte("\n"), out...), []byte("\n{")); i >= 0 {
		return out[i:]
	}
	return out
}
