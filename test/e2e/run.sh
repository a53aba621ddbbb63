#!/bin/bash
# run.sh [SUITE...] - runs end-to-end suites ("smoke" by default) on two emulated KVM hosts.
#
# Suites: smoke, migrate, locks, commands, volumes, package, reboot, times, rows, conformance. As root on a
# Debian machine with Go. Makes the guest image when there is none yet, builds the packages in a scratch
# folder, boots the hosts, installs the .deb there, runs the scenarios and takes everything
# down, whatever happens. Environment:
#   SUITE=trixie|bookworm  Debian release of the hosts
#   E2E_RUN=REGEX          only scenarios whose name matches
#   E2E_LOGS=DIR           evidence of failures (default test/e2e/logs)
#   E2E_PACKAGES=DIR       with old.deb and new.deb, to use in place of `make packages`
#   E2E_TIMEOUT=DURATION   bound of the whole run, as Go writes it
#   E2E_HOLD=1             keep the hosts up afterwards until an interrupt
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
repo=$(cd "$here/../.." && pwd)
(($#)) || set -- smoke
tests=
minutes=$((20 * $# + 10))
for suite; do
    case $suite in
    smoke | migrate | commands | volumes | package | reboot | rows | times | conformance) tests+=${tests:+|}${suite^} ;;
    locks) tests+=${tests:+|}${suite^} minutes=$((minutes + 30)) ;; # it waits for dead hosts, and boots them
    *)
        echo "run.sh: there is no suite $suite" >&2
        exit 2
        ;;
    esac
done
# Only our own folder is ever emptied.
[ -n "${E2E_LOGS:-}" ] || rm -rf "$here/logs"
export E2E_LOGS=${E2E_LOGS:-$here/logs}

[ "$(uname -m)" = x86_64 ] || {
    echo "run.sh: the hosts are emulated x86_64 machines; this one is $(uname -m)" >&2
    exit 1
}
need=()
for pair in qemu-system-x86_64:qemu-system-x86 qemu-img:qemu-utils ssh:openssh-client gcc:gcc; do
    command -v "${pair%%:*}" >/dev/null || need+=("${pair#*:}")
done
[ -e /usr/share/seabios/bios-256k.bin ] || need+=(seabios)
if ((${#need[@]})); then
    [ "$(id -u)" = 0 ] || {
        echo "run.sh: missing Debian packages: ${need[*]}" >&2
        exit 1
    }
    echo "e2e: installing ${need[*]}"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${need[@]}" >/dev/null
fi

# On disk rather than in memory: the overlays grow to some hundred MiB.
scratch=$(mktemp -d "${E2E_TMP:-/var/tmp}/virtlvm-e2e.XXXXXX")
pid=
cleanup() {
    status=$?
    trap - EXIT INT TERM HUP
    if [ -n "$pid" ] && kill -0 "$pid" 2>/dev/null; then
        kill -TERM "$pid"
        wait "$pid" || true
    fi
    # What the suite itself could not save: consoles of hosts that it lost control of.
    if [ "$status" != 0 ]; then
        mkdir -p "$E2E_LOGS"
        cp "$scratch"/run/*.console "$scratch"/run/*.log "$E2E_LOGS/" 2>/dev/null || true
        # Last, because a long output is read from its end.
        if [ -s "$scratch/output" ]; then
            echo "e2e: what failed:"
            grep -hE -A 14 '^ +Error Trace:|^ +[a-z_]+_test\.go:[0-9]+: left on ' "$scratch/output" | cut -c1-400 | tail -n 60 || true
            grep -hE '^ *--- FAIL' "$scratch/output" || true
        fi
        echo "e2e: failed; evidence is in $E2E_LOGS" >&2
    fi
    rm -rf "$scratch"
    exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

mkdir "$scratch/run"
export E2E_DIR=$scratch/run
E2E_IMAGE=$("$here/image/build.sh")
export E2E_IMAGE
if [ -z "${E2E_PACKAGES:-}" ]; then
    E2E_PACKAGES=$scratch/packages
    mkdir "$E2E_PACKAGES"
    # Two versions, for the upgrade from one to the other.
    for version in old:VERSION=0.0.1 new:; do
        make -C "$repo" --no-print-directory packages BUILD="$scratch/build" LINTIAN=true ${version#*:} >"$scratch/make.log" 2>&1 || {
            cat "$scratch/make.log" >&2
            exit 1
        }
        mv "$scratch"/build/packages/*.deb "$E2E_PACKAGES/${version%%:*}.deb"
    done
    rm -rf "$scratch/build"
fi
export E2E_PACKAGES
go -C "$repo" test -c -tags e2e -o "$scratch/scenarios" ./test/e2e/scenario

# In the background, so that a signal to this script is handled at once.
cd "$here"
"$scratch/scenarios" -test.v -test.timeout "${E2E_TIMEOUT:-${minutes}m}" -test.run "^Test($tests)\$/(${E2E_RUN:-.})" \
    > >(tee "$scratch/output") 2>&1 &
pid=$!
wait "$pid"
