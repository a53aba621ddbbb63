package fakevirt

import (
	"errors"

	"libvirt.org/go/libvirtxml"
)

// Flags of libvirt's API (virDomainMigrateFlags).
const (
	flagLive           = 0x1
	flagP2P            = 0x2
	flagTunnelled      = 0x4
	flagPersistDest    = 0x8
	flagUndefineSource = 0x10
	flagPaused         = 0x20
	flagNonSharedDisk  = 0x40
	flagUnsafe         = 0x200
	flagProtection     = 0x100 // set by the client library, for the source alone
	flagOffline        = 0x400
	flagPostCopy       = 0x8000
)

func (o MigrateOptions) flags() uint {
	var flags uint
	for flag, set := range map[uint]bool{
		flagLive: !o.Offline, flagOffline: o.Offline, flagP2P: o.P2P, flagTunnelled: o.Tunnelled,
		flagPersistDest: o.Persistent, flagUndefineSource: o.UndefineSource, flagPaused: o.Suspend,
		flagNonSharedDisk: o.CopyStorageAll, flagPostCopy: o.PostCopy, flagUnsafe: o.Unsafe, flagProtection: !o.P2P,
	} {
		if set {
			flags |= flag
		}
	}
	return flags
}

// unsafe is libvirt's objection to disks that its check for page caches does not like
// (qemuMigrationSrcIsSafe). Every file is on a local file system here.
func (o MigrateOptions) unsafe(dom *libvirtxml.Domain, oldQEMU bool) error {
	if o.Unsafe || o.Offline || o.CopyStorageAll {
		return nil
	}
	for _, d := range disksOf(dom) {
		if d.Source == nil || d.ReadOnly != nil || d.Device == "cdrom" {
			continue
		}
		cache := ""
		if d.Driver != nil {
			cache = d.Driver.Cache
		}
		switch {
		case d.Source.File != nil:
			return errors.New("Unsafe migration: Migration without shared storage is unsafe") //nolint:staticcheck // libvirt's words
		case d.Source.Network != nil, d.Shareable != nil, cache == "none", cache == "directsync", !oldQEMU:
		default:
			return errors.New("Unsafe migration: Migration may lead to data corruption if disks use cache other than none or directsync") //nolint:staticcheck // libvirt's words
		}
	}
	return nil
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
