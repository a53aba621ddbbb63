# shellcheck shell=bash
# The stage of demo.sh: two hosts on a fake SAN in a folder of their own, commands on them,
# checks of what they did, and the end of it all. Sourced, not run.

hosts=(kvm-a kvm-b)
work=       # the folder; empty until it is there
code=0      # exit code of the last command
output=     # and what it printed
scene=start # for messages
width=92    # columns of long lines, without the indent
declare -A daemon=()

# build_stage BUILD makes the hosts with the programs in BUILD and starts their daemons.
build_stage() {
	# Short, and under /tmp: a socket's path has 107 bytes at most.
	work=$(mktemp -d /tmp/virtlvm-demo.XXXXXX)
	mkdir "$work/bin"
	# Copies, so that a build going on beside this does not change a program under us.
	flock "$1/.demo.lock" cp "$1"/{virtlvm,virtlvmd,hook/qemu,sanfake,fakevirt} "$work/bin/"
	# sanlock would need a minute and more to declare a host dead.
	"$work/bin/sanfake" init -expiry 12s "$work/san" "${hosts[@]}"
	"$work/bin/sanfake" install "$work/tools"
	export SAN_DIR=$work/san
	mkdir "$work/peers"
	export FAKEVIRT_PEERS=$work/peers FAKEVIRT_STEP=$work/step
	local host lv
	write_step
	for lv in vm1 vm2; do
		"$work/bin/sanfake" lv "vg_san/$lv" linear 64
	done
	for host in "${hosts[@]}"; do
		build_host "$host"
		start_daemon "$host"
	done
}

# build_host HOST fills the host's folder, which is a root file system in little.
build_host() {
	local host=$1 root=$work/san/hosts/$1 tool other virsh
	mkdir -p "$root"/{bin,run,state,etc/libvirt/hooks}
	cp "$work/bin/qemu" "$root/etc/libvirt/hooks/qemu"
	cat >"$root/virtlvm.toml" <<-END
		[paths]
		root = "$root"
		state_dir = "$root/state"
		run_dir = "$root/run"
		libvirt_run = "$root/run/libvirt/qemu"
		pool_dirs = []
		sys = "$root/sys"
		dev = "$root/dev"
		tools = ["$root/bin"]
		break_glass = "$root/etc/break-glass"
		socket_group = ""
		[peers]
		discover = false
	END
	# Hosts reach each other by ssh; here they share a machine.
	{
		printf 'hosts = {'
		for other in "${hosts[@]}"; do
			[ "$other" = "$host" ] || printf ' %s = "unix://%s"' "$other" "$work/san/hosts/$other/run/peer.sock"
		done
		printf ' }\n'
	} >>"$root/virtlvm.toml"
	# virtlvmd gives the tools that it runs no environment of ours.
	for tool in "$work"/tools/*; do
		script "$root/bin/${tool##*/}" "SAN_DIR='$SAN_DIR' SAN_HOST='$host'" "$tool"
	done
	virsh=(
		FAKEVIRT_DIR="$root" FAKEVIRT_HOST="$host" FAKEVIRT_HOOK="$root/etc/libvirt/hooks/qemu"
		VIRTLVM_HOOK_SOCKET="$root/run/virtlvm.sock" VIRTLVM_HOOK_SPOOL="$root/state/spool"
		VIRTLVM_HOOK_SETTINGS="$root/run/hook.json" VIRTLVM_HOOK_BREAK_GLASS="$root/etc/break-glass"
	)
	script "$root/bin/virsh" "${virsh[*]}" "$work/bin/fakevirt"
	printf '%s\n' "${virsh[@]}" >"$work/peers/$host" # for the virsh of the other hosts
	script "$root/bin/virtlvm" "VIRTLVM_SOCKET='$root/run/virtlvm.sock'" "$work/bin/virtlvm"
	chmod +x "$root"/bin/*
	cat >"$root/vm1.xml" <<-END
		<domain type='qemu'>
		  <name>vm1</name>
		  <uuid>5f0c7b8e-3f0e-4a52-9c0b-2f6d1a7e9b41</uuid>
		  <memory unit='MiB'>48</memory>
		  <os><type arch='x86_64' machine='pc'>hvm</type></os>
		  <devices>
		    <disk type='block' device='disk'>
		      <driver name='qemu' type='raw' cache='none'/>
		      <source dev='/dev/vg_san/vm1'/>
		      <target dev='vda' bus='virtio'/>
		    </disk>
		  </devices>
		</domain>
	END
	"$root/bin/virsh" define "$root/vm1.xml" >/dev/null
}

# script FILE ENVIRONMENT PROGRAM writes a script that runs the program with the environment.
script() {
	printf '#!/bin/sh\nexport %s\nexec %s "$@"\n' "${2//$'\n'/ }" "$3" >"$1"
}

# write_step makes what virsh runs after each step of a migration: it shows who has locked
# vm1, and lets happen what the file `fate` says: STEP abort, or STEP crash HOST.
write_step() {
	cat >"$work/step" <<-END
		#!/bin/bash
		[ "\$1" != "done" ] || exit 0 # the table follows
		holders=\$('$work/bin/sanfake' locks | sed -n 's|^vg_san/vm1 *\\([^ ]*\\) *\\([^ ]*\\) .*|\\1 \\2|p' | paste -sd,)
		printf '    | %-14s vg_san/vm1: %s\n' "\$1" "\${holders//,/, }"
		read -r step what host 2>/dev/null <'$work/fate' || exit 0
		[ "\$step" = "\$1" ] || exit 0
		case \$what in
		abort) exit 1 ;;
		crash)
			root=$work/san/hosts/\$host
			daemon=\$(<"$work/\$host.pid")
			kill -9 "\$daemon"
			# Until the demo has taken note of it, which it does in silence only while it waits for virsh.
			for ((tries = 0; tries < 100; tries++)); do
				[ -e "/proc/\$daemon" ] || break
				sleep 0.05
			done
			kill -9 "\$(sed -n "s/^<domstatus .* pid='\([0-9]*\)'.*/\1/p" "\$root/run/libvirt/qemu/vm1.xml")"
			SAN_HOST=\$host '$work/bin/sanfake' crash
			rm -rf "\$root/run/libvirt/qemu"
			exit 2
			;;
		esac
	END
	chmod +x "$work/step"
	: >"$work/fate"
}

# start_daemon HOST starts virtlvmd and waits until all is well. It ends with this script
# even where that is killed.
start_daemon() {
	local host=$1 root=$work/san/hosts/$1 tries
	VIRTLVM_HOST_NAME=$host setpriv --pdeathsig KILL \
		"$work/bin/virtlvmd" -config "$root/virtlvm.toml" >>"$work/$host.log" 2>&1 &
	daemon[$host]=$!
	echo $! >"$work/$host.pid"
	for ((tries = 0; tries < 100; tries++)); do
		! timeout 5 "$root/bin/virtlvm" status >"$work/out" 2>&1 || return 0
		kill -0 "${daemon[$host]}" 2>/dev/null || break
		sleep 0.1
	done
	fail "virtlvmd on $host is not well: $(<"$work/out")"
}

# headline TEXT begins a scene.
headline() {
	scene=$1
	printf '\n== %s\n' "$scene"
}

# on HOST COMMAND... runs a command on a host and shows it as typed and what it prints.
on() {
	local host=$1
	shift
	printf '\n%s# %s\n' "$host" "$*"
	# In the background, so that a signal to this script does not wait for it.
	timeout 40 "$work/san/hosts/$host/bin/$1" "${@:2}" >"$work/out" 2>&1 &
	code=0
	wait $! 2>/dev/null || code=$? # bash would tell there of a daemon that was killed
	output=$(<"$work/out")
	[ -z "$output" ] || fold -s -w "$width" <<<"$output" | sed 's/ *$//'
}

# soon CODE on HOST COMMAND... is `on` once the command ends so: what it asks for may take a
# moment to be noticed.
soon() {
	local want=$1
	shift
	after ends_with "$want" "$@"
	exits "$want"
}

# soon_says TEXT on HOST COMMAND... is `on` once the command prints that. A lock is on the
# SAN before the daemon that took it has written so into its database.
soon_says() {
	local want=$1
	shift
	after has_said "$want" "$@"
	exits 0
	says "$want"
}

# after CHECK WANT on HOST COMMAND... tries the command in silence until the check holds or
# ten seconds and more are over; then it is shown.
after() {
	local check=$1 want=$2 host=$4 tries
	shift 4
	for ((tries = 0; tries < 100; tries++)); do
		code=0
		timeout 40 "$work/san/hosts/$host/bin/$1" "${@:2}" >"$work/out" 2>&1 || code=$?
		output=$(<"$work/out")
		! "$check" "$want" || break
		sleep 0.1
	done
	on "$host" "$@"
}

ends_with() { [ "$code" = "$1" ]; }

# exits CODE checks how the last command ended.
exits() {
	[ "$code" = "$1" ] || fail "exit code $1 was expected, not $code"
}

# says TEXT checks what the last command printed.
says() {
	has_said "$1" || fail "'$1' was expected in the output"
}

# has_said TEXT tells if the last command printed that, whatever its line ends and columns.
has_said() {
	local words
	read -r -d '' -a words <<<"$output" || true # 1: there was no NUL
	[[ ${words[*]} == *"$1"* ]]
}

# runs_on HOST shows the lock table and checks that vm1 and its volume are on that host and
# on no other; nobody: on none.
runs_on() {
	local table want='(no volume is locked)' host root pid
	table=$("$work/bin/sanfake" locks) || fail "the lock table cannot be read"
	printf '\n    | %s\n' "${table//$'\n'/$'\n'    | }"
	[ "$1" = nobody ] || want="vg_san/vm1 $1 ex live"
	[ "$(sed -e 1d -e 's/  */ /g' <<<"$table")" = "$want" ] || fail "the lock table was expected to be: $want"
	for host in "${hosts[@]}"; do
		root=$work/san/hosts/$host
		if [ "$host" = "$1" ]; then
			pid=$(sed -n "s/^<domstatus .* pid='\([0-9]*\)'.*/\1/p" "$root/run/libvirt/qemu/vm1.xml")
			kill -0 "$pid" || fail "QEMU of vm1 was expected to run on $host"
			[ -e "$root/dev/vg_san/vm1" ] || fail "vg_san/vm1 was expected to be active on $host"
		else
			[ ! -e "$root/run/libvirt/qemu/vm1.xml" ] || fail "vm1 was expected not to run on $host"
			[ ! -e "$root/dev/vg_san/vm1" ] || fail "vg_san/vm1 was expected not to be active on $host"
		fi
	done
}

# comes_to_run_on HOST is runs_on after a while: locks change hands by themselves.
comes_to_run_on() {
	local tries
	for ((tries = 0; tries < 300; tries++)); do
		[ "$("$work/bin/sanfake" locks | sed -e 1d -e 's/  */ /g')" != "vg_san/vm1 $1 ex live" ] || break
		sleep 0.1
	done
	runs_on "$1"
}

# fate WORDS lets something happen in the migrations from here on, see write_step.
fate() {
	echo "$*" >"$work/fate"
}

# is_down HOST takes note that a host has lost its power.
is_down() {
	local pid=${daemon[$1]}
	unset "daemon[$1]"
	! wait "$pid" 2>/dev/null || fail "virtlvmd on $1 was expected to be dead"
}

# lock_table shows the lock table as it is at this moment.
lock_table() {
	output=$("$work/bin/sanfake" locks) || fail "the lock table cannot be read"
	printf '\n    | %s\n' "${output//$'\n'/$'\n'    | }"
}

# kill_daemon HOST does to virtlvmd what a defect of its own would.
kill_daemon() {
	local pid=${daemon[$1]}
	printf '\n%s# kill -9 %s    # virtlvmd\n' "$1" "$pid"
	unset "daemon[$1]"
	{ kill -9 "$pid" && ! wait "$pid"; } 2>/dev/null || fail "virtlvmd could not be killed"
}

# restart_daemon HOST is start_daemon where a reader looks on.
restart_daemon() {
	printf '\n%s# virtlvmd &\n' "$1"
	start_daemon "$1"
}

# stop_daemons ends them as systemd does.
stop_daemons() {
	local host status
	for host in "${!daemon[@]}"; do
		kill -TERM "${daemon[$host]}"
		status=0
		wait "${daemon[$host]}" || status=$?
		unset "daemon[$host]"
		[ "$status" = 0 ] || fail "virtlvmd on $host ended with exit code $status"
	done
}

# fail TEXT ends the demo: something is not as it should be.
fail() {
	local host
	printf '\ndemo: FAILED at "%s":\n%s\n' "$scene" "$1" >&2
	for host in "${hosts[@]}"; do
		[ ! -s "$work/$host.log" ] || printf '\nlog of virtlvmd on %s:\n%s\n' "$host" "$(<"$work/$host.log")" >&2
	done
	exit 1
}

# strike takes everything down that build_stage and the scenes have made, and only that.
strike() {
	local status=$? host tries pids
	trap - EXIT
	trap '' INT TERM HUP
	mapfile -t pids < <(jobs -p)
	end_jobs TERM "${pids[@]}" || end_jobs KILL "${pids[@]}" || true
	for host in "${hosts[@]}"; do
		# Without its hook: nobody is there to answer.
		[ ! -e "$work/san/hosts/$host/run/libvirt/qemu/vm1.xml" ] ||
			FAKEVIRT_DIR=$work/san/hosts/$host timeout 15 "$work/bin/fakevirt" destroy vm1 >/dev/null 2>&1 || true
	done
	# A tool that outlives its daemon may be writing still.
	for ((tries = 0; tries < 20; tries++)); do
		! rm -rf "$work" 2>/dev/null || break
		sleep 0.1
	done
	exit "$status"
}

# end_jobs SIGNAL PID... ends children of this script and waits up to 5 s for them.
end_jobs() {
	local signal=$1 tries pid left
	shift
	kill -s "$signal" "$@" 2>/dev/null || true
	for ((tries = 0; tries < 50; tries++)); do
		left=
		for pid in "$@"; do
			! kill -0 "$pid" 2>/dev/null || left=1
		done
		[ -n "$left" ] || return 0
		sleep 0.1
	done
	return 1
}
