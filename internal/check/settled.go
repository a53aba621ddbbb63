package check

import (
	"virtlvm/internal/activation"
	"virtlvm/internal/model"
)

// isOdd: lock, device and need of a volume do not fit together, as they do not for a moment
// while it is activated or deactivated.
func isOdd(v activation.VolumeCondition) bool {
	return v.Actual.Active != (v.Actual.Lock != model.ModeOff) || v.Actual.Active && !v.Held
}

func odd(all []activation.Condition) bool {
	for _, c := range all {
		for _, v := range c.Volumes {
			if c.Managed && isOdd(v) {
				return true
			}
		}
	}
	return false
}

// settled is the second of two looks, where a volume that was not odd in the first one is
// as it was then.
func settled(first, second []activation.Condition) []activation.Condition {
	before := map[model.VolumeID]activation.VolumeCondition{}
	for _, c := range first {
		for _, v := range c.Volumes {
			before[v.ID] = v
		}
	}
	for _, c := range second {
		for i, v := range c.Volumes {
			if was, ok := before[v.ID]; ok && isOdd(v) && !isOdd(was) {
				c.Volumes[i].Actual, c.Volumes[i].Held = was.Actual, was.Held
			}
		}
	}
	return second
}
