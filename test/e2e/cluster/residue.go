package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"virtlvm/internal/api"
)

// residueScript prints one line for each thing that a scenario may leave on a host: a
// guest, a lock, an active volume, a spooled hook event; then the daemon's own view.
const residueScript = `virsh -q list --all --name | sed '/^$/d; s/^/guest /'
lvmlockctl --info | awk '$1 == "LK" && $2 == "LV" && $3 != "un" { print "lock", $3, $4 }'
dmsetup info -c --noheadings -o name | sed -nE '/-lvmlock$/d; s/^(` + VG + `|` + Second + `)-/device &/p'
find /var/lib/virtlvm/spool -type f 2>/dev/null | sed 's/^/spooled /'
[ ! -e ` + api.BreakGlassPath + ` ] || echo break-glass is on
echo STATUS
virtlvm --json status`

// Residue lists what is left on the host that a scenario should have cleaned up, one
// thing a line; empty when nothing is.
func (h *Host) Residue(ctx context.Context) (string, error) {
	r, err := h.Run(ctx, residueScript)
	if err != nil {
		return "", err
	}
	left, status, _ := strings.Cut(r.Stdout, "STATUS\n")
	var s api.Status
	if err := json.Unmarshal([]byte(status), &s); err != nil {
		left += fmt.Sprintf("no status from the daemon: %s%s", status, r.Stderr)
		return strings.TrimSpace(left), nil
	}
	if n := s.Holds.Exclusive + s.Holds.Shared + s.Holds.Ending; n > 0 {
		left += fmt.Sprintf("%d holds\n", n)
	}
	for _, p := range s.Pending {
		left += fmt.Sprintf("pending %s: wanted %s, is %s: %s\n", p.Volume, p.Wanted, p.Actual, p.Reason)
	}
	if s.Spool.Waiting+s.Spool.Broken > 0 {
		left += fmt.Sprintf("spool: %d waiting, %d broken\n", s.Spool.Waiting, s.Spool.Broken)
	}
	return strings.TrimSpace(left), nil
}

// Scrub takes away what is left on the host, as far as it can be done without force.
func (h *Host) Scrub(ctx context.Context) error {
	// Each program that is not started saves most of a second under emulation.
	_, err := h.Must(ctx, `units="`+Units+`"
rm -f `+api.BreakGlassPath+`
[ "$(systemctl is-active $units | sort -u)" = active ] || { systemctl unmask -q $units; systemctl start $units; }
each=$(virsh -q list --all --name | sed "/^$/d; s/.*/destroy '&'; undefine '&';/")
[ -z "$each" ] || virsh -q "$each" 2>/dev/null
true`)
	return err
}

// ReleaseAll deactivates every volume that is still active on the host after its guests
// are gone.
func (h *Host) ReleaseAll(ctx context.Context) error {
	_, err := h.Must(ctx, `lvs=$(dmsetup info -c --noheadings -o name | sed -nE '/-lvmlock$/d; s/^(`+VG+`|`+Second+`)-/\1 /p' | sed 's/--/-/g; s| |/|')
[ -z "$lvs" ] || lvchange -an $lvs`)
	return err
}
