package san

import (
	"fmt"
	"strings"
)

// reportLog is the "log" of a JSON report: LVM's messages with the object they are about.
// Its methods do nothing on nil, where messages go to stderr.
type reportLog struct {
	seq     int // counts what is left out, too: the successes
	errno   int // -1 after the first error
	object  [5]string
	entries []string
}

// about sets the object of what follows: a VG, or an LV in it.
func (l *reportLog) about(vg *vgState, vgName, lvName string) {
	if l == nil {
		return
	}
	id := ""
	if vg != nil {
		id = vg.UUID
	}
	l.object = [5]string{"vg", vgName, id, "", ""}
	if lvName != "" {
		l.object = [5]string{"lv", lvName, "", vgName, id}
	}
}

func (l *reportLog) add(kind, message string) {
	if kind == "error" {
		l.errno = -1
	}
	l.entry(kind, message, 0)
}

// success counts an object that was reported.
func (l *reportLog) success() {
	if l != nil {
		l.seq++
	}
}

// failure ends an object that was not.
func (l *reportLog) failure() {
	if l != nil {
		l.entry("status", "failure", exitFailed)
	}
}

func (l *reportLog) entry(kind, message string, code int) {
	l.seq++
	o := l.object
	l.entries = append(l.entries, fmt.Sprintf(`          {"log_seq_num":"%d", "log_type":"%s", "log_context":"processing", `+
		`"log_object_type":"%s", "log_object_name":"%s", "log_object_id":"%s", "log_object_group":"%s", `+
		`"log_object_group_id":"%s", "log_message":"%s", "log_errno":"%d", "log_ret_code":"%d"}`,
		l.seq, kind, o[0], o[1], o[2], o[3], o[4], escape(message), l.errno, code))
}

// String is the entries as they stand in the report.
func (l *reportLog) String() string {
	if len(l.entries) == 0 {
		return ""
	}
	return strings.Join(l.entries, ",\n") + "\n"
}
