package fakevirt

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Async jobs of a guest that migrates (libvirt's virDomainAsyncJob).
const (
	migrationIn  = "migration in"
	migrationOut = "migration out"
)

// Phases of those jobs (libvirt's qemuMigrationJobPhase).
const (
	phaseBegin     = "begin3"
	phasePerform   = "perform3"
	phasePerformed = "perform3_done"
	phaseConfirm   = "confirm3"
	phaseCancelled = "confirm3_cancelled"
	phasePrepare   = "prepare"
	phaseFinish    = "finish3"
	phasePostCopy  = "postcopy_failed"
)

// errBusy is what a command gets that libvirt lets wait for another's job in vain.
var errBusy = errors.New("Timed out during operation: cannot acquire state change lock " + //nolint:staticcheck // libvirt's words
	"(held by monitor=remoteDispatchDomainMigratePrepare3Params)")

// jobOf is the job element as it stands in the head of a status file.
func jobOf(head string) string {
	_, rest, found := strings.Cut(head, "\n  <job ")
	if !found {
		return jobNone
	}
	if line, _, _ := strings.Cut(rest, "\n"); strings.HasSuffix(line, "/>") {
		return "<job " + line
	}
	job, _, _ := strings.Cut(rest, "</job>")
	return "<job " + job + "</job>"
}

// async is the kind and the phase of a guest's async job, empty where it has none.
func (s status) async() (kind, phase string) {
	var job struct {
		Async string `xml:"async,attr"`
		Phase string `xml:"phase,attr"`
	}
	if s.Job == jobNone || xml.Unmarshal([]byte(s.Job), &job) != nil {
		return "", ""
	}
	return job.Async, job.Phase
}

// destroying is the job of a guest that somebody destroys, or whose QEMU has ended, while
// it has another.
func destroying(job string) string {
	if strings.Contains(job, "async='migration ") {
		return strings.Replace(job, "type='none'", "type='destroy'", 1)
	}
	return jobDestroy
}

// migrationJob makes the element of a migration. A source lists its disks in it.
func migrationJob(kind, phase string, flags uint, started time.Time, s status) string {
	attrs := fmt.Sprintf("<job type='none' async='%s'", kind)
	if phase != "" {
		attrs += fmt.Sprintf(" phase='%s'", phase)
	}
	attrs += fmt.Sprintf(" flags='0x%x' asyncStarted='%d'", flags, started.UnixMilli())
	disks := ""
	for _, d := range disksOf(s.Domain) {
		if d.Target != nil {
			disks += fmt.Sprintf("\n    <disk dev='%s' migrating='no'/>", escape(d.Target.Dev))
		}
	}
	if kind == migrationIn || disks == "" {
		return attrs + "/>"
	}
	return attrs + ">" + disks + "\n  </job>"
}

// A guest that arrives has a job before it has a status file. Until then the file NAME.in,
// with the pid of whoever brings it, keeps others from starting the guest. It stands
// beside the status files so that a power failure takes it away.
func (h *Host) arrivingPath(name string) string { return filepath.Join(h.o.RunDir, name+".in") }

func (h *Host) setArriving(name string) error {
	return writeFile(h.arrivingPath(name), []byte(strconv.Itoa(os.Getpid())))
}

func (h *Host) unsetArriving(name string) { _ = os.Remove(h.arrivingPath(name)) }

// arriving reports whether a migration brings the guest at this moment.
func (h *Host) arriving(name string) bool {
	data, err := os.ReadFile(h.arrivingPath(name))
	if err != nil {
		return false
	}
	pid, err := strconv.Atoi(string(data))
	return err == nil && !errors.Is(unix.Kill(pid, 0), unix.ESRCH)
}

var (
	errQuit  = errors.New("internal error: guest unexpectedly quit")
	errNoJob = errors.New("Requested operation is not valid: domain is not being migrated") //nolint:staticcheck // libvirt's words
)

// still brings s up to date: a guest in a migration may have been ended, or its job
// given up, since it was looked at. The caller has the guest's lock.
func (h *Host) still(ctx context.Context, s *status, kind string) error {
	if h.dead() {
		return ErrHostGone
	}
	if err := h.notice(ctx, s.Domain.Name); err != nil {
		return err
	}
	now, found, err := h.readStatus(s.Domain.Name)
	switch {
	case err != nil:
		return err
	case !found || now.PID != s.PID:
		return errQuit
	}
	if got, _ := now.async(); got != kind {
		return errNoJob
	}
	*s = now
	return nil
}

// recoverJob is what a new libvirtd does with the migration of an old one; false: the
// guest is to be killed. One that is finished but for the destination's word is left as
// it is, without a job, "third party needs to check what to do next" (libvirt's
// qemuProcessRecoverMigration).
func recoverJob(s *status) (keep bool) {
	kind, phase := s.async()
	postCopy := s.Reason == reasonPostCopy || s.Reason == reasonPostCopyFailed
	switch {
	case postCopy:
		s.Reason = reasonPostCopyFailed
		return true
	case kind == migrationIn && s.State != "running", kind == migrationOut && phase == phaseConfirm:
		return false
	case kind == migrationOut && (phase == phasePerform || phase == phaseCancelled):
		resume(s)
	}
	s.Job = jobNone
	return true
}

// resume lets the CPUs of a source run again that the migration has stopped.
func resume(s *status) {
	if s.State == "paused" && s.Reason == "migration" {
		s.State, s.Reason = "running", "migration canceled"
	}
}
