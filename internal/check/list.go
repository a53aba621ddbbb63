package check

// Groups, in the order in which they are printed.
const (
	groupLVM     = "LVM"
	groupSanlock = "sanlock"
	groupLibvirt = "libvirt"
	groupGuests  = "guests"
	groupVolumes = "volumes"
	groupHosts   = "hosts"
	groupVirtlvm = "virtlvm"
)

// All lists every check, in the order of the output. docs/check.md is made of it.
func All() []Check {
	return []Check{
		{
			"lvm.tools", groupLVM, "that the programs virtlvm runs are installed",
			"LVM with lvmlockd, sanlock, dmsetup: without one of them no volume can be locked. Without qemu-img or prlimit guests with image chains are refused; without ssh no guest migrates.",
			"Install the package that is named.", checkTools,
		}, {
			"lvm.version", groupLVM, "for a version of LVM that is known",
			"virtlvm reads LVM's messages, and those of 2.03.16 to 2.03.40 are known. Older than 2.03.12 lacks what it needs. A PASS names what that version cannot do.",
			"Upgrade lvm2 and lvm2-lockd, or virtlvm.", checkLVMVersion,
		}, {
			"lvm.use_lvmlockd", groupLVM, "for use_lvmlockd in lvm.conf",
			"Without it LVM takes no locks here.",
			"`use_lvmlockd = 1` in the section `global` of /etc/lvm/lvm.conf.", checkUseLvmlockd,
		}, {
			"lvm.host_id", groupLVM, "for a host_id in lvmlocal.conf",
			"sanlock knows hosts by this number, 1 to 2000. WARN: a lockspace was started with another one.",
			"`host_id = N` in the section `local` of /etc/lvm/lvmlocal.conf.", checkHostID,
		}, {
			"lvm.host_id_unique", groupLVM, "that no other host has this host_id",
			"The name that stands at our host_id on the disk of each volume group must be ours. Of two hosts with one number only the first can lock anything. With --cluster the hosts are compared with each other, too.",
			"Another number in lvmlocal.conf of one of them.", checkHostIDUnique,
		}, {
			"lvm.lvmlockd", groupLVM, "that lvmlockd runs",
			"It takes the locks that LVM's commands ask for.",
			"`systemctl enable --now lvmlockd`; where one has died and left locks behind, `lvmlockd --adopt 1` or a reboot.", checkLvmlockd,
		}, {
			"lvm.managed", groupLVM, "for volume groups to manage",
			"Those with lock type sanlock in the scope of virtlvm.toml. FAIL: one cannot be read, or an LVM command hangs on it. WARN: there is none, one uses dlm, or one that virtlvm.toml names is not seen.",
			"`vgcreate --shared`; check the paths to the storage, and the devices file or filter of lvm.conf.", checkManaged,
		}, {
			"lvm.unshared", groupLVM, "that guests' volumes are in shared volume groups",
			"Nothing keeps a guest on a volume group without lvmlockd from running on two hosts. That is right for a host's own disk alone.",
			"`vgchange --lock-type sanlock VG` while nothing in it is active on any host. Who cannot convert it can have virtlvm's hosts ask each other: `unsafe_claims` in virtlvm.toml, see docs/locks.md.", checkUnshared,
		}, {
			"lvm.claims", groupLVM, "that the members of claimed volume groups agree",
			"There hosts ask each other in place of LVM's locks. FAIL: this host is not named as a member, or another one does not answer or names other members (no guest can start there then). WARN: one counts as fenced, or the volume group is not seen, or has LVM's locks by now. Where all volume groups are such, what only LVM's locks need is a SKIP if it is not there.",
			"The same `members` in virtlvm.toml of all of them; bring a silent host back or, if it is off for sure, `virtlvm host fenced NAME`.", checkClaims,
		}, {
			"lvm.lockspaces", groupLVM, "that the lockspaces are started",
			"A host joins the locks of a volume group with `vgchange --lockstart`; at boot the distribution's lvmlocks.service is known to fail. Until then guests on it are refused here.",
			"`vgchange --lockstart VG`. `check --fix` runs it where lvmlockd and sanlock run.", checkLockspaces,
		}, {
			"lvm.global_lock", groupLVM, "for exactly one global lock",
			"One volume group with sanlock keeps LVM's global lock for all of them. With two, hosts may take different ones; with none, volume groups can neither be made nor removed.",
			"`lvmlockctl --gl-disable VG` or `--gl-enable VG`, on one host.", checkGlobalLock,
		}, {
			"lvm.autoactivation", groupLVM, "that autoactivation is off",
			"A host that boots may activate every free volume of a volume group, exclusively; its guests then do not start elsewhere.",
			"`vgchange --setautoactivation n VG`. `check --fix` runs it.", checkAutoactivation,
		}, {
			"lvm.activators", groupLVM, "that nothing here activates whole volume groups",
			"A `vgchange -ay` in a unit, a cron table or rc.local below /etc has the same effect, whatever the property says.",
			"Take it out, or name other volume groups.", checkActivators,
		}, {
			"lvm.lease_area", groupLVM, "for room in the lease area",
			"Each volume has a lease in the hidden volume lvmlock. LVM extends that when it is full, if the volume group has room and sanlock_lv_extend is not 0.",
			"Free some room in the volume group.", checkLeaseArea,
		}, {
			"lvm.devices", groupLVM, "that guests' own volume groups are not seen",
			"A guest can make a volume group inside its disk. If the host's LVM sees it, it keeps the volume open, and may change what is the guest's.",
			"`scan_lvs = 0`, and only the host's own disks in the devices file or filter.", checkDevices,
		}, {
			"lvm.kill_command", groupLVM, "for a safe lvmlockctl_kill_command",
			"lvmlockctl runs it when the leases of a volume group are lost, and drops the locks if it exits with 0. If guests run on after that, another host gets volumes that they still write. Not set is safe: the watchdog resets the host.",
			"`lvmlockctl_kill_command = \"/usr/bin/virtlvm lease-lost\"` in lvm.conf, or none.", checkKillCommand,
		}, {
			"sanlock.daemon", groupSanlock, "that it runs",
			"It keeps the leases on the disks. 3.8 or later has been tried.",
			"`systemctl enable --now sanlock`.", checkSanlock,
		}, {
			"sanlock.watchdog", groupSanlock, "for a watchdog that resets this host",
			"sanlock must run with use_watchdog, wdmd must run, and have a watchdog of the kernel open. Without it a host whose sanlock dies goes on writing while another host gets the leases: split brain. softdog is one; it cannot reset a host whose kernel has stopped.",
			"`use_watchdog = 1` in /etc/sanlock/sanlock.conf, no `-w 0` in /etc/default/sanlock (Debian 12 comes with one), `systemctl enable --now wdmd`, and the module of a watchdog.", checkWatchdog,
		}, {
			"sanlock.host_name", groupSanlock, "for our_host_name in sanlock.conf",
			"By this name other hosts name this one as a holder, and reach it. Without it sanlock makes up a new one at each start.",
			"`our_host_name = NAME` in /etc/sanlock/sanlock.conf; stop the lockspaces and restart sanlock.", checkHostName,
		}, {
			"sanlock.names", groupSanlock, "that the other hosts have names",
			"As above, for the other live hosts of the lockspaces.",
			"our_host_name there.", checkNames,
		}, {
			"sanlock.renewal", groupSanlock, "for trouble renewing the leases",
			"FAIL: access to leases was lost, or the last renewal failed. WARN: renewals of the last hour failed or took more than half of io_timeout.",
			"Check the storage and the paths to it.", checkRenewal,
		}, {
			"sanlock.orphans", groupSanlock, "for orphaned locks",
			"Leases that a lvmlockd which is gone held go on protecting the volumes, and nobody here can drop them.",
			"`lvmlockd --adopt 1` where the last one ran so, else a reboot. Never drop one while a guest may use the volume.", checkOrphans,
		}, {
			"libvirt.daemon", groupLibvirt, "for libvirtd or virtqemud",
			"Who calls the hook.",
			"Install it, or start it.", checkLibvirt,
		}, {
			"libvirt.hook", groupLibvirt, "that the hook is installed",
			"/etc/libvirt/hooks/qemu, or qemu.d/50-virtlvm beside somebody else's: a file that can be run, and changed by root alone. libvirt does without a hook that cannot be run.",
			"`/usr/lib/virtlvm/install-hook /usr/lib/virtlvm/qemu /etc/libvirt/hooks`.", checkHook,
		}, {
			"libvirt.hook_current", groupLibvirt, "that the hook is the package's",
			"To the byte. SKIP where virtlvm was not installed from a package.",
			"As above.", checkHookCurrent,
		}, {
			"libvirt.hook_seen", groupLibvirt, "that libvirt calls the hook",
			"libvirt looks for a first hook only when it starts or reloads. PASS: the running one has called it, or by the times has found it. FAIL: it has started a guest without.",
			"`systemctl reload libvirtd` (or virtqemud), which touches no guest. `check --fix` runs it.", checkHookSeen,
		}, {
			"libvirt.confinement", groupLibvirt, "that AppArmor or SELinux lets the hook run",
			"A profile that forbids it keeps every guest from starting. Once the running libvirt has called the hook it is a PASS.",
			"/usr/share/doc/virtlvm/README.AppArmor and README.SELinux.", checkConfinement,
		}, {
			"libvirt.pools", groupLibvirt, "for storage pools that activate whole volume groups",
			"Starting a pool of type logical activates every free volume of its volume group here. FAIL: it starts with libvirt. WARN: it is defined, or runs.",
			"Name the disks as /dev/VG/LV; `virsh pool-autostart --disable POOL`, and `virsh pool-undefine POOL` while it does not run. Do not stop it while guests run: that deactivates what is free.", checkPools,
		}, {
			"guests.definitions", groupGuests, "that their definitions can be read",
			"Of the guests that are defined or run here, from /etc/libvirt/qemu and libvirt's status files. The checks below do not know of one that cannot be read.",
			"`virsh edit GUEST`.", checkDefinitions,
		}, {
			"guests.migratable", groupGuests, "for volumes that cannot live-migrate",
			"LVM shares only linear and striped volumes between two hosts, and no snapshots and their origins.",
			"Shut the guest down to move it, or copy the volume to a linear one.", checkMigratable,
		}, {
			"guests.cache", groupGuests, "for cache modes that are not safe",
			"FAIL: unsafe; flushes of the guest are ignored. WARN: writeback, writethrough or none given; data stays in the host's page cache, and a live migration depends on QEMU dropping it.",
			"`cache='none'` in the disk's `<driver>`.", checkCache,
		}, {
			"guests.twice", groupGuests, "for volumes that are written through two disks",
			"Under the same path or another one. FAIL: of one guest, which will not start. WARN: of two guests, of which only one can run.",
			"Remove one, or make both `<shareable/>` if the guests know of each other.", checkTwice,
		}, {
			"guests.block_jobs", groupGuests, "for block jobs that write shared volumes",
			"A block commit writes into a backing volume that this host holds shared: another host may use it at the same time.",
			"See that none does until the job has ended, or abort it.", checkBlockJobs,
		}, {
			"volumes.dm_without_lock", groupVolumes, "for volumes that are active without a lock",
			"Nothing keeps another host from writing them too.",
			"End what uses the volume and deactivate it, or take the lock.", checkDMWithoutLock,
		}, {
			"volumes.lock_without_dm", groupVolumes, "for locks of volumes that are not active",
			"No other host gets the volume, and nobody uses it here.",
			"`lvchange -an VG/LV`.", checkLockWithoutDM,
		}, {
			"volumes.strangers", groupVolumes, "for active volumes that nobody needs",
			"Activated by hand, by a boot or by a storage pool: guests on them do not start elsewhere. virtlvm does not touch what it has not activated.",
			"`lvchange -an VG/LV` where nothing uses it.", checkStrangers,
		}, {
			"volumes.leftovers", groupVolumes, "for devices of removed volumes",
			"A device whose volume is no longer in the metadata points at blocks that may be another volume's by now. FAIL: it is open.",
			"`dmsetup remove --uuid UUID`. `check --fix` runs it where it is closed and virtlvm had activated the volume.", checkLeftovers,
		}, {
			"volumes.pending", groupVolumes, "that every volume is as its guests need it",
			"What virtlvm wants and could not have yet.",
			"`virtlvm status` says what is tried next.", checkPending,
		}, {
			"volumes.stuck", groupVolumes, "for LVM commands that hang",
			"Starts on that volume group are refused until the command ends.",
			"Check the storage, sanlock and lvmlockd; virtlvm goes on by itself.", checkStuck,
		}, {
			"hosts.reach", groupHosts, "that the others can be reached",
			"By ssh without a question, and that they speak the same protocol, as a live migration needs it. When another host asks (--cluster), only the way to that host is tried.",
			"`virtlvm peer test HOST` says what to do.", checkPeers,
		}, {
			"virtlvm.daemon", groupVirtlvm, "that virtlvmd runs",
			"Without it no guest starts here.",
			"`systemctl enable --now virtlvmd.service`.", checkDaemon,
		}, {
			"virtlvm.problems", groupVirtlvm, "for problems that it reports",
			"What `virtlvm status` shows under PROBLEMS. FAIL: a running guest is not protected.",
			"Each names what to do.", checkProblems,
		}, {
			"virtlvm.boot", groupVirtlvm, "that all starts at boot",
			"virtlvmd, lvmlockd, sanlock and wdmd are enabled, and libvirt is ordered after virtlvmd.",
			"`systemctl enable UNIT`.", checkBoot,
		}, {
			"virtlvm.sockets", groupVirtlvm, "that its sockets answer",
			"virtlvm.sock (0660), virtlvm-ro.sock (0666) and peer.sock (0600) in /run/virtlvm.",
			"Restart the sockets and the daemon.", checkSockets,
		}, {
			"virtlvm.break_glass", groupVirtlvm, "for the break-glass switch",
			"While the file exists guests start without virtlvm.",
			"Remove it.", checkBreakGlass,
		}, {
			"virtlvm.config", groupVirtlvm, "the configuration",
			"/etc/virtlvm/virtlvm.toml as it is on disk now. A refused one keeps the daemon from starting.",
			"`virtlvm config check` names each mistake.", checkConfig,
		}, {
			"virtlvm.database", groupVirtlvm, "the database",
			"Every page is read (`PRAGMA quick_check`), on a connection that no hook waits for; and whether it can be written.",
			"Free its disk. A damaged one is set aside and made anew when the daemon is restarted.", checkDatabase,
		}, {
			"virtlvm.space", groupVirtlvm, "for room for state",
			"FAIL below 32 MiB, WARN below 128 MiB, in the file systems of /var/lib/virtlvm and /run/virtlvm.",
			"Free some room.", checkSpace,
		}, {
			"virtlvm.spool", groupVirtlvm, "for hook events that wait on disk",
			"Events that the daemon could not take when they happened.",
			"They are taken by themselves; broken ones are set aside in /var/lib/virtlvm/spool.", checkSpool,
		},
	}
}
