package lvm

import (
	"fmt"
	"strings"

	"virtlvm/internal/api"
)

// maxName is the longest name of a VG or an LV (NAME_LEN in LVM, less the final zero).
const maxName = 127

// SplitName takes "vg/lv" apart. An error is of kind bad_request.
func SplitName(name string) (vg, lv string, err error) {
	if err := CheckName(name); err != nil {
		return "", "", err
	}
	vg, lv, _ = strings.Cut(name, "/")
	return vg, lv, nil
}

// CheckName refuses, with kind bad_request, what cannot be a "vg/lv" that a user owns:
// names outside LVM's rules, which could be read as an option or as another place, and
// LVM's own internal volumes, the volume that holds the leases among them.
func CheckName(name string) error {
	vg, lv, found := strings.Cut(name, "/")
	if !found {
		return refuse(name, `it is not of the form "vg/lv"`)
	}
	if why := wrong(vg); why != "" {
		return refuse(name, "the volume group's name "+why)
	}
	if why := wrong(lv); why != "" {
		return refuse(name, "the volume's name "+why)
	}
	if internal(lv) {
		return refuse(name, "it is one of LVM's own internal volumes")
	}
	return nil
}

// CheckVG refuses, with kind bad_request, what cannot be the name of a volume group.
func CheckVG(vg string) error {
	if why := wrong(vg); why != "" {
		return api.NewError(api.KindBadRequest, fmt.Sprintf("%q cannot be a volume group: its name %s", short(vg), why))
	}
	return nil
}

func refuse(name, why string) error {
	return api.NewError(api.KindBadRequest, fmt.Sprintf("%q cannot be a logical volume: %s", short(name), why))
}

func short(name string) string {
	if len(name) > 2*maxName {
		return strings.ToValidUTF8(name[:2*maxName], "") + "..."
	}
	return name
}

// wrong says what is wrong with a name by LVM's rules (validate_name in lvm-string.c),
// "" when nothing is.
func wrong(name string) string {
	switch {
	case name == "":
		return "is empty"
	case name[0] == '-':
		return "begins with a dash"
	case name == "." || name == "..":
		return "is a folder"
	case len(name) > maxName:
		return fmt.Sprintf("is longer than %d characters", maxName)
	}
	for _, c := range []byte(name) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && !strings.ContainsRune("._-+", rune(c)) {
			return "has characters other than letters, digits and . _ - +"
		}
	}
	return ""
}

// internal tells names that LVM reserves for the parts of volumes (is_reserved_lvname in
// lvm-string.c), and the volume of the leases.
func internal(lv string) bool {
	if lv == lockVolume || strings.HasPrefix(lv, "pvmove") || strings.HasPrefix(lv, "snapshot") {
		return true
	}
	for _, part := range []string{
		"_cdata", "_cmeta", "_corig", "_cpool", "_cvol", "_wcorig", "_mimage", "_mlog", "_rimage", "_rmeta",
		"_tdata", "_tmeta", "_vdata", "_imeta", "_iorig", "_pmspare", "_vorigin",
	} {
		if strings.Contains(lv, part) {
			return true
		}
	}
	return false
}

// lockVolume is the hidden LV of a sanlock VG that holds all leases.
const lockVolume = "lvmlock"

// MapperName is the device-mapper name of a volume, as under /dev/mapper: dashes inside
// the names are doubled.
func MapperName(vg, lv string) string {
	return strings.ReplaceAll(vg, "-", "--") + "-" + strings.ReplaceAll(lv, "-", "--")
}

// LeaseMapperName is the device-mapper name of the volume that holds a VG's leases.
func LeaseMapperName(vg string) string { return MapperName(vg, lockVolume) }
