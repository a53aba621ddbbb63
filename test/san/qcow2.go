package san

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// The qcow2 header, version 3 (QEMU's docs/interop/qcow2.txt): big-endian fields, header
// extensions from byte 104 (72 in version 2), the backing file name behind them.
const (
	qcow2Magic       = 0x514649fb // "QFI\xfb"
	qcow2V2Size      = 72
	qcow2V3Size      = 104
	extBackingFormat = 0xe2792aca
	clusterBits      = 16
	maxBackingName   = 1023
	qcow2SizeAt      = 24
)

// qcow2Header is what `qemu-img info` needs of an image.
type qcow2Header struct {
	version       uint32
	backing       string
	backingFormat string
	virtualSize   uint64
	clusterSize   uint64
	dirty         bool
}

var errNotQcow2 = errors.New("Image is not in qcow2 format") //nolint:staticcheck // QEMU's words

// readQcow2 reads an image's header.
func readQcow2(r io.ReaderAt) (qcow2Header, error) {
	var h qcow2Header
	buf := make([]byte, 1<<clusterBits)
	n, err := r.ReadAt(buf, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return h, err
	}
	if buf = buf[:n]; n < qcow2V2Size || binary.BigEndian.Uint32(buf) != qcow2Magic {
		return h, errNotQcow2
	}
	u32 := func(at int) uint32 { return binary.BigEndian.Uint32(buf[at:]) }
	h.version = u32(4)
	if h.version != 2 && h.version != 3 {
		return h, fmt.Errorf("Unsupported qcow2 version %d", h.version) //nolint:staticcheck // QEMU's words
	}
	h.clusterSize, h.virtualSize = 1<<u32(20), binary.BigEndian.Uint64(buf[24:])
	start := qcow2V2Size
	if h.version == 3 {
		if n < qcow2V3Size {
			return h, errNotQcow2
		}
		start = int(u32(100))
		h.dirty = buf[79]&1 != 0
	}
	off, size := binary.BigEndian.Uint64(buf[8:]), u32(16)
	if off == 0 {
		return h, nil
	}
	if size > maxBackingName {
		return h, errors.New("Backing file name too long") //nolint:staticcheck // QEMU's words
	}
	if off+uint64(size) > uint64(n) {
		return h, errors.New("Invalid backing file offset") //nolint:staticcheck // QEMU's words
	}
	h.backing = string(buf[off : off+uint64(size)])
	for at := start; at+8 <= int(off); {
		kind, length := u32(at), int(u32(at+4))
		if kind == 0 || at+8+length > n {
			break
		}
		if kind == extBackingFormat {
			h.backingFormat = string(buf[at+8 : at+8+length])
		}
		at += 8 + (length+7)/8*8
	}
	return h, nil
}

// Qcow2Image is the start of an empty qcow2 image of that virtual size in bytes, enough
// for everything that reads headers. backing may be empty; so may its format.
func Qcow2Image(size int64, backing, backingFormat string) []byte {
	b := make([]byte, qcow2V3Size)
	put32 := func(at int, v uint32) { binary.BigEndian.PutUint32(b[at:], v) }
	put32(0, qcow2Magic)
	put32(4, 3)
	put32(20, clusterBits)
	binary.BigEndian.PutUint64(b[24:], uint64(size))
	put32(36, uint32(size>>29)+1) // L1 entries: one for 512 MiB
	binary.BigEndian.PutUint64(b[40:], 3<<clusterBits)
	binary.BigEndian.PutUint64(b[48:], 1<<clusterBits) // refcount table
	put32(56, 1)
	put32(96, 4) // refcounts of 16 bits
	put32(100, qcow2V3Size)
	var ext bytes.Buffer
	add := func(kind uint32, data string) {
		_ = binary.Write(&ext, binary.BigEndian, []uint32{kind, uint32(len(data))}) // never fails
		ext.WriteString(data + string(make([]byte, (8-len(data)%8)%8)))
	}
	if backingFormat != "" {
		add(extBackingFormat, backingFormat)
	}
	add(0, "")
	if backing != "" {
		binary.BigEndian.PutUint64(b[8:], uint64(qcow2V3Size+ext.Len()))
		put32(16, uint32(len(backing)))
	}
	return append(append(b, ext.Bytes()...), backing...)
}
