package conformance

import (
	"fmt"
	"regexp"
	"strings"
)

// normalizer takes out of an output what differs from run to run and says nothing about
// behaviour: uuids, offsets, timestamps, generations, versions of leases, pids.
type normalizer struct {
	names map[string]string // uuid -> LV or VG name
}

func newNormalizer() *normalizer { return &normalizer{names: map[string]string{}} }

func (n *normalizer) name(uuid, name string) { n.names[uuid] = name }

var (
	uuidRE = regexp.MustCompile(`[0-9A-Za-z]{6}(?:-[0-9A-Za-z]{4}){5}-[0-9A-Za-z]{6}`)
	dmRE   = regexp.MustCompile(`LVM-([0-9A-Za-z]{32})([0-9A-Za-z]{32})`)
	// A row of a lease dump: offset, lockspace, resource, timestamp, owner, generation,
	// version; then rows of shared holders.
	leaseRE  = regexp.MustCompile(`^(\d{8,}) ( *lvm_\S+) ( *\S+) (\d{10}) (\d{4}) (\d{4})(?: (\d+))?$`)
	sharedRE = regexp.MustCompile(`^( {106}\d{4}) \d{4} SH$`)
)

// noise are lines that come and go with what is installed, with old data on the disk, and
// with what else the hosts do.
var noise = []*regexp.Regexp{
	regexp.MustCompile(`^File descriptor \d+ .* leaked`),
	regexp.MustCompile(`thin_check|thin_pool_autoextend|thin pools running out of space|Sum of all thin volume sizes`),
	regexp.MustCompile(`^  (Wiping|Wiped) .* signature|signature detected on`),
	regexp.MustCompile(`^  Thin pool volume with chunk size`),
	regexp.MustCompile(`not initialized in udev database`),
	regexp.MustCompile(`^LK (GL|LV un) |^p -?\d+ `),
}

// rules are applied to every line, in this order.
var rules = []struct {
	re   *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`1\.0\.0:\d+`), "1.0.0:OFFSET"},
	{regexp.MustCompile(`timestamp [1-9]\d*`), "timestamp T"},
	{regexp.MustCompile(`\bgen \d+`), "gen G"},
	{regexp.MustCompile(`^LK VG un ver \d+`), "LK VG un ver N"},
	{regexp.MustCompile(`(lvmlock):\d{8,}:(\d+|SH) p \d+`), "$1:OFFSET:$2 p PID"},
	{regexp.MustCompile(`OFFSET:\d+ p PID`), "OFFSET:VERSION p PID"},
	{regexp.MustCompile(` \(host_id \d+\)`), ""},
	{regexp.MustCompile(`insufficient free space \(\d+ extents\)`), "insufficient free space (N extents)"},
	{regexp.MustCompile(`(last_check|last_live|last_req|owner_generation|timestamp|io_timeout)=\d+`), "$1=N"},
	{regexp.MustCompile(`"vg_(size|free)":"\d+"`), `"vg_$1":"N"`},
}

// emptyLog is what a JSON report has behind its rows since 2.03.17, where nothing went
// wrong; a filled one is compared.
const emptyLog = "      ,\n      \"log\": [\n      ]\n"

// lines normalizes an output.
func (n *normalizer) lines(text string) []string {
	var out []string
	text = strings.Replace(text, emptyLog, "", 1)
	for _, l := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		if l = strings.TrimRight(l, " "); l == "" || n.irrelevant(l) {
			continue
		}
		out = append(out, n.line(l))
	}
	return out
}

// irrelevant reports noise and what concerns other volumes.
func (n *normalizer) irrelevant(l string) bool {
	for _, re := range noise {
		if re.MatchString(l) {
			return true
		}
	}
	if !strings.HasPrefix(l, "LK LV ") && !strings.HasPrefix(l, "r ") && !strings.HasPrefix(l, "vg_") {
		return false
	}
	return !strings.Contains(n.line(l), "conf")
}

func (n *normalizer) line(l string) string {
	if m := leaseRE.FindStringSubmatch(l); m != nil {
		return n.lease(m)
	}
	if m := sharedRE.FindStringSubmatch(l); m != nil {
		return m[1] + " GGGG SH"
	}
	l = dmRE.ReplaceAllStringFunc(l, func(s string) string {
		m := dmRE.FindStringSubmatch(s)
		return "LVM-" + n.compact(m[1]) + n.compact(m[2])
	})
	l = uuidRE.ReplaceAllStringFunc(l, n.known)
	for _, r := range rules {
		l = r.re.ReplaceAllString(l, r.with)
	}
	return l
}

// lease keeps the layout of a row: what is replaced has the same width.
func (n *normalizer) lease(m []string) string {
	offset, resource, stamp, own, gen, lver := m[1], m[3], m[4], m[5], m[6], m[7]
	if name := n.known(strings.TrimSpace(resource)); name != strings.TrimSpace(resource) {
		resource = fmt.Sprintf("%*s", len(resource), name)
		offset = strings.Repeat("O", len(offset))
	}
	if stamp != "0000000000" {
		stamp = "TTTTTTTTTT"
	}
	if gen != "0000" {
		gen = "GGGG"
	}
	if lver != "" && lver != "0" {
		lver = "N"
	}
	if strings.HasSuffix(resource, "GLLK") || strings.HasSuffix(resource, "VGLK") {
		stamp, own, gen, lver = "TTTTTTTTTT", "OOOO", "GGGG", "N" // whoever used it last
	}
	return strings.TrimRight(strings.Join([]string{offset, m[2], resource, stamp, own, gen, lver}, " "), " ")
}

func (n *normalizer) known(uuid string) string {
	if name, ok := n.names[uuid]; ok {
		return "<" + name + ">"
	}
	return uuid
}

// compact names a uuid written without dashes.
func (n *normalizer) compact(id string) string {
	for uuid, name := range n.names {
		if strings.ReplaceAll(uuid, "-", "") == id {
			return "<" + name + ">"
		}
	}
	return id
}
