package model

// OwnerRetained is the owner of a hold that nobody uses: the volume stays exclusive on this
// host for a quick restart of its guest, or because its lock was transferred here. It gives
// way to whoever needs the volume on this host, and to another host that asks for it while
// it is closed. It is never taken again where somebody has taken it away.
const OwnerRetained = "retained"

// IsGuest reports whether the owner of a hold is a guest, by its uuid.
func IsGuest(owner string) bool { return owner != OwnerOperator && owner != OwnerRetained }
