// SPDX-License-Identifier: Apache-2.0

// Package node is an example in another language: a client of "thenforce engine" for Node.js, and a write_file tool
// that cannot be led out of a workspace. See README.md; the package's test runs it.
package node
