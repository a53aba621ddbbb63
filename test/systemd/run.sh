#!/bin/sh
# Runs the tests of internal/backend on a real systemd that is nobody else's: a user manager
# in a mount and pid namespace of its own. As root; it changes nothing outside.
set -eu
cd "$(dirname "$0")/../.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
go test -c -o "$dir/backend.test" ./internal/backend
cat >"$dir/inside.sh" <<'EOF'
set -eu
dir=$1
mount --make-rprivate /
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir -p /sys/fs/cgroup/virtlvm-test
echo $$ >/sys/fs/cgroup/virtlvm-test/cgroup.procs
# systemd --user wants to see that the system was booted with systemd.
mount -t tmpfs tmpfs /run/systemd
mkdir /run/systemd/system
mkdir -m 700 "$dir/run"
export XDG_RUNTIME_DIR="$dir/run" HOME="$dir"
unset DBUS_SESSION_BUS_ADDRESS || true
/usr/lib/systemd/systemd --user --unit=basic.target --log-target=null &
i=0
while [ ! -S "$dir/run/systemd/private" ]; do
	i=$((i + 1))
	[ "$i" -lt 100 ] || { echo "systemd does not come up" >&2; exit 1; }
	sleep 0.1
done
cd internal/backend
code=0
VIRTLVM_TEST_SYSTEMD="$dir/run/systemd/private" "$dir/backend.test" -test.timeout 120s -test.v -test.run Systemd || code=$?
exit $code
EOF
timeout 180 unshare -m -p -f --mount-proc --kill-child sh "$dir/inside.sh" "$dir"
