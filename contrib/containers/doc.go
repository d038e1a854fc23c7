// Package containers holds what a host with containers can copy into place, and a test that does. docs/containers.md
// explains it.
package containers
