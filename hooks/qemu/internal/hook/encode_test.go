package hook

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/api"
)

// decoded is what virtlvmd makes of a request.
func decoded(t *testing.T, request []byte) (call api.HookCall) {
	t.Helper()
	head, body, found := strings.Cut(string(request), "\r\n\r\n")
	require.True(t, found)
	assert.True(t, strings.HasPrefix(head, "POST "+api.RouteHook+" HTTP/1.0\r\n"), head)
	dec := json.NewDecoder(strings.NewReader(body))
	dec.DisallowUnknownFields()
	require.NoError(t, dec.Decode(&call))
	assert.False(t, dec.More())
	return call
}

// throughJSON is what virtlvmd would make of the call if encoding/json had written it.
func throughJSON(t *testing.T, call api.HookCall) (same api.HookCall) {
	t.Helper()
	data, err := json.Marshal(call)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &same))
	return same
}

func TestRequestIsTheCall(t *testing.T) {
	full := api.HookCall{
		Guest: "vm1", Op: "prepare", SubOp: "begin", Extra: "-", UUID: uuid1, XML: []byte(domainXML), Bypassed: true,
		Stamp: api.Stamp{BootID: "b", UptimeMillis: 1<<62 + 1, LibvirtdPID: 4711, LibvirtdStart: 1<<64 - 1},
	}
	tests := map[string]api.HookCall{
		"full":   full,
		"empty":  {},
		"quotes": {Guest: `a"b\c`, Op: "\x00\n\x7f", SubOp: "ä\u2028", Extra: "\xff<&>"},
		"binary": {XML: []byte{0, 1, 2, 0xff, '"', '\\'}},
		"long":   {Guest: strings.Repeat("n", 100_000), XML: bytes.Repeat([]byte("x"), 1<<20)},
	}
	for name, call := range tests {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, throughJSON(t, call), decoded(t, request(call)))
		})
	}
}

func FuzzRequest(f *testing.F) {
	f.Add("vm1", "prepare", []byte(domainXML), int64(1), true)
	f.Add("\xff\"\\\u2029", "", []byte{}, int64(-1), false)
	f.Fuzz(func(t *testing.T, guest, op string, xml []byte, n int64, bypassed bool) {
		call := api.HookCall{
			Guest: guest, Op: op, UUID: guest, XML: xml, Bypassed: bypassed,
			Stamp: api.Stamp{BootID: op, UptimeMillis: n, LibvirtdPID: int(n), LibvirtdStart: uint64(n)},
		}
		assert.Equal(t, throughJSON(t, call), decoded(t, request(call)))
	})
}

// The short way through an answer says what the decoder does.
func TestReadVerdict(t *testing.T) {
	var plain bytes.Buffer
	require.NoError(t, json.NewEncoder(&plain).Encode(api.HookVerdict{Allow: true}))
	for _, body := range []string{plain.String(), `{"allow":true}`, `{"allow":false}` + "\n", `{"message":"no"}`, `{"allow":true,"xml":"PGQvPg=="}`} {
		var want api.HookVerdict
		require.NoError(t, json.Unmarshal([]byte(body), &want))
		got, err := readVerdict([]byte(body))
		require.NoError(t, err, body)
		assert.Equal(t, want, got, body)
	}
	for _, body := range []string{"", "{\"allow\":true}\n{}", `{"allow":1}`, `{"allow":true`, "true\n"} {
		_, err := readVerdict([]byte(body))
		var garbage *garbageError
		assert.ErrorAs(t, err, &garbage, body)
	}
}

func TestSettingsInAnyForm(t *testing.T) {
	for text, want := range map[string]int{
		`{"deadline_seconds":60}`: 60, `{"deadline_seconds":7,"later":{}}`: 7, "{\n  \"deadline_seconds\": 8\n}\n": 8, `{}`: 0,
		`{"deadline_seconds":6`: 0, `{"deadline_seconds":}`: 0, `{"deadline_seconds":1e1}`: 0, `{"deadline_seconds":"5"}`: 0, ``: 0,
	} {
		assert.Equal(t, want, settings([]byte(text)).DeadlineSeconds, text)
	}
}
