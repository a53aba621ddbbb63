package cluster

import (
	"encoding/binary"
	"os"

	"virtlvm/test/san"
)

// writeQcow2 writes a header that names a backing volume, as qemu-img create -b does, on a
// volume of vg_san.
func writeQcow2(s *san.SAN, lv, backing, format string) error {
	v, err := s.Volume("vg_san", lv)
	if err != nil {
		return err
	}
	head := make([]byte, 4096)
	copy(head, "QFI\xfb")
	binary.BigEndian.PutUint32(head[4:], 3)
	binary.BigEndian.PutUint64(head[24:], 32<<20)
	binary.BigEndian.PutUint32(head[20:], 16)   // cluster bits
	binary.BigEndian.PutUint32(head[96:], 4)    // refcount order
	binary.BigEndian.PutUint32(head[100:], 104) // header length
	at := 104
	if backing != "" {
		binary.BigEndian.PutUint32(head[at:], 0xE2792ACA)
		binary.BigEndian.PutUint32(head[at+4:], uint32(len(format)))
		copy(head[at+8:], format)
		binary.BigEndian.PutUint64(head[8:], 1024)
		binary.BigEndian.PutUint32(head[16:], uint32(len(backing)))
		copy(head[1024:], backing)
	}
	return os.WriteFile(v.Data, head, 0o600)
}
