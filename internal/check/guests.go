package check

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"virtlvm/internal/model"
)

// Guest is a guest that is defined or runs here.
type Guest struct {
	Name, UUID string
	Disks      []Disk
}

// Disk is an image of a disk of a guest on a logical volume.
type Disk struct {
	Target string // "vda"
	Path   string // as the definition names it
	Role   model.Role
	Cache  string // "" when not declared
	VG, LV string // names; what the path says
}

// volume is the managed volume that a disk is on.
func (f *Facts) volume(d Disk) (v volumeOf, ok bool) {
	for _, c := range f.managed() {
		if c.VG.Name != d.VG {
			continue
		}
		for _, v := range c.Volumes {
			if v.LV == d.LV {
				return volumeOf{v.ID, v.Name(), v.Unshareable, v.Actual}, true
			}
		}
	}
	return volumeOf{}, false
}

type volumeOf struct {
	id          model.VolumeID
	name        string
	unshareable string
	actual      model.Actual
}

func checkDefinitions(f *Facts) Result {
	var found findings
	for _, text := range f.Unreadable {
		found.warn("correct it with 'virsh edit'", "%s", text)
	}
	return found.result("%d guests", len(f.Guests))
}

func checkMigratable(f *Facts) Result {
	if none, ok := f.needVGs(); !ok {
		return none
	}
	var found findings
	for _, g := range f.Guests {
		for _, d := range g.Disks {
			if v, ok := f.volume(d); ok && v.unshareable != "" {
				found.warn("shut such a guest down to move it, or copy the volume to a linear one", "guest %s cannot live-migrate: %s (%s) is %s", show(g.Name), v.name, d.Target, v.unshareable)
			}
		}
	}
	return found.result("")
}

// checkCache: with cache mode unsafe a flush of the guest is no flush. Of the others all but
// none and directsync keep data in the host's page cache, where another host does not see
// it; QEMU drops that at the end of a live migration if it can.
func checkCache(f *Facts) Result {
	if none, ok := f.needVGs(); !ok {
		return none
	}
	var found findings
	for _, g := range f.Guests {
		for _, d := range g.Disks {
			if d.Role == model.RoleReadOnly || d.Role == model.RoleBacking {
				continue
			}
			v, ok := f.volume(d)
			if !ok {
				continue
			}
			switch d.Cache {
			case "none", "directsync":
			case "unsafe":
				found.fail("set cache='none' in the <driver> of that disk", "guest %s: %s (%s) has cache mode unsafe: what the guest has flushed is lost when this host dies", show(g.Name), v.name, d.Target)
			default:
				mode := d.Cache
				if mode == "" || mode == "default" {
					mode = "default, which is writeback"
				}
				found.warn("set cache='none' in the <driver> of that disk", "guest %s: %s (%s) has cache mode %s: the host's page cache stands between the guest and what other hosts see", show(g.Name), v.name, d.Target, mode)
			}
		}
	}
	return found.result("")
}

// use is a disk that writes a volume.
type use struct {
	guest, uuid string
	disk        Disk
}

// checkTwice looks for a volume that is written through two disks. Two guests that are never
// started together may be meant; one guest with both is never right.
func checkTwice(f *Facts) Result {
	if none, ok := f.needVGs(); !ok {
		return none
	}
	uses := map[string][]use{}
	for _, g := range f.Guests {
		for _, d := range g.Disks {
			if v, ok := f.volume(d); ok && d.Role.Mode() == model.ModeEX {
				uses[v.name] = append(uses[v.name], use{g.Name, g.UUID, d})
			}
		}
	}
	var found findings
	for _, name := range sortedKeys(uses) {
		all := uses[name]
		if len(all) < 2 {
			continue
		}
		var who []string
		same := false
		for i, u := range all {
			who = append(who, fmt.Sprintf("%s %s as %s", show(u.guest), u.disk.Target, u.disk.Path))
			same = same || slices.ContainsFunc(all[:i], func(o use) bool { return o.uuid == u.uuid })
		}
		if same {
			found.fail("remove one of the disks", "one guest writes %s through two disks (%s), and would be refused", name, join(who, ", "))
		} else {
			found.warn("remove one of the disks, or make both <shareable/> if the guests know of each other", "%s is written by more than one guest (%s): only one of them can run", name, join(who, ", "))
		}
	}
	return found.result("")
}

// BlockJob is a job of libvirt that writes into an image below a disk.
type BlockJob struct {
	Guest, Disk, Type string
	// Base is the image it writes to, where that is a logical volume: names as in Disk.
	Base Disk
	Err  error // the image is not known
}

// checkBlockJobs: a block commit writes into a backing volume, which is held shared only:
// another host may read it, or write it in the same way.
func checkBlockJobs(f *Facts) Result {
	if f.Running.Err != nil {
		return unknown(f.Running.Err)
	}
	var found findings
	const fix = "see that no guest elsewhere uses it until the job has ended ('virtlvm volumes'); 'virsh blockjob GUEST DISK --abort' ends it"
	for _, j := range f.Jobs {
		if j.Err != nil {
			found.warn(fix, "guest %s: job %s on %s writes an image that cannot be told: %s", show(j.Guest), j.Type, j.Disk, j.Err)
			continue
		}
		if v, ok := f.volume(j.Base); ok && v.actual.Lock != model.ModeEX {
			found.fail(fix, "guest %s: job %s on %s writes %s, which this host holds shared only (%s)", show(j.Guest), j.Type, j.Disk, v.name, v.actual)
		}
	}
	return found.result("")
}

// show quotes a name that would not be read as one word.
func show(name string) string {
	plain := name != "" && strings.IndexFunc(name, func(r rune) bool {
		return !unicode.IsPrint(r) || unicode.IsSpace(r) || strings.ContainsRune(`"'`, r)
	}) < 0
	if plain {
		return name
	}
	return strconv.Quote(name)
}
