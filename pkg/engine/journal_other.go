// SPDX-License-Identifier: Apache-2.0

//go:build !unix && !windows

package engine

import "os"

const openNoFollow = 0

// canReplaceOpen: a rename may replace a file that is open.
const canReplaceOpen = false

// lock has nothing to keep a second writer out with.
func lock(*os.File) error { return ErrNotSupported }

func syncDir(string) error { return nil }
