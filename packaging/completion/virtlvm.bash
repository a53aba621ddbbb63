# bash completion for virtlvm(8)
# Generated from the command line by make docs; do not edit.
# shellcheck shell=bash

# The first column of a table, without its heading.
_virtlvm_column() {
	command virtlvm --timeout 2s "$1" 2>/dev/null | sed -n '2,$s/  .*//p' | sort -u
}

# _virtlvm_find KIND: what there is of the kind.
_virtlvm_find() {
	case $1 in
	volume) _virtlvm_column volumes ;;
	group) _virtlvm_column volumes | sed 's,/.*,,' | sort -u ;;
	guest) _virtlvm_column guests ;;
	esac
}

# _virtlvm_complete KIND WORD: fills COMPREPLY with what begins with the word.
_virtlvm_complete() {
	local found
	if [[ $1 == file ]]; then
		compopt -o filenames 2>/dev/null
		while IFS= read -r found; do
			COMPREPLY+=("$found")
		done < <(compgen -f -- "$2")
		return
	fi
	while IFS= read -r found; do
		[[ $found == "$2"* ]] && COMPREPLY+=("$(printf %q "$found")")
	done < <(_virtlvm_find "$1")
}

_virtlvm() {
	local words=() word value='' path='' count=0 i
	local current=${COMP_WORDS[COMP_CWORD]}
	# bash splits --option=value at the sign.
	[[ $current == '=' ]] && current=
	for ((i = 1; i < COMP_CWORD; i++)); do
		[[ ${COMP_WORDS[i]} == '=' ]] || words+=("${COMP_WORDS[i]}")
	done
	COMPREPLY=()

	# Walk to the command; value is the option whose value comes next.
	for word in "${words[@]}"; do
		if [[ -n $value ]]; then
			value=
			continue
		fi
		case "$path $word" in
		*' --host' | *' --socket' | *' --timeout') value=$word ;;
		' status') path='status' ;;
		' check') path='check' ;;
		' volumes') path='volumes' ;;
		' guests') path='guests' ;;
		' guest') path='guest' ;;
		'guest migrate') path='guest/migrate' ;;
		'guest/migrate --bandwidth' | 'guest/migrate --uri' | 'guest/migrate --deadline' | 'guest/migrate --on-disconnect') value=$word ;;
		'guest move') path='guest/move' ;;
		'guest/move --to-vg' | 'guest/move --to-host' | 'guest/move --disk' | 'guest/move --format' | 'guest/move --bandwidth' | 'guest/move --deadline' | 'guest/move --on-disconnect') value=$word ;;
		'guest attach') path='guest/attach' ;;
		'guest/attach --target' | 'guest/attach --format' | 'guest/attach --deadline' | 'guest/attach --on-disconnect') value=$word ;;
		'guest detach') path='guest/detach' ;;
		'guest/detach --deadline' | 'guest/detach --on-disconnect') value=$word ;;
		'guest handoff') path='guest/handoff' ;;
		' volume') path='volume' ;;
		'volume list') path='volume/list' ;;
		'volume show') path='volume/show' ;;
		'volume create') path='volume/create' ;;
		'volume/create --size' | 'volume/create --format' | 'volume/create --backing' | 'volume/create --backing-format' | 'volume/create --deadline' | 'volume/create --on-disconnect') value=$word ;;
		'volume resize') path='volume/resize' ;;
		'volume/resize --size' | 'volume/resize --format' | 'volume/resize --deadline' | 'volume/resize --on-disconnect') value=$word ;;
		'volume copy') path='volume/copy' ;;
		'volume/copy --format' | 'volume/copy --to-format' | 'volume/copy --bandwidth' | 'volume/copy --deadline' | 'volume/copy --on-disconnect') value=$word ;;
		'volume move') path='volume/move' ;;
		'volume/move --to-vg' | 'volume/move --to-host' | 'volume/move --to-pool' | 'volume/move --name' | 'volume/move --format' | 'volume/move --from-format' | 'volume/move --bandwidth' | 'volume/move --deadline' | 'volume/move --on-disconnect') value=$word ;;
		'volume snapshot') path='volume/snapshot' ;;
		'volume/snapshot --to' | 'volume/snapshot --format' | 'volume/snapshot --to-format' | 'volume/snapshot --bandwidth' | 'volume/snapshot --deadline' | 'volume/snapshot --on-disconnect') value=$word ;;
		'volume erase') path='volume/erase' ;;
		'volume/erase --throttle' | 'volume/erase --deadline' | 'volume/erase --on-disconnect') value=$word ;;
		'volume delete') path='volume/delete' ;;
		'volume/delete --throttle' | 'volume/delete --deadline' | 'volume/delete --on-disconnect') value=$word ;;
		' locks') path='locks' ;;
		' lock') path='lock' ;;
		'lock show') path='lock/show' ;;
		'lock transfer') path='lock/transfer' ;;
		'lock/transfer --to' | 'lock/transfer --guest') value=$word ;;
		'lock where') path='lock/where' ;;
		'lock/where --op' | 'lock/where --on') value=$word ;;
		' hosts') path='hosts' ;;
		' host') path='host' ;;
		'host fenced') path='host/fenced' ;;
		' commands') path='commands' ;;
		'commands --limit' | 'commands --state' | 'commands --since') value=$word ;;
		' command') path='command' ;;
		'command watch') path='command/watch' ;;
		'command cancel') path='command/cancel' ;;
		'command/cancel --why') value=$word ;;
		'command resolve') path='command/resolve' ;;
		'command/resolve --as' | 'command/resolve --why') value=$word ;;
		'command run') path='command/run' ;;
		'command/run --deadline' | 'command/run --on-disconnect') value=$word ;;
		' events') path='events' ;;
		'events --after' | 'events --limit') value=$word ;;
		' hooks') path='hooks' ;;
		'hooks --limit' | 'hooks --guest') value=$word ;;
		' activate') path='activate' ;;
		' deactivate') path='deactivate' ;;
		' lease-lost') path='lease-lost' ;;
		' peer') path='peer' ;;
		'peer authorize') path='peer/authorize' ;;
		'peer test') path='peer/test' ;;
		' relay') path='relay' ;;
		'relay --peer') value=$word ;;
		' config') path='config' ;;
		'config check') path='config/check' ;;
		' version') path='version' ;;
		*' -'*) ;;
		*) count=$((count + 1)) ;;
		esac
	done

	local kind='' candidates=''
	if [[ -n $value ]]; then
		case $value in
		--socket) kind='file' ;;
		--to-vg) kind='group' ;;
		--guest) kind='guest' ;;
		esac
	elif [[ $current == -* ]]; then
		candidates='--json --host --socket --timeout --help -h --version -v'
		case $path in
		check) candidates+=' --cluster --quiet --fix --yes' ;;
		guest/migrate) candidates+=' --persistent --undefine-source --auto-converge --bandwidth --offline --plan --uri --deadline --on-disconnect --detach' ;;
		guest/move) candidates+=' --to-vg --to-host --disk --format --bandwidth --plan --deadline --on-disconnect --detach' ;;
		guest/attach) candidates+=' --target --format --read-only --live --config --deadline --on-disconnect --detach' ;;
		guest/detach) candidates+=' --live --config --deadline --on-disconnect --detach' ;;
		volume/create) candidates+=' --size --format --backing --backing-format --deadline --on-disconnect --detach' ;;
		volume/resize) candidates+=' --size --shrink --format --deadline --on-disconnect --detach' ;;
		volume/copy) candidates+=' --format --to-format --overwrite --shared --bandwidth --deadline --on-disconnect --detach' ;;
		volume/move) candidates+=' --to-vg --to-host --to-pool --name --format --from-format --bandwidth --plan --deadline --on-disconnect --detach' ;;
		volume/snapshot) candidates+=' --to --format --to-format --bandwidth --deadline --on-disconnect --detach' ;;
		volume/erase) candidates+=' --throttle --discard --deadline --on-disconnect --detach' ;;
		volume/delete) candidates+=' --zero --throttle --discard --deadline --on-disconnect --detach' ;;
		locks) candidates+=' --cluster --stale' ;;
		lock/transfer) candidates+=' --to --guest --wait' ;;
		lock/where) candidates+=' --op --on' ;;
		host/fenced) candidates+=' --withdraw' ;;
		commands) candidates+=' --limit --state --since' ;;
		command/cancel) candidates+=' --why' ;;
		command/resolve) candidates+=' --as --why' ;;
		command/run) candidates+=' --deadline --on-disconnect --detach' ;;
		events) candidates+=' --follow --after --limit' ;;
		hooks) candidates+=' --limit --guest' ;;
		activate) candidates+=' --shared' ;;
		lease-lost) candidates+=' --yes' ;;
		relay) candidates+=' --peer' ;;
		esac
	else
		case "$path $count" in
		'volumes 0') kind='group' ;;
		'guest/migrate 0') kind='guest' ;;
		'guest/move 0') kind='guest' ;;
		'guest/attach 0') kind='guest' ;;
		'guest/attach 1') kind='volume' ;;
		'guest/detach 0') kind='guest' ;;
		'guest/handoff 0') kind='guest' ;;
		'guest 0') candidates='migrate move attach detach handoff' ;;
		'volume/list 0') kind='group' ;;
		'volume/show 0') kind='volume' ;;
		'volume/create 0') kind='volume' ;;
		'volume/resize 0') kind='volume' ;;
		'volume/move 0') kind='volume' ;;
		'volume/snapshot 0') kind='volume' ;;
		'volume/erase 0') kind='volume' ;;
		'volume/delete 0') kind='volume' ;;
		'volume 0') candidates='list show create resize copy move snapshot erase delete' ;;
		'locks 0') kind='group' ;;
		'lock/show 0') kind='volume' ;;
		'lock/transfer 0') kind='volume' ;;
		'lock/where 0') kind='volume' ;;
		'lock 0') candidates='show transfer where' ;;
		'host 0') candidates='fenced' ;;
		'command 0') candidates='watch cancel resolve run' ;;
		'activate 0') kind='volume' ;;
		'deactivate 0') kind='volume' ;;
		'lease-lost 0') kind='group' ;;
		'peer 0') candidates='authorize test' ;;
		'config/check 0') kind='file' ;;
		'config 0') candidates='check' ;;
		' 0') candidates='status check volumes guests guest volume locks lock hosts host commands command events hooks activate deactivate lease-lost peer relay config version' ;;
		esac
	fi
	if [[ -n $kind ]]; then
		_virtlvm_complete "$kind" "$current"
	elif [[ -n $candidates ]]; then
		while IFS= read -r word; do
			COMPREPLY+=("$word")
		done < <(compgen -W "$candidates" -- "$current")
	fi
}

complete -F _virtlvm virtlvm
