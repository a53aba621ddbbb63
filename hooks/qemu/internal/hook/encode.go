package hook

import (
	"encoding/base64"
	"encoding/json"
	"strconv"

	"virtlvm/internal/api"
)

// request is the call as an HTTP request. It is written here by hand, in the form that
// encoding/json gives api.HookCall: making that package ready for the type would take
// longer than all the rest of a call.
func request(c api.HookCall) []byte {
	body := make([]byte, 0, 1024+base64.StdEncoding.EncodedLen(len(c.XML)))
	body = appendText(append(body, `{"guest":`...), c.Guest)
	body = appendText(append(body, `,"op":`...), c.Op)
	body = appendText(append(body, `,"sub_op":`...), c.SubOp)
	body = appendText(append(body, `,"extra":`...), c.Extra)
	if c.UUID != "" {
		body = appendText(append(body, `,"uuid":`...), c.UUID)
	}
	if len(c.XML) > 0 {
		body = append(body, `,"xml":"`...)
		body = append(base64.StdEncoding.AppendEncode(body, c.XML), '"')
	}
	body = appendText(append(body, `,"stamp":{"boot_id":`...), c.Stamp.BootID)
	body = strconv.AppendInt(append(body, `,"uptime_millis":`...), c.Stamp.UptimeMillis, 10)
	body = strconv.AppendInt(append(body, `,"libvirtd_pid":`...), int64(c.Stamp.LibvirtdPID), 10)
	body = strconv.AppendUint(append(body, `,"libvirtd_start":`...), c.Stamp.LibvirtdStart, 10)
	body = append(body, '}')
	if c.Bypassed {
		body = append(body, `,"bypassed":true`...)
	}
	body = append(body, '}')

	all := make([]byte, 0, 128+len(body))
	all = append(all, "POST "+api.RouteHook+" HTTP/1.0\r\nHost: virtlvmd\r\nContent-Type: application/json\r\nContent-Length: "...)
	all = strconv.AppendInt(all, int64(len(body)), 10)
	return append(append(all, "\r\n\r\n"...), body...)
}

// appendText adds a JSON string.
func appendText(to []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			text, _ := json.Marshal(s) // cannot fail for a string
			return append(to, text...)
		}
	}
	return append(append(append(to, '"'), s...), '"')
}
