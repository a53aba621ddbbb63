package api

// Routes of `virtlvm check`.
const (
	RouteCheck     = "/v1/check"      // GET ?cluster=true -> []CheckReport, this host's first
	RouteRepair    = "/v1/repair"     // POST RepairRequest -> Command
	RoutePeerCheck = "/v1/peer/check" // GET -> CheckReport; for other hosts
)

// Outcomes of a check, as virt-host-validate(1) has them.
const (
	CheckPass = "PASS"
	CheckWarn = "WARN" // works, with a limit or a risk that is named; or could not be judged
	CheckFail = "FAIL" // does not work, or is not safe
	CheckSkip = "SKIP" // does not apply here, or what it needs is itself a FAIL
)

// CheckReport is what the checks say of one host.
type CheckReport struct {
	Host    string        `json:"host"`
	HostID  int           `json:"host_id,omitempty"` // sanlock's, from lvmlocal.conf; 0: not set or not known
	Version string        `json:"version"`
	Alone   bool          `json:"alone,omitempty"` // virtlvmd did not run; some checks need it
	Results []CheckResult `json:"results"`
}

// CheckResult is one line.
type CheckResult struct {
	ID      string   `json:"id"`    // such as "lvm.host_id"; stable
	Group   string   `json:"group"` // "LVM", "sanlock", "libvirt", ...
	Title   string   `json:"title"` // what follows "Checking"
	State   string   `json:"state"` // CheckPass, ...
	Detail  string   `json:"detail,omitempty"`
	Fix     string   `json:"fix,omitempty"`     // what an administrator can do
	Repairs []Repair `json:"repairs,omitempty"` // what `check --fix` would run
}

// Repair is a safe command that `check --fix` runs after asking.
type Repair struct {
	ID   string   `json:"id"` // names it in a RepairRequest, such as "lvm.autoactivation:vg_san"
	Argv []string `json:"argv"`
}

// RepairRequest asks for one repair. What it runs is decided by the daemon, which looks
// again first: a repair that is no longer needed is not_found.
type RepairRequest struct {
	ID string `json:"id"`
}
