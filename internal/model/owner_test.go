package model

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestOwners(t *testing.T) {
	const vm1, vm2 = "11111111-2222-4333-8444-000000000001", "11111111-2222-4333-8444-000000000002"
	plain, move := CommandOwner("kvm-a-7", ""), CommandOwner("kvm-a-7", vm1)
	for owner, guest := range map[string]bool{vm1: true, OwnerOperator: false, plain: false, move: false} {
		assert.Equal(t, guest, IsGuest(owner), owner)
	}
	key, guest, ok := CommandOf(move)
	assert.True(t, ok)
	assert.Equal(t, []string{"kvm-a-7", vm1}, []string{key, guest})
	key, guest, ok = CommandOf(plain)
	assert.True(t, ok)
	assert.Equal(t, []string{"kvm-a-7", ""}, []string{key, guest})
	for _, pair := range [][2]string{{move, vm1}, {vm1, move}} {
		assert.True(t, Together(pair[0], pair[1]), pair)
	}
	for _, pair := range [][2]string{{move, vm2}, {plain, vm1}, {vm1, vm2}, {plain, plain}, {move, plain}, {OwnerOperator, move}, {plain, ""}} {
		assert.False(t, Together(pair[0], pair[1]), pair)
	}
	assert.Equal(t, "command kvm-a-7", Hold{Owner: move}.Subject())
	assert.Equal(t, "an operator", Hold{Owner: OwnerOperator}.Subject())
	assert.Equal(t, "guest vm1", Hold{Owner: vm1, Guest: "vm1"}.Subject())
}

func TestTags(t *testing.T) {
	v := Volume{Tags: []string{"x", TagIncomplete + "kvm-a-7"}}
	key, ok := v.HasTagOf(TagIncomplete)
	assert.True(t, ok)
	assert.Equal(t, "kvm-a-7", key)
	_, ok = v.HasTagOf(TagCommand)
	assert.False(t, ok)
}
