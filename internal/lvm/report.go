package lvm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"virtlvm/internal/api"
	"virtlvm/internal/run"
)

// report is what `--reportformat json` prints (lvmreport(7)). An old LVM prints it
// without "log" and its messages on stderr; a newer one (seen: 2.03.31) prints them here,
// and nothing on stderr.
type report struct {
	Report []struct {
		VG []row `json:"vg"`
		LV []row `json:"lv"`
		PV []row `json:"pv"`
	} `json:"report"`
}

// reportLog is the same document without its rows, of which there may be many.
type reportLog struct {
	Log []struct {
		Type    string `json:"log_type"` // "error", "warn", "print", "status", ...
		Message string `json:"log_message"`
	} `json:"log"`
	Report []json.RawMessage `json:"report"`
}

// row is one row of a report, by field name.
type row map[string]value

// value is a field: text, or a bare number (format json_std).
type value string

// UnmarshalJSON takes numbers as they are written.
func (v *value) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '"' {
		// Nothing but a backslash or what is no UTF-8 makes a string other than it stands there.
		if text := data[1 : len(data)-1]; bytes.IndexByte(text, '\\') < 0 && utf8.Valid(text) {
			*v = value(text)
			return nil
		}
		var s string
		if err := json.Unmarshal(data, &s); err != nil {
			return err
		}
		*v = value(s)
		return nil
	}
	var n json.Number
	if err := json.Unmarshal(data, &n); err != nil {
		return err
	}
	*v = value(n)
	return nil
}

// parseReport finds the report in a program's output. Warnings before it (from LVM, or
// from a helper it runs) and anything after it are skipped.
func parseReport(program string, out []byte) (report, error) {
	rep, err := findReport(out, func(r report) bool { return r.Report != nil })
	if err != nil {
		return rep, api.WrapError(api.KindInternal, fmt.Sprintf("cannot understand the answer of %s: %v: %q", program, err, head(out)), err)
	}
	return rep, nil
}

func findReport[R any](out []byte, complete func(R) bool) (R, error) {
	var none R
	err := errors.New("it has no JSON")
	for rest := out; ; {
		at := bytes.IndexByte(rest, '{')
		if at < 0 {
			break
		}
		var one R
		// A warning may have a brace too: only an object with a report counts. The first
		// error is about what most probably is the report.
		failed := json.NewDecoder(bytes.NewReader(rest[at:])).Decode(&one)
		if failed == nil && complete(one) {
			return one, nil
		}
		if failed == nil {
			failed = errors.New(`it has no "report"`)
		}
		if lineStart(rest, at) {
			err = failed
			break
		}
		rest = rest[at+1:]
	}
	return none, err
}

// withLog adds the messages in a report's log to stderr, where all else looks for them.
func withLog(res run.Result) run.Result {
	rep, err := findReport(res.Stdout, func(r reportLog) bool { return r.Report != nil })
	if err != nil {
		return res // whoever needs the report says what is wrong with it
	}
	text := string(res.Stderr)
	for _, l := range rep.Log {
		if l.Type != "status" && l.Message != "" {
			text += "  " + l.Message + "\n"
		}
	}
	res.Stderr = []byte(text)
	return res
}

// lineStart reports whether only blanks stand before position at on its line.
func lineStart(data []byte, at int) bool {
	begin := bytes.LastIndexByte(data[:at], '\n') + 1
	return len(bytes.TrimSpace(data[begin:at])) == 0
}

// text is a field's text; absent fields are empty.
func (r row) text(field string) string { return strings.TrimSpace(string(r[field])) }

// need is a field that must be there and not empty.
func (r row) need(field string) (string, error) {
	s := r.text(field)
	if s == "" {
		return "", fmt.Errorf("a row has no %s", field)
	}
	return s, nil
}

// bytes is a size in bytes; a trailing B is what an LVM without --nosuffix adds.
func (r row) bytes(field string) (int64, error) {
	s, err := r.need(field)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSuffix(s, "B"), "b"), 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%s is %q, which is no size in bytes", field, s)
	}
	return n, nil
}

// list is a field with comma-separated entries, nil when empty.
func (r row) list(field string) []string {
	var all []string
	for _, s := range strings.Split(r.text(field), ",") {
		if s = strings.TrimSpace(s); s != "" {
			all = append(all, s)
		}
	}
	return all
}

// hidden tells an internal volume: LVM shows its name in brackets.
func hidden(name string) bool { return strings.HasPrefix(name, "[") }

// bare is a name without the brackets of an internal volume.
func bare(name string) string {
	return strings.TrimSuffix(strings.TrimPrefix(name, "["), "]")
}
