#!/bin/sh
# Puts virtlvm's libvirt hook in place, or takes it away. May be interrupted and repeated.
#
#   install-hook.sh BINARY HOOKS-DIR
#   install-hook.sh --remove HOOKS-DIR
#
# The hook becomes the file HOOKS-DIR/qemu, or qemu.d/50-virtlvm where somebody else's hook
# has that name; never both, since libvirt would call both. Somebody else's is never
# touched. It is a real file, replaced by rename: the profile of libvirtd (AppArmor,
# SELinux) allows no link to elsewhere, and libvirt may call the hook at any moment.
set -eu

# Ours is a program, so that a script which merely names it is not taken for it.
ours() {
	[ -f "$1" ] && [ "$(od -An -tx1 -N4 "$1" | tr -d ' ')" = 7f454c46 ] && grep -aq 'virtlvm/hooks/qemu' "$1"
}

# A link that leads nowhere is there, too.
there() { [ -e "$1" ] || [ -L "$1" ]; }

say() { echo "virtlvm: $*"; }

fail() {
	echo "virtlvm: $*" >&2
	exit 1
}

if [ "$1" = --remove ]; then
	hooks=$2
	rm -f "$hooks/.virtlvm-hook.new"
	for file in "$hooks/qemu" "$hooks/qemu.d/50-virtlvm"; do
		if ours "$file"; then
			rm -f "$file"
			say "hook $file removed"
		fi
	done
	rmdir "$hooks/qemu.d" 2>/dev/null || :
	exit 0
fi

binary=$1
hooks=$2
main=$hooks/qemu
extra=$hooks/qemu.d/50-virtlvm
# Not in qemu.d: libvirt runs whatever can be run there.
new=$hooks/.virtlvm-hook.new

# call EXIT-CODE OPERATION: does the new file, on this host and without a daemon, end so?
call() {
	set +e
	VIRTLVM_HOOK_SOCKET=$scratch/none VIRTLVM_HOOK_SPOOL=$scratch/spool \
		VIRTLVM_HOOK_SETTINGS=$scratch/none VIRTLVM_HOOK_BREAK_GLASS=$scratch/none \
		timeout -k 5 30 "$new" self-test "$2" - - </dev/null >"$scratch/out" 2>&1
	got=$?
	set -e
	[ "$got" = "$1" ] || fail "the hook $binary does not run on this host: '$2' ended with $got, not $1: $(head -c 500 "$scratch/out" | tr '\n' ' '); $hooks is left as it was"
}

# A guest must be refused when nobody answers, and an end must be kept for later.
prove() {
	call 1 prepare
	call 0 release
	find "$scratch/spool" -name '*.json' | grep -q . || fail "the hook $binary does not keep what it cannot tell; $hooks is left as it was"
}

# SELinux: the type that the policy has for the name it will have.
label() {
	if command -v selinuxenabled >/dev/null && selinuxenabled && command -v matchpathcon >/dev/null; then
		chcon "$(matchpathcon -n "$1")" "$new" || say "the SELinux type of $1 cannot be set; see README.SELinux"
	fi
}

put() {
	cp "$binary" "$new"
	chmod 0755 "$new"
	prove
	# The time tells since when libvirt can have found a hook; see notes.sh.
	for old in "$main" "$extra"; do
		if ours "$old"; then
			touch -r "$old" "$new"
			break
		fi
	done
	label "$1"
	sync "$new"
	mv -fT "$new" "$1"
	sync "$(dirname "$1")"
	say "hook installed as $1"
}

mkdir -p "$hooks"
rm -f "$new"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch" "$new"' EXIT
trap 'exit 1' HUP INT TERM

if there "$main" && ! ours "$main"; then
	if there "$extra" && ! ours "$extra"; then
		fail "both $main and $extra are somebody else's; move one of them away"
	fi
	mkdir -p "$hooks/qemu.d"
	put "$extra"
else
	put "$main"
	if ours "$extra"; then
		rm -f "$extra"
		rmdir "$hooks/qemu.d" 2>/dev/null || :
	fi
fi
