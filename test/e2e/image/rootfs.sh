# shellcheck shell=bash
# Turns an unpacked Debian into an emulated KVM host. Sourced by build.sh.

# configure_root ROOT KEY: ssh, LVM with lvmlockd and sanlock, libvirt, services. KEY is the
# private key that opens root on both hosts, and between them.
configure_root() {
    local root=$1 key=$2 hostkey name unit
    install -d -m 700 "$root/root/.ssh"
    install -m 600 "$key" "$root/root/.ssh/id_ed25519"
    install -m 600 "$key.pub" "$root/root/.ssh/authorized_keys"
    # One host key for both, known beforehand: nothing ever asks.
    rm -f "$root"/etc/ssh/ssh_host_*
    ssh-keygen -q -t ed25519 -N '' -C kvm -f "$root/etc/ssh/ssh_host_ed25519_key"
    hostkey=$(cut -d' ' -f1,2 "$root/etc/ssh/ssh_host_ed25519_key.pub")
    for name in kvm-a kvm-b 10.77.0.1 10.77.0.2; do
        echo "$name $hostkey"
    done >"$root/root/.ssh/known_hosts"
    printf '%s\n' 'PermitRootLogin prohibit-password' 'PasswordAuthentication no' 'UsePAM no' 'UseDNS no' \
        'MaxSessions 64' >"$root/etc/ssh/sshd_config.d/e2e.conf"
    printf '127.0.0.1 localhost\n10.77.0.1 kvm-a\n10.77.0.2 kvm-b\n' >"$root/etc/hosts"
    echo '/dev/vda / ext4 noatime 0 1' >"$root/etc/fstab"
    printf 'dm-mod\ndm-snapshot\ndm-thin-pool\ndm-mirror\nsoftdog\n' >"$root/etc/modules-load.d/e2e.conf"

    # LVM sees the SAN and nothing else, and always asks lvmlockd.
    cat >"$root/etc/lvm/lvm.conf" <<'C'
devices {
	filter = [ "a|^/dev/vd[b-z]$|", "r|.*|" ]
}
global {
	use_lvmlockd = 1
	system_id_source = "none"
}
activation {
	monitoring = 0
}
C
    install -d "$root/etc/sanlock" "$root/etc/systemd/system/lvmlockd.service.d"
    # A short I/O timeout makes a dead host's leases free in 80 s in place of 140 s.
    cat >"$root/etc/systemd/system/lvmlockd.service.d/e2e.conf" <<'C'
[Service]
ExecStart=
ExecStart=/usr/sbin/lvmlockd --foreground --sanlock-timeout 2
C
    # QEMU runs as root and unconfined: the owner of a block device never matters.
    printf 'user = "root"\ngroup = "root"\nsecurity_driver = "none"\n' >>"$root/etc/libvirt/qemu.conf"

    # On a busy machine an emulated boot can take several times its usual minute.
    install -d "$root/etc/systemd/system.conf.d"
    printf '[Manager]\nDefaultTimeoutStartSec=300s\nDefaultDeviceTimeoutSec=300s\n' >"$root/etc/systemd/system.conf.d/e2e.conf"

    # Nothing that costs boot time under emulation, or acts by itself in the background.
    for unit in apparmor.service apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer \
        e2scrub_reap.service fstrim.timer libvirt-guests.service lvm2-monitor.service wdmd.service \
        systemd-networkd-wait-online.service systemd-pstore.service; do
        ln -sf /dev/null "$root/etc/systemd/system/$unit"
    done
    chroot "$root" systemctl enable sanlock.service lvmlockd.service ssh.service \
        libvirtd.socket libvirtd.service >/dev/null 2>&1
    rm -f "$root/etc/machine-id" "$root/etc/hostname" "$root/etc/resolv.conf"
    rm -rf "$root"/var/cache/apt/*.bin "$root"/var/lib/apt/lists/*
}

# make_initrd ROOT KERNEL INIT BUSYBOX DIR OUT packs the first user space into OUT: INIT,
# busybox and the virtio modules in load order. DIR is scratch space.
make_initrd() {
    local root=$1 kver=$2 init=$3 busybox=$4 dir=$5 out=$6 n=0 module kind path file
    mkdir -p "$dir"/{bin,mods,proc,sys,dev,new}
    install -m 755 "$busybox" "$dir/bin/busybox"
    install -m 755 "$init" "$dir/init"
    for module in virtio_pci virtio_blk virtio_net virtio_rng ext4; do
        # "insmod PATH" for each module in the order of loading, "builtin NAME" for the rest.
        while read -r kind path _; do
            [ "$kind" = insmod ] || continue
            file=$(basename "$path")
            file=${file%%.ko*}.ko
            compgen -G "$dir/mods/*-$file" >/dev/null && continue
            case $path in
            *.xz) xz -dc "$root$path" ;;
            *.zst) zstd -dcq "$root$path" ;;
            *) cat "$root$path" ;;
            esac >"$dir/mods/$(printf '%02d' "$n")-$file"
            n=$((n + 1))
        done < <(chroot "$root" modprobe -S "$kver" --show-depends "$module")
    done
    (cd "$dir" && find . | cpio -o -H newc --quiet | gzip -1) >"$out"
}
