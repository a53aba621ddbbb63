package san

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestJSONReport(t *testing.T) {
	l := newLab(t)
	l.ok(l.a, "lvcreate -L 64M --addtag b --addtag a -n lv1 vg_san")
	v, err := l.san.Volume("vg_san", "lv1")
	require.NoError(t, err)
	require.Equal(t, `  {
      "report": [
          {
              "lv": [
                  {"lv_name":"lv1", "lv_uuid":"`+v.LVUUID+`", "lv_attr":"-wi-a-----", "lv_lockargs":"1.0.0:70254592", "lv_host":"kvm-a", "lv_active":"active", "lv_tags":"a,b", "origin":"", "pool_lv":"", "segtype":"linear", "lv_size":"64.00m"},
                  {"lv_name":"[lvmlock]", "lv_uuid":"`+l.lockLV()+`", "lv_attr":"-wi-ao----", "lv_lockargs":"", "lv_host":"kvm-a", "lv_active":"active", "lv_tags":"", "origin":"", "pool_lv":"", "segtype":"linear", "lv_size":"256.00m"}
              ]
          }
      ]
      ,
      "log": [
      ]
  }
`, l.ok(l.a, "lvs -a --reportformat json -o lv_name,lv_uuid,lv_attr,lv_lockargs,lv_host,lv_active,lv_tags,origin,pool_lv,segtype,lv_size vg_san"))
	require.Equal(t, `  {
      "report": [
          {
              "vg": [
                  {"vg_name":"vg_san", "vg_uuid":"`+v.VGUUID+`", "vg_lock_type":"sanlock", "vg_lock_args":"1.0.0:lvmlock", "vg_extent_size":"4.00m", "vg_free":"<63.69g", "vg_attr":"wz--ns", "vg_systemid":"", "vg_autoactivation":"enabled", "vg_tags":""}
              ]
          }
      ]
      ,
      "log": [
      ]
  }
`, l.ok(l.a, "vgs --reportformat=json -o vg_name,vg_uuid,vg_lock_type,vg_lock_args,vg_extent_size,vg_free,vg_attr,vg_systemid,vg_autoactivation,vg_tags"))
}

func (l *lab) lockLV() string {
	uuid := ""
	require.NoError(l, l.san.view(func(st *state) error { uuid = st.VGs["vg_san"].LockLV.UUID; return nil }))
	return uuid
}

// LVM's messages are in the report itself since 2.03.17, on stderr before.
func TestMessagesOfAJSONReport(t *testing.T) {
	const line = "lvs --reportformat json -o lv_name nosuch vg_san/lv1"
	l := newLab(t, "lv1")
	out, stderr, code := l.run(l.a, line)
	require.Equal(t, 5, code)
	require.Empty(t, stderr)
	require.Contains(t, out, `{"lv_name":"lv1"}`)
	require.Contains(t, out, `"log_seq_num":"1", "log_type":"error", "log_context":"processing", "log_object_type":"vg", `+
		`"log_object_name":"nosuch", "log_object_id":"", "log_object_group":"", "log_object_group_id":"", `+
		`"log_message":"Volume group \"nosuch\" not found", "log_errno":"-1", "log_ret_code":"0"},`)
	out, stderr, code = l.run(l.a, line+" --config log/report_command_log=0")
	require.Equal(t, 5, code)
	require.Equal(t, "  Volume group \"nosuch\" not found\n  Cannot process volume group nosuch\n", stderr)
	require.NotContains(t, out, `"log"`)
	require.NoError(t, l.a.Reboot())
	out, stderr, code = l.run(l.a, "lvs --reportformat json -o lv_name vg_san")
	require.Equal(t, 0, code)
	require.Empty(t, stderr)
	require.Contains(t, out, `"log_type":"warn"`)
	require.Contains(t, out, `"log_message":"Reading VG vg_san without a lock.", "log_errno":"0"`)
	require.NoError(t, l.b.StopLvmlockd())
	_, stderr, _ = l.run(l.b, "lvs --reportformat json -o lv_name vg_san")
	require.Equal(t, "  WARNING: lvmlockd process is not running.\n", stderr, "said before the report begins")

	old := newLabOf(t, LVM16, "lv1")
	out, stderr, code = old.run(old.a, line)
	require.Equal(t, 5, code)
	require.Equal(t, "  Volume group \"nosuch\" not found\n  Cannot process volume group nosuch\n", stderr)
	require.NotContains(t, out, `"log"`)
}

func TestTables(t *testing.T) {
	l := newLab(t)
	l.ok(l.a, "lvcreate -L 64M -n lv1 vg_san")
	require.Equal(t, "  LV  Attr       LLockArgs      Host \n  lv1 -wi-a----- 1.0.0:70254592 kvm-a\n",
		l.ok(l.a, "lvs -o lv_name,lv_attr,lv_lockargs,lv_host vg_san"))
	require.Equal(t, "  LV  LSize \n  lv1 64.00m\n", l.ok(l.a, "lvs -o name,size"))
	require.Equal(t, "  lv1:67108864\n", l.ok(l.a, "lvs --noheadings --nosuffix --units b --separator : -o lv_name,lv_size /dev/vg_san/lv1"))
	for args, want := range map[string]string{"": "64.00m", " --units k": "65536.00k", " --units g": "0.06g", " --units b": "67108864B", " --nosuffix": "64.00"} {
		require.Equal(t, "  "+want+"\n", l.ok(l.a, "lvs --noheadings -o lv_size"+args), args)
	}
	require.Equal(t, "  VG     #PV #LV #SN Attr   VSize  VFree  \n  vg_san   1   1   0 wz--ns 64.00g <63.69g\n", l.ok(l.a, "vgs"))
	l.fails(l.a, "lvs -o nosuch", "Unrecognised field: nosuch")
}
