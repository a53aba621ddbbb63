package cluster

import (
	"encoding/binary"
	"errors"
)

const (
	sectorSize = 512
	// counterOffset is where a guest with BootSector writes its counter on its disk.
	counterOffset = sectorSize
	counterMagic  = "VIRTLVM1"
	// probeExit is what QEMU exits with after probeSector: isa-debug-exit doubles the
	// value and adds one.
	probeExit = 0x15<<1 | 1
)

// bootable pads 8086 code to a disk sector that a BIOS boots.
func bootable(code []byte) []byte {
	sector := make([]byte, sectorSize)
	copy(sector, code)
	binary.LittleEndian.PutUint16(sector[sectorSize-2:], 0xaa55)
	return sector
}

// probeSector is a system that ends QEMU through its isa-debug-exit device on port 0xf4.
func probeSector() []byte {
	return bootable([]byte{
		0xb0, 0x15, //       mov al, 0x15
		0xba, 0xf4, 0x00, // mov dx, 0xf4
		0xee, //             out dx, al
		0xf4, //             hlt
	})
}

// BootSector is a whole guest system. About 18 times a second, at each tick of the PC's
// timer, it adds one to a counter, writes it to 128 pages of memory and to the disk's
// second sector: memory for a live migration to carry, and proof that no write was lost.
// The counter goes on from what the disk holds, so it never gets smaller.
func BootSector() []byte {
	return bootable([]byte{
		0xfa,       //             cli
		0x31, 0xc0, //             xor ax, ax
		0x8e, 0xd8, //             mov ds, ax
		0x8e, 0xd0, //             mov ss, ax
		0xbc, 0x00, 0x7c, //       mov sp, 0x7c00
		0xfb,       //             sti
		0xb4, 0x42, //             mov ah, 0x42           ; extended read
		0xe8, 0x37, 0x00, //       call disk
		0x66, 0xc7, 0x06, 0x00, 0x7e, 'V', 'I', 'R', 'T', // mov dword [0x7e00], magic
		0x66, 0xc7, 0x06, 0x04, 0x7e, 'L', 'V', 'M', '1', // mov dword [0x7e04], magic
		0xf4,                         // next: hlt
		0x66, 0xff, 0x06, 0x08, 0x7e, //   inc dword [0x7e08]
		0x66, 0xa1, 0x08, 0x7e, //         mov eax, [0x7e08]
		0xbb, 0x00, 0x10, //               mov bx, 0x1000   ; pages from 0x10000 to 0x8ffff
		0x8e, 0xc3, //               page: mov es, bx
		0x26, 0x66, 0xa3, 0x00, 0x00, //   mov es:[0], eax
		0x81, 0xc3, 0x00, 0x01, //         add bx, 0x100
		0x81, 0xfb, 0x00, 0x90, //         cmp bx, 0x9000
		0x72, 0xef, //                     jb page
		0xb4, 0x43, //                     mov ah, 0x43     ; extended write
		0xe8, 0x02, 0x00, //               call disk
		0xeb, 0xdb, //                     jmp next
		0xb0, 0x00, //               disk: mov al, 0
		0xb2, 0x80, //                     mov dl, 0x80     ; first hard disk
		0xbe, 0x51, 0x7c, //               mov si, packet
		0xcd, 0x13, //                     int 0x13
		0xc3, //                           ret
		// packet: its size, one sector, buffer at 0000:7e00, disk sector 1
		0x10, 0, 1, 0, 0x00, 0x7e, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0,
	})
}

// parseCounter reads the counter from a guest disk's second sector.
func parseCounter(sector []byte) (uint32, error) {
	if len(sector) < 12 || string(sector[:8]) != counterMagic {
		return 0, errors.New("the guest has not written its counter yet")
	}
	return binary.LittleEndian.Uint32(sector[8:12]), nil
}
