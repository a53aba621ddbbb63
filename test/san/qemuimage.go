package san

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// flatData is where the guest's data begins in a qcow2 image of the fake: flat behind the
// header, which has no real tables.
const flatData = 1 << 20

// openImage is an image that a program works on; the device is marked as open meanwhile.
type openImage struct {
	*os.File
	format string
	size   int64 // that a guest sees
	at     int64 // where its data begins
	name   string
	close  func()
}

// imageName is an image as `qemu-img --image-opts` names one, or a file name.
func imageName(name, format string, opts bool) (path, driver string, size int64) {
	if !opts {
		return name, format, 0
	}
	for _, word := range strings.Split(name, ",") {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "driver":
			driver = value
		case "size":
			size, _ = strconv.ParseInt(value, 10, 64)
		case "file.filename":
			path = value
		}
	}
	return path, driver, size
}

// openImage opens an image of a format that must be said.
func (c *call) openImage(name, format string, opts, write bool) (*openImage, error) {
	path, format, size := imageName(name, format, opts)
	flags := os.O_RDONLY
	if write {
		flags = os.O_RDWR
	}
	real := c.hostPath(path)
	f, err := os.OpenFile(real, flags, 0)
	if err != nil {
		return nil, fmt.Errorf("Could not open '%s': No such file or directory", path) //nolint:staticcheck // QEMU's words
	}
	im := &openImage{File: f, format: format, name: path}
	im.close = c.markOpen(real)
	stat, err := f.Stat()
	if err != nil {
		return nil, err
	}
	im.size = stat.Size()
	if format == "qcow2" {
		h, err := readQcow2(f)
		if err != nil {
			im.done()
			return nil, fmt.Errorf("Could not open '%s': %w", path, err) //nolint:staticcheck // QEMU's words
		}
		im.size, im.at = int64(h.virtualSize), flatData
	}
	if size > 0 {
		im.size = size
	}
	return im, nil
}

func (im *openImage) done() {
	_ = im.Close()
	im.close()
}

// markOpen marks the volume behind a path of the host as open; it returns what undoes it.
func (c *call) markOpen(real string) func() {
	target, err := os.Readlink(real)
	if err != nil {
		return func() {}
	}
	name, err := os.ReadFile(filepath.Join(c.host.SysDir(), "block", filepath.Base(target), "dm/name"))
	if err != nil {
		return func() {}
	}
	dir := c.san.openDir(c.host.name, strings.TrimSpace(string(name)))
	marker := filepath.Join(dir, strconv.Itoa(c.san.nextPID()))
	if os.MkdirAll(dir, 0o755) != nil || os.WriteFile(marker, nil, 0o644) != nil {
		return func() {}
	}
	return func() { _ = os.Remove(marker) }
}

// at reads a piece of what a guest sees.
func (im *openImage) piece(buf []byte, at int64) error {
	n, err := im.ReadAt(buf, im.at+at)
	if errors.Is(err, io.EOF) {
		clear(buf[n:])
		return nil
	}
	return err
}

const pieceSize = 1 << 20

func (c *call) progress(at, size int64) {
	if size > 0 {
		fmt.Fprintf(&c.out, "    (%.2f/100%%)\r", float64(at)*100/float64(size))
	}
}

func (c *call) qemuError(err error) int {
	fmt.Fprintf(&c.err, "qemu-img: %v\n", err)
	return 1
}

// makeFile makes a file that an image goes to, where there is none; devices are never made.
func (c *call) makeFile(name string, size int64) error {
	if strings.HasPrefix(name, "/dev/") {
		return nil
	}
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(size), f.Close())
}

// qemuCreate is `qemu-img create -f FORMAT [-b BACKING -F FORMAT] FILE SIZE`, which opens all
// that is below.
func (c *call) qemuCreate(args []string) int {
	o, err := parse(args, "quiet/q f/f= o/o= b/b= F/F=")
	if err != nil || len(o.rest) != 2 {
		return c.qemuError(errors.New("Expecting image file name")) //nolint:staticcheck // QEMU's words
	}
	size, _ := strconv.ParseInt(o.rest[1], 10, 64)
	if err := c.makeFile(o.rest[0], size); err != nil {
		return c.qemuError(err)
	}
	if o.last("f") != "qcow2" {
		return exitOK
	}
	im, err := c.openImage(o.rest[0], "raw", false, true)
	if err != nil {
		return c.qemuError(err)
	}
	defer im.done()
	if o.has("b") {
		if _, err := c.chain(o.last("b"), o.last("F"), true); err != nil {
			return c.qemuError(err)
		}
	}
	if _, err := im.WriteAt(Qcow2Image(size, o.last("b"), o.last("F")), 0); err != nil {
		return c.broken(err)
	}
	return exitOK
}

// qemuResize is `qemu-img resize -f qcow2 [--shrink] FILE SIZE`.
func (c *call) qemuResize(args []string) int {
	o, err := parse(args, "quiet/q f/f= shrink")
	if err != nil || len(o.rest) != 2 || o.last("f") != "qcow2" {
		return c.qemuError(errors.New("Expecting image file name and size")) //nolint:staticcheck // QEMU's words
	}
	size, _ := strconv.ParseInt(o.rest[1], 10, 64)
	im, err := c.openImage(o.rest[0], "qcow2", false, true)
	if err != nil {
		return c.qemuError(err)
	}
	defer im.done()
	if size < im.size && !o.has("shrink") {
		return c.qemuError(errors.New("Use the --shrink option to perform a shrink operation.")) //nolint:staticcheck,revive // QEMU's words
	}
	if _, err := im.WriteAt(binary.BigEndian.AppendUint64(nil, uint64(size)), qcow2SizeAt); err != nil {
		return c.broken(err)
	}
	return exitOK
}

// qemuConvert is `qemu-img convert`; without -n it makes the file first.
func (c *call) qemuConvert(args []string) int {
	o, err := parse(args, "progress/p nocreate/n t/t= T/T= f/f= O/O= r/r= m/m= outoforder/W")
	if err != nil || len(o.rest) != 2 || !o.has("nocreate") && strings.HasPrefix(o.rest[1], "/dev/") {
		return c.qemuError(errors.New("Must specify image file name")) //nolint:staticcheck // QEMU's words
	}
	src, err := c.openImage(o.rest[0], o.last("f"), false, false)
	if err != nil {
		return c.qemuError(err)
	}
	defer src.done()
	if !o.has("nocreate") {
		if err := c.makeFile(o.rest[1], src.size); err != nil {
			return c.qemuError(err)
		}
		if o.last("O") == "qcow2" {
			if err := os.WriteFile(o.rest[1], Qcow2Image(src.size, "", ""), 0o644); err != nil {
				return c.qemuError(err)
			}
		}
	}
	dst, err := c.openImage(o.rest[1], o.last("O"), false, true)
	if err != nil {
		return c.qemuError(err)
	}
	defer dst.done()
	if dst.size < src.size {
		return c.qemuError(fmt.Errorf("Output file is smaller than input file")) //nolint:staticcheck // QEMU's words
	}
	buf := make([]byte, pieceSize)
	for at := int64(0); at < src.size; at += pieceSize {
		c.progress(at, src.size)
		if c.ctx.Err() != nil {
			return exitTerm
		}
		piece := buf[:min(pieceSize, src.size-at)]
		if err := src.piece(piece, at); err != nil {
			return c.broken(err)
		}
		if _, err := dst.WriteAt(piece, dst.at+at); err != nil {
			return c.broken(err)
		}
	}
	c.progress(1, 1)
	c.out.WriteString("\n")
	return exitOK
}

// qemuCompare is `qemu-img compare`: images of different sizes are alike where the larger
// one goes on with zeros.
func (c *call) qemuCompare(args []string) int {
	o, err := parse(args, "progress/p T/T= f/f= F/F= imageopts s/s")
	if err != nil || len(o.rest) != 2 {
		return c.qemuError(errors.New("Expecting two image file names")) //nolint:staticcheck // QEMU's words
	}
	var images [2]*openImage
	for i, format := range []string{o.last("f"), o.last("F")} {
		if images[i], err = c.openImage(o.rest[i], format, o.has("imageopts"), false); err != nil {
			return c.qemuError(err)
		}
		defer images[i].done()
	}
	size := max(images[0].size, images[1].size)
	a, b := make([]byte, pieceSize), make([]byte, pieceSize)
	for at := int64(0); at < size; at += pieceSize {
		c.progress(at, size)
		if c.ctx.Err() != nil {
			return exitTerm
		}
		for i, buf := range [][]byte{a, b} {
			clear(buf)
			if n := min(pieceSize, images[i].size-at); n > 0 {
				if err := images[i].piece(buf[:n], at); err != nil {
					return c.broken(err)
				}
			}
		}
		for i := range a {
			if a[i] != b[i] {
				fmt.Fprintf(&c.out, "\nContent mismatch at offset %d!\n", (at+int64(i))/512*512)
				return 1
			}
		}
	}
	c.progress(1, 1)
	c.out.WriteString("\nImages are identical.\n")
	return exitOK
}

// qemuMeasure is `qemu-img measure --output=json -O FORMAT --size N`; numbers of QEMU 10 for
// clusters of 64 KiB.
func (c *call) qemuMeasure(args []string) int {
	o, err := parse(args, "output= O/O= size= f/f=")
	size, sizeErr := strconv.ParseInt(o.last("size"), 10, 64)
	if err != nil || sizeErr != nil {
		return c.qemuError(errors.New("Either --size N or one filename must be specified.")) //nolint:staticcheck,revive // QEMU's words
	}
	full := size
	if o.last("O") == "qcow2" {
		full += flatData // more than the real one's tables, as the fake needs it
	}
	enc := json.NewEncoder(&c.out)
	enc.SetIndent("", "    ")
	if err := enc.Encode(map[string]int64{"required": full - size, "fully-allocated": full}); err != nil {
		return c.broken(err)
	}
	return exitOK
}

// qemuCheck is `qemu-img check -f qcow2`, which here looks at the header alone.
func (c *call) qemuCheck(args []string) int {
	o, err := parse(args, "quiet/q f/f=")
	if err != nil || len(o.rest) != 1 {
		return c.qemuError(errors.New("Expecting one image file name")) //nolint:staticcheck // QEMU's words
	}
	im, err := c.openImage(o.rest[0], o.last("f"), false, false)
	if err != nil {
		return c.qemuError(err)
	}
	im.done()
	return exitOK
}
