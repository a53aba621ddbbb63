// Package version holds what a binary was built from, set by the linker:
//
//	-ldflags "-X virtlvm/internal/version.Version=1.2.3 -X virtlvm/internal/version.Commit=abc1234"
package version

// Set by the linker; these values stand in a binary built by a bare `go build`.
var (
	// Version is the release, as `git describe` names it, without the leading "v".
	Version = "0.0.0-dev"
	// Commit is the abbreviated git commit.
	Commit = "unknown"
)
