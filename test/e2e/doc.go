// Package e2e holds the end-to-end suite's entry, run.sh, and its guest image. The hosts
// are in package cluster, what is done on them in package scenario.
package e2e
