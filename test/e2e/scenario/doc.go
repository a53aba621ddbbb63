// Package scenario is the end-to-end suite: what an administrator of two KVM hosts does,
// done on two real hosts. The tests have the build tag e2e; test/e2e/run.sh prepares what
// they need and runs them.
package scenario
