package lvm

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestSplitMapperName(t *testing.T) {
	for _, c := range [][2]string{{"vg_san", "lv1"}, {"a-b", "c"}, {"a", "b-c-d"}, {"a--b", "c+d.e"}, {"v", "x_1"}} {
		vg, lv, ok := SplitMapperName(MapperName(c[0], c[1]))
		assert.True(t, ok, c)
		assert.Equal(t, c, [2]string{vg, lv})
	}
	for _, name := range []string{"", "mpatha", "a-b-c", "-b", "a-", "luks-1-2"} {
		_, _, ok := SplitMapperName(name)
		assert.False(t, ok, name)
	}
}
