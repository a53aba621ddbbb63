package model

import "strings"

// Tags that long-running commands leave on volumes. KEY is the command's, unique for ever.
const (
	// TagCommand + KEY: that command has made the volume.
	TagCommand = "virtlvm.command="
	// TagIncomplete + KEY: the content of the volume is not complete, that command is at
	// it or has failed. Such a volume is started from by no guest; with TagCommand and the
	// same KEY it may be removed.
	TagIncomplete = "virtlvm.incomplete="
	// TagErased + KEY:BYTES: so much of the volume, from its beginning, that command has written
	// over with zeros. It means something only where TagIncomplete + KEY is the one tag of its
	// sort.
	TagErased = "virtlvm.erased="
	// TagSuperseded: the volume has been moved elsewhere, its content is old. It is started
	// from by no guest.
	TagSuperseded = "virtlvm.superseded"
)

// HasTagOf reports whether the volume carries a tag that begins with prefix, and what
// follows it.
func (v Volume) HasTagOf(prefix string) (rest string, found bool) {
	for _, t := range v.Tags {
		if rest, found = strings.CutPrefix(t, prefix); found {
			return rest, true
		}
	}
	return "", false
}

// ownerCommand begins the owner of a hold that a long-running command has.
const ownerCommand = "command "

// CommandOwner is the owner of the holds of a long-running command. guest is the uuid of
// the guest whose disk it moves, and which may have the same volumes; "" if there is none.
func CommandOwner(key, guest string) string {
	if guest != "" {
		return ownerCommand + key + " for " + guest
	}
	return ownerCommand + key
}

// CommandOf takes the owner of a command's hold apart; ok is false for another owner.
func CommandOf(owner string) (key, guest string, ok bool) {
	rest, ok := strings.CutPrefix(owner, ownerCommand)
	key, guest, _ = strings.Cut(rest, " for ")
	return key, guest, ok
}

// OwnerRetained is the owner of a hold that nobody uses: the volume stays exclusive on this
// host for a quick restart of its guest, or because its lock was transferred here. It gives
// way to whoever needs the volume on this host, and to another host that asks for it while
// it is closed. It is never taken again where somebody has taken it away.
const OwnerRetained = "retained"

// IsGuest reports whether the owner of a hold is a guest, by its uuid.
func IsGuest(owner string) bool {
	_, _, command := CommandOf(owner)
	return owner != OwnerOperator && owner != OwnerRetained && !command
}

// Together reports whether two owners may both write a volume: a guest, and the command
// that moves its disk.
func Together(a, b string) bool {
	_, forA, isA := CommandOf(a)
	_, forB, isB := CommandOf(b)
	return isA && forA != "" && forA == b || isB && forB != "" && forB == a
}
