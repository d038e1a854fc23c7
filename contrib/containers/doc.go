// Package containers holds what a host with containers can copy into place, and a test that does. docs/containers.md
// explains it.
package containers

import "embed"

// Files are those of this folder.
//
//go:embed hook.yaml policies thenforce-runc
var Files embed.FS
