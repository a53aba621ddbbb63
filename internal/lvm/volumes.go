package lvm

import (
	"fmt"
	"strconv"

	"virtlvm/internal/api"
	"virtlvm/internal/run"
)

// CreateCmd is the lvcreate that makes a plain volume "vg/lv" of size bytes, a multiple of
// the VG's extent size, with tags, active exclusively on this host and never activated by
// a boot. Its beginning is zeroed and what an earlier volume has left there is wiped, whatever
// lvm.conf says; -y answers the question whether it may be.
func CreateCmd(name string, size int64, tags ...string) run.Cmd {
	vg, lv, err := SplitName(name)
	args := []string{"-y", "-aey", "-Zy", "-Wy", "--setautoactivation", "n", "-L", strconv.FormatInt(size, 10) + "b", "-n", lv}
	for _, tag := range tags {
		args = append(args, "--addtag", tag)
	}
	cmd := run.Cmd{Name: "lvcreate", Args: append(args, vg), Err: err}
	if err == nil && size <= 0 {
		cmd.Err = api.NewError(api.KindBadRequest, fmt.Sprintf("cannot create %s with %d bytes", name, size))
	}
	return cmd
}

// RemoveCmd is the lvremove of one volume "vg/lv", active here or not. LVM refuses one that
// is open here or locked elsewhere.
func RemoveCmd(name string) run.Cmd {
	return run.Cmd{Name: "lvremove", Args: []string{"-y", name}, Err: CheckName(name)}
}

// TagCmd is the lvchange that adds and deletes tags of a volume "vg/lv". It changes
// metadata alone, and needs no lock of the volume. A tag that is there, or not there,
// already is no error.
func TagCmd(name string, add, del []string) run.Cmd {
	cmd := run.Cmd{Name: "lvchange", Err: CheckName(name)}
	for _, tag := range add {
		cmd.Args = append(cmd.Args, "--addtag", tag)
	}
	for _, tag := range del {
		cmd.Args = append(cmd.Args, "--deltag", tag)
	}
	if cmd.Err == nil && len(cmd.Args) == 0 {
		cmd.Err = api.NewError(api.KindBadRequest, "no tag is named")
	}
	cmd.Args = append(cmd.Args, name)
	return cmd
}

// ResizeCmd is the lvextend, or where it gets smaller the lvreduce, that gives a volume
// "vg/lv" so many bytes, a multiple of the VG's extent size. It must be active exclusively
// here, or nowhere. What lvreduce would cut off is lost; a file system that it finds there it
// refuses to cut (since 2.03.17).
func ResizeCmd(name string, size int64, smaller bool) run.Cmd {
	cmd := run.Cmd{Name: "lvextend", Args: []string{"-L", strconv.FormatInt(size, 10) + "b", name}, Err: CheckName(name)}
	if smaller {
		cmd.Name, cmd.Args = "lvreduce", append([]string{"-y"}, cmd.Args...)
	}
	if cmd.Err == nil && size <= 0 {
		cmd.Err = api.NewError(api.KindBadRequest, fmt.Sprintf("cannot resize %s to %d bytes", name, size))
	}
	return cmd
}
