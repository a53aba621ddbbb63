package san

import (
	"errors"
	"reflect"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// fill gives everything that v leads to a value.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Struct:
		for _, f := range v.Fields() {
			fill(f)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key)
		fill(value)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(7)
	case reflect.Float64:
		v.SetFloat(7)
	default:
		panic("a state has a " + v.Kind().String())
	}
}

// shared names what two values lead to both.
func shared(path string, a, b reflect.Value) (all []string) {
	switch a.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		if a.Pointer() == b.Pointer() {
			return []string{path}
		}
	}
	switch a.Kind() {
	case reflect.Pointer:
		all = shared(path, a.Elem(), b.Elem())
	case reflect.Struct:
		for i := range a.NumField() {
			all = append(all, shared(path+"."+a.Type().Field(i).Name, a.Field(i), b.Field(i))...)
		}
	case reflect.Slice:
		for i := range a.Len() {
			all = append(all, shared(path, a.Index(i), b.Index(i))...)
		}
	case reflect.Map:
		for _, key := range a.MapKeys() {
			all = append(all, shared(path, a.MapIndex(key), b.MapIndex(key))...)
		}
	}
	return all
}

func TestClone(t *testing.T) {
	st := &state{}
	fill(reflect.ValueOf(st).Elem())
	c := st.clone()
	assert.Equal(t, st, c)
	assert.Empty(t, shared("state", reflect.ValueOf(st), reflect.ValueOf(c)))
	assert.Equal(t, &state{}, (&state{}).clone())
}

// A SAN that is alone forgets what a change that failed had begun, as one on disk does.
func TestAlone(t *testing.T) {
	for name, alone := range map[string]bool{"alone": true, "shared": false} {
		t.Run(name, func(t *testing.T) {
			s := New(t, Options{Hosts: []string{"kvm-a"}, VGs: []VGSpec{{Name: "vg_san"}}, Alone: alone})
			a, err := s.Host("kvm-a")
			require.NoError(t, err)
			broken := errors.New("broken")
			err = s.update(func(st *state) error {
				st.Hosts["kvm-a"].ID = 9
				delete(st.VGs, "vg_san")
				return broken
			})
			require.ErrorIs(t, err, broken)
			assert.Equal(t, 1, a.ID())
			require.NoError(t, a.SetID(3))
			assert.Equal(t, 3, a.ID())
			_, err = s.AddLV("vg_san", LVSpec{Name: "vm1"})
			require.NoError(t, err)
			_, err = Open(s.Dir())
			if alone {
				require.Error(t, err)
			} else {
				require.NoError(t, err)
			}
		})
	}
}
