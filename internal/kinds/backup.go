package kinds

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"strings"
)

// backupName is $0 of backupScript.
const backupName = "virtlvm-backup"

// frozenWord is what backupScript prints where the guest's file systems were frozen when the
// backup began.
const frozenWord = "frozen"

// backupScript lets libvirt copy a disk of a running guest as it is at the moment when the
// backup begins, and waits for its end. With freeze the guest agent freezes the file systems
// for that moment; they are thawed whatever happens, as long as the script lives. Only a
// backup that libvirt calls completed is one. A signal aborts it.
const backupScript = `uuid=$1 xml=$2 freeze=$3
virsh() { command virsh -c qemu:///system "$@"; }
stopped= frozen= lost=0
trap 'stopped=143' TERM HUP
trap 'stopped=130' INT
thaw() {
	[ -n "$frozen" ] || return 0
	for n in 1 2 3 4 5; do
		if virsh domfsthaw "$uuid" >&2; then return 0; fi
		sleep 1
	done
	echo "cannot thaw the file systems of the guest: run 'virsh domfsthaw $uuid'" >&2
}
if [ "$freeze" = 1 ]; then
	frozen=1
	if timeout 60 virsh -c qemu:///system domfsfreeze "$uuid" >&2; then echo frozen; fi
fi
code=143
if [ -z "$stopped" ]; then
	printf '%s\n' "$xml" | virsh backup-begin "$uuid" --backupxml /dev/stdin --reuse-external >&2
	code=$?
fi
thaw
[ "$code" = 0 ] || exit "$code"
while :; do
	job=$(virsh domjobinfo "$uuid" 2>&1)
	case $job in
	*Operation:*Backup*)
		lost=0
		if [ -n "$stopped" ]; then virsh domjobabort "$uuid" >&2; fi ;;
	*'Job type:'*) break ;;
	*'not running'* | *'failed to get domain'*)
		echo "the guest ended before the backup had" >&2
		exit 1 ;;
	*)
		lost=$((lost + 1))
		if [ "$lost" -gt 300 ]; then
			echo "$job" >&2
			exit 1
		fi ;;
	esac
	sleep 1
done
[ -z "$stopped" ] || exit "$stopped"
job=$(virsh domjobinfo "$uuid" --completed --keep-completed 2>&1)
case $job in
*'Job type:'*Completed*Operation:*Backup*) exit 0 ;;
*'Job type:'*None*) echo "libvirt does not know any more how the backup has ended" >&2 ;;
*) echo "the backup has failed:" $job >&2 ;;
esac
exit 1`

// backupStep is the command line of a backup.
func backupStep(uuid, target, to, format string, freeze bool) []string {
	word := "0"
	if freeze {
		word = "1"
	}
	return []string{"sh", "-c", backupScript, backupName, uuid, backupXML(target, to, format), word}
}

// backupXML is libvirt's document of a full backup of one disk to what is there already; see
// formatbackup.html.
func backupXML(target, to, format string) string {
	kind, attr := "file", "file"
	if strings.HasPrefix(to, "/dev/") {
		kind, attr = "block", "dev"
	}
	return fmt.Sprintf("<domainbackup mode='push'><disks><disk name='%s' backup='yes' type='%s'><driver type='%s'/><target %s='%s'/></disk></disks></domainbackup>",
		xmlText(target), kind, xmlText(format), attr, xmlText(to))
}

func xmlText(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a Builder never fails
	return b.String()
}

// hasAgent reports whether a guest agent is connected, from a status file of libvirt's: there
// the channel has its state.
func hasAgent(doc []byte) bool {
	dec := xml.NewDecoder(bytes.NewReader(doc))
	for {
		token, err := dec.Token()
		if err != nil {
			return false
		}
		e, ok := token.(xml.StartElement)
		if !ok || e.Name.Local != "target" {
			continue
		}
		attrs := map[string]string{}
		for _, a := range e.Attr {
			attrs[a.Name.Local] = a.Value
		}
		if attrs["name"] == "org.qemu.guest_agent.0" && attrs["state"] == "connected" {
			return true
		}
	}
}
