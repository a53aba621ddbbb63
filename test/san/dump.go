package san

import (
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"
)

// directDump reads the leases on disk: PATH[:OFFSET[:SIZE]].
func (c *call) directDump(arg string) int {
	path, offset, length := arg, int64(0), int64(0)
	if parts := strings.Split(arg, ":"); len(parts) > 1 {
		path = parts[0]
		offset, _ = strconv.ParseInt(parts[1], 10, 64)
		if len(parts) > 2 {
			length, _ = strconv.ParseInt(parts[2], 10, 64)
		}
	}
	code := exitOK
	err := c.view(func(st *state, hs *hostState) error {
		for _, vg := range st.vgsByName() {
			if name := dmName(vg.Name, lockLVName); filepath.Base(path) == name && hs.Devs[name] != nil {
				c.dump(st, vg, offset, length)
				return nil
			}
		}
		fmt.Fprintf(&c.out, "Device %s not found.\n", path)
		code = 1
		return nil
	})
	if err != nil {
		return c.broken(err)
	}
	return code
}

func (c *call) dump(st *state, vg *vgState, offset, length int64) {
	b, now := &c.out, c.san.now(st)
	fmt.Fprintf(b, "%8s %36s %48s %10s %4s %4s %s\n", "offset", "lockspace", "resource", "timestamp", "own", "gen", "lver")
	end := int64(lockLVSize)
	if length > 0 {
		end = min(end, offset+length)
	}
	for off := offset; off < end; off += leaseSize {
		switch {
		case off == 0:
			for _, id := range vg.hostIDs() {
				d := vg.Deltas[id]
				fmt.Fprintf(b, "%08d %36s %48s %010d %04d %04d\n", (id-1)*512, "lvm_"+vg.Name, d.Name,
					d.timestamp(now, st.renewal()), id, d.Gen)
			}
		case off == glOffset:
			dumpLease(b, vg, off, "GLLK", &vg.GL)
		case off == glOffset+leaseSize:
			dumpLease(b, vg, off, "VGLK", &vg.VGL)
		case off >= firstLease:
			l := vg.Leases[off]
			if l == nil {
				l = &lease{Resource: "#unused"}
			}
			dumpLease(b, vg, off, l.Resource, l)
		}
	}
}

func dumpLease(b io.Writer, vg *vgState, off int64, name string, l *lease) {
	fmt.Fprintf(b, "%08d %36s %48s %010d %04d %04d %d\n", off, "lvm_"+vg.Name, name, l.Timestamp, l.Own, l.Gen, l.Lver)
	for _, r := range l.SH {
		fmt.Fprintf(b, "%106s%04d %04d SH\n", "", r.ID, r.Gen)
	}
}
