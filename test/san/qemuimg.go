package san

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// imageInfo is one image as `qemu-img info --output=json` of QEMU 10 prints it.
type imageInfo struct {
	Children      []imageChild `json:"children"`
	BackingFormat string       `json:"backing-filename-format,omitempty"`
	VirtualSize   uint64       `json:"virtual-size"`
	Filename      string       `json:"filename"`
	ClusterSize   uint64       `json:"cluster-size,omitempty"`
	Format        string       `json:"format"`
	ActualSize    int64        `json:"actual-size"`
	Specific      any          `json:"format-specific,omitempty"`
	FullBacking   string       `json:"full-backing-filename,omitempty"`
	Backing       string       `json:"backing-filename,omitempty"`
	Dirty         bool         `json:"dirty-flag"`
}

type imageChild struct {
	Name string    `json:"name"`
	Info imageInfo `json:"info"`
}

// qemuImg is qemu-img(1) on the files behind the host's devices.
func (c *call) qemuImg() int {
	if len(c.args) > 0 {
		switch c.args[0] {
		case "info":
			return c.qemuInfo()
		case "create":
			return c.qemuCreate(c.args[1:])
		case "convert":
			return c.qemuConvert(c.args[1:])
		case "compare":
			return c.qemuCompare(c.args[1:])
		case "check":
			return c.qemuCheck(c.args[1:])
		case "measure":
			return c.qemuMeasure(c.args[1:])
		case "resize":
			return c.qemuResize(c.args[1:])
		}
	}
	fmt.Fprintln(&c.err, "qemu-img: only info, create, convert, compare, check, measure and resize are simulated")
	return 1
}

// qemuInfo is `qemu-img info`, which reads the real header of an image.
func (c *call) qemuInfo() int {
	o, err := parse(c.args[1:], "forceshare/U backingchain output= f/f= imageopts object=")
	if err != nil || len(o.rest) != 1 {
		fmt.Fprintf(&c.err, "qemu-img: Expecting one image file name\n")
		return 1
	}
	infos, err := c.chain(o.rest[0], o.last("f"), o.has("backingchain"))
	if err != nil {
		fmt.Fprintf(&c.err, "qemu-img: %v\n", err)
		return 1
	}
	if o.last("output") != "json" {
		for _, i := range infos {
			fmt.Fprintf(&c.out, "image: %s\nfile format: %s\nvirtual size: %d bytes\n", i.Filename, i.Format, i.VirtualSize)
			if i.Backing != "" {
				fmt.Fprintf(&c.out, "backing file: %s\nbacking file format: %s\n", i.Backing, i.BackingFormat)
			}
		}
		return exitOK
	}
	var answer any = infos[0]
	if o.has("backingchain") {
		answer = infos
	}
	enc := json.NewEncoder(&c.out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "    ")
	if err := enc.Encode(answer); err != nil {
		return c.broken(err)
	}
	return exitOK
}

// chain reads an image and, if asked to, all below it.
func (c *call) chain(name, format string, all bool) ([]imageInfo, error) {
	var out []imageInfo
	for seen := map[string]bool{}; ; {
		if seen[name] {
			return nil, fmt.Errorf("Backing file '%s' creates an infinite loop.", name) //nolint:revive,staticcheck // QEMU's words
		}
		seen[name] = true
		i, err := c.image(name, format)
		if err != nil {
			return nil, err
		}
		out = append(out, i)
		if !all || i.FullBacking == "" {
			return out, nil
		}
		name, format = i.FullBacking, i.BackingFormat
	}
}

// image reads one image; format "" probes, as QEMU does.
func (c *call) image(name, format string) (imageInfo, error) {
	f, err := os.Open(c.hostPath(name))
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			err = syscall.ENOENT
		}
		text := err.Error()
		text = strings.ToUpper(text[:1]) + text[1:]
		return imageInfo{}, fmt.Errorf("Could not open '%s': Could not open '%s': %s", name, name, text) //nolint:staticcheck // QEMU's words
	}
	defer f.Close()
	stat, err := f.Stat()
	if err != nil {
		return imageInfo{}, err
	}
	i := imageInfo{Filename: name, Format: "raw", VirtualSize: uint64(stat.Size())}
	if sys, ok := stat.Sys().(*syscall.Stat_t); ok {
		i.ActualSize = sys.Blocks * 512
	}
	file := i
	file.Format, file.Children = "file", []imageChild{}
	i.Children = []imageChild{{Name: "file", Info: file}}
	if format == "raw" {
		return i, nil
	}
	h, err := readQcow2(f)
	switch {
	case format == "" && errors.Is(err, errNotQcow2):
		return i, nil
	case format != "" && format != "qcow2":
		return i, fmt.Errorf("Could not open '%s': Unknown driver '%s'", name, format) //nolint:staticcheck // QEMU's words
	case err != nil:
		return i, fmt.Errorf("Could not open '%s': %w", name, err) //nolint:staticcheck // QEMU's words
	}
	i.Format, i.VirtualSize, i.ClusterSize, i.Dirty = "qcow2", h.virtualSize, h.clusterSize, h.dirty
	i.Backing, i.FullBacking, i.BackingFormat = h.backing, h.backing, h.backingFormat
	if h.backing != "" && !filepath.IsAbs(h.backing) && !strings.Contains(h.backing, ":") {
		i.FullBacking = filepath.Join(filepath.Dir(name), h.backing)
	}
	i.Specific = map[string]any{"type": "qcow2", "data": map[string]any{
		"compat": map[uint32]string{2: "0.10", 3: "1.1"}[h.version], "compression-type": "zlib",
		"lazy-refcounts": false, "refcount-bits": 16, "corrupt": false, "extended-l2": false,
	}}
	return i, nil
}

// hostPath finds a path of the host: its /dev is a folder of the SAN, which may itself lie
// in this machine's /dev/shm.
func (c *call) hostPath(name string) string {
	if strings.HasPrefix(name, c.san.dir+"/") {
		return name
	}
	if rest, ok := strings.CutPrefix(filepath.Clean(name), "/dev/"); ok {
		return filepath.Join(c.host.DevDir(), rest)
	}
	return name
}
