//go:build race

package cluster

// raceOn: the race detector, under which everything takes four times as long, is on.
const raceOn = true
