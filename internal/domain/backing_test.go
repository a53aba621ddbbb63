package domain

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestParseBacking(t *testing.T) {
	lv := func(format string) Source { return Source{Path: "/dev/vg/b", Format: format} }
	for ref, c := range map[string]struct {
		format string
		want   Source
	}{
		"/dev/vg/b":                 {"qcow2", lv("qcow2")},
		"b":                         {"raw", lv("raw")},
		"/dev/vg/a:b":               {"raw", Source{Path: "/dev/vg/a:b", Format: "raw"}},
		"./a:b":                     {"raw", Source{Path: "/dev/vg/./a:b", Format: "raw"}},
		"-x":                        {"raw", Source{Path: "/dev/vg/-x", Format: "raw"}},
		"file:/dev/vg/b":            {"raw", lv("raw")},
		"file:b":                    {"raw", lv("raw")},
		"file:///dev/vg/b":          {"raw", Source{Path: "///dev/vg/b", Format: "raw"}},
		"host_device:/dev/vg/b":     {"qcow2", lv("qcow2")},
		"nbd:unix:/run/x":           {"qcow2", Source{Format: "qcow2"}},
		"nbd+unix:///x?socket=/run": {"raw", Source{Format: "raw"}},
		"rbd:pool/image":            {"raw", Source{Format: "raw"}},
		"https://h/x.qcow2":         {"qcow2", Source{Format: "qcow2"}},
		`json:{"driver":"qcow2","file":{"driver":"host_device","filename":"/dev/vg/b"}}`:                       {"", lv("qcow2")},
		`json:{"driver":"qcow2","file":{"driver":"host_device","filename":"b"}} `:                              {"qcow2", lv("qcow2")},
		`json:{"driver":"raw","file.driver":"file","file.filename":"/dev/vg/b"}`:                               {"raw", lv("raw")},
		`json:{"file.filename":"/dev/vg/b"}`:                                                                   {"qcow2", lv("qcow2")},
		`json:{"file":{"filename":"file:b"}}`:                                                                  {"raw", lv("raw")},
		`json:{"driver":"host_device","filename":"/dev/vg/b","read-only":true,"cache":{"direct":true}}`:        {"qcow2", lv("qcow2")},
		`json:{"driver":"raw","offset":512,"file":{"driver":"file","filename":"/dev/vg/b","locking":"off"}}`:   {"", Source{Path: "/dev/vg/b", Format: "raw", Sliced: true}},
		`json:{"driver":"qcow2","file":{"driver":"nbd","server":{"type":"unix","path":"/run/x"},"export":""}}`: {"", Source{Format: "qcow2"}},
		`json:{"driver":"nbd","host":"h"}`:                                                                     {"raw", Source{Format: "raw"}},
	} {
		t.Run(ref, func(t *testing.T) {
			s, err := parseBacking(ref, c.format, "/dev/vg/top")
			require.NoError(t, err)
			assert.Equal(t, &c.want, s)
		})
	}
	s, err := parseBacking("b", "raw", "/top")
	require.NoError(t, err)
	assert.Equal(t, "/b", s.Path)
}

func TestParseBackingRefuses(t *testing.T) {
	for ref, want := range map[string]string{
		"fat:/srv":                  "cannot tell what",
		"blkdebug::/dev/vg/b":       "cannot tell what",
		"quorum:x":                  "cannot tell what",
		"a:b":                       "cannot tell what",
		":b":                        "cannot tell what",
		"file:":                     "cannot tell what",
		"json:":                     "unexpected end",
		"json:x":                    "invalid character",
		"json:[]":                   "cannot unmarshal",
		"json:null":                 "no file name",
		"json:{}":                   "no file name",
		"json:{'driver':'raw'}":     "invalid character",
		`json:{"driver":"raw"}`:     `driver "raw" is not known`,
		`json:{"driver":"null-co"}`: `driver "null-co" is not known`,
		`json:{"driver":7,"filename":"/dev/vg/b"}`:            `"driver" is not a string`,
		`json:{"driver":"file","filename":["/dev/vg/b"]}`:     `"filename" is not a string`,
		`json:{"driver":"file","filename":"/dev/vg/b","x":1}`: `option "x" is not known`,
		`json:{"filename":"json:{}"}`:                         "nested",
		`json:{"file":"node0"}`:                               `"file" is not an object`,
		`json:{"file":null}`:                                  `"file" is not an object`,
		`json:{"driver":"raw","file":{"driver":"file","filename":"/dev/vg/b"},"file.filename":"/dev/vg/c"}`:             "stands beside",
		`json:{"driver":"qcow2","file":{"driver":"file","filename":"/dev/vg/b"},"backing":{"driver":"file"}}`:           `option "backing" is not known`,
		`json:{"driver":"qcow2","file":{"driver":"file","filename":"/dev/vg/b"},"data-file":{}}`:                        `option "data-file" is not known`,
		`json:{"driver":"qcow2","file":{"driver":"qcow2","file":{"driver":"file","filename":"/dev/vg/b"}}}`:             `driver "qcow2" is not known`,
		`json:{"driver":"raw","file":{"driver":"file","filename":"/dev/vg/b"}}`:                                         `the header says format "qcow2"`,
		`json:{"driver":"quorum","children":[{"driver":"file","filename":"/dev/vg/b"}]}`:                                `driver "quorum" is not known`,
		`json:{"driver":"throttle","throttle-group":"g","file":{"driver":"file","filename":"/dev/vg/b"},"inject":"x"}`:  "the header says format",
		`json:{"driver":"qcow2","file":{"driver":"copy-before-write","file":{"driver":"file","filename":"/dev/vg/b"}}}`: `"copy-before-write" is not known`,
		`json:{"driver":"qcow2","file.driver":"file","file.filename":"/dev/vg/b","file.x":"y"}`:                         `option "x" is not known`,
		`json:{"driver":"qcow2","file.driver":"raw","file.file.filename":"/dev/vg/b","file.file.driver":"host_device"}`: `driver "raw" is not known`,
	} {
		t.Run(ref, func(t *testing.T) {
			_, err := parseBacking(ref, "qcow2", "/dev/vg/top")
			require.ErrorContains(t, err, want)
			assert.NotContains(t, err.Error(), "\n")
		})
	}
}
