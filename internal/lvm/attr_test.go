package lvm_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/lvm"
	"virtlvm/internal/run/runtest"
)

func TestAttr(t *testing.T) {
	f := runtest.New(t)
	f.ExpectLine("lvs --reportformat json -o lv_attr vg_san/lv1").Stdout(`{"report": [{"lv": [{"lv_attr":"-wi-ao----"}]}]}`)
	f.ExpectLine("lvs --reportformat json -o lv_attr vg_san/gone").Stdout("{").Exit(5)
	l := lvm.New(f, "/sys")
	attr, err := l.Attr(context.Background(), "vg_san/lv1")
	require.NoError(t, err)
	assert.Equal(t, "-wi-ao----", attr)
	_, err = l.Attr(context.Background(), "vg_san/gone")
	assert.Error(t, err)
}
