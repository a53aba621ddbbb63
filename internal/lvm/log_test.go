package lvm

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/run/runtest"
)

// LVM 2.03.31 puts its messages into the report, and nothing on stderr.
func TestMessagesInTheReport(t *testing.T) {
	fake := runtest.New(t)
	fake.Expect(reportCmd("lvs", lvFields, "nosuch", "vg_san").Argv()...).Stdout(`
  {
      "report": [ { "lv": [ ] } ]
      ,
      "log": [
          {"log_seq_num":"1", "log_type":"error", "log_context":"processing", "log_object_type":"vg", "log_object_name":"nosuch", "log_message":"Volume group \"nosuch\" not found", "log_errno":"-1", "log_ret_code":"0"},
          {"log_seq_num":"2", "log_type":"error", "log_context":"processing", "log_object_type":"vg", "log_object_name":"nosuch", "log_message":"Cannot process volume group nosuch", "log_errno":"-1", "log_ret_code":"0"},
          {"log_seq_num":"3", "log_type":"warn", "log_message":"Reading VG vg_san without a lock.", "log_errno":"0", "log_ret_code":"0"},
          {"log_seq_num":"4", "log_type":"status", "log_message":"failure", "log_errno":"-1", "log_ret_code":"5"}
      ]
  }
`).Exit(5)
	vols, missing, unlocked, err := New(fake, "/sys").Inventory(context.Background(), "nosuch", "vg_san")
	require.NoError(t, err)
	assert.Empty(t, vols)
	assert.Equal(t, []string{"nosuch"}, missing)
	assert.Equal(t, []string{"vg_san"}, unlocked)
}

// A value is what encoding/json would make of it, however it is written.
func TestValues(t *testing.T) {
	for _, text := range []string{`"vg_san"`, `""`, `"a b"`, `"a\"b"`, `"\u00e9"`, `"é"`, `"\\"`, "\"\xff\"", `7`, `-1.5e3`} {
		var got map[string]value
		require.NoError(t, json.Unmarshal([]byte(`{"x": `+text+`}`), &got), text)
		var want any
		dec := json.NewDecoder(strings.NewReader(text))
		dec.UseNumber()
		require.NoError(t, dec.Decode(&want), text)
		assert.Equal(t, fmt.Sprint(want), string(got["x"]), text)
	}
	var v map[string]value
	require.Error(t, json.Unmarshal([]byte(`{"x": true}`), &v))
	require.Error(t, json.Unmarshal([]byte(`{"x": "`+"\n"+`"}`), &v))
}
