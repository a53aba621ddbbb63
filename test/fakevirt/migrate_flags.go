package fakevirt

import "errors"

// Flags of libvirt's API (virDomainMigrateFlags).
const (
	flagLive           = 0x1
	flagP2P            = 0x2
	flagTunnelled      = 0x4
	flagPersistDest    = 0x8
	flagUndefineSource = 0x10
	flagPaused         = 0x20
	flagNonSharedDisk  = 0x40
	flagProtection     = 0x100 // set by the client library, for the source alone
	flagOffline        = 0x400
	flagPostCopy       = 0x8000
)

func (o MigrateOptions) flags() uint {
	var flags uint
	for flag, set := range map[uint]bool{
		flagLive: !o.Offline, flagOffline: o.Offline, flagP2P: o.P2P, flagTunnelled: o.Tunnelled,
		flagPersistDest: o.Persistent, flagUndefineSource: o.UndefineSource, flagPaused: o.Suspend,
		flagNonSharedDisk: o.CopyStorageAll, flagPostCopy: o.PostCopy, flagProtection: !o.P2P,
	} {
		if set {
			flags |= flag
		}
	}
	return flags
}

// refused is libvirt's objection to options that do not go together.
func (o MigrateOptions) refused(paused bool) error {
	const invalid, unsupported = "Requested operation is not valid: ", "argument unsupported: "
	for _, rule := range []struct {
		broken bool
		why    string
	}{
		{o.Tunnelled && !o.P2P, invalid + "cannot perform tunnelled migration without using peer2peer flag"},
		{o.PostCopy && (o.Offline || o.Suspend || paused), unsupported + "post-copy migration is not supported with non-live or paused migration"},
		{o.PostCopy && o.Tunnelled, unsupported + "post-copy is not supported with tunnelled migration"},
		{o.Offline && o.CopyStorageAll, invalid + "offline migration cannot handle non-shared storage"},
		{o.Offline && !o.Persistent, invalid + "offline migration must be specified with the persistent flag set"},
		{o.Offline && o.Tunnelled, invalid + "tunnelled offline migration does not make sense"},
		{o.CopyStorageAll && o.Tunnelled, "Operation not supported: migration of non-shared storage is not supported with tunnelled migration and this QEMU"},
	} {
		if rule.broken {
			return errors.New(rule.why)
		}
	}
	return nil
}
