package model

// Tags that say what a volume is. They stay for as long as it exists.
const (
	// TagFormat + "raw" or "qcow2": what is on the volume. A volume without it is raw as far
	// as virtlvm knows: content is never looked at, since a guest writes it.
	TagFormat = "virtlvm.format="
	// TagBacking + LV uuid: the qcow2 image on the volume has that volume below it.
	TagBacking = "virtlvm.backing="
)

// Format is what is known to be on a volume; "" where nothing says so.
func (v Volume) Format() string {
	format, _ := v.HasTagOf(TagFormat)
	return format
}
