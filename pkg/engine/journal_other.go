// SPDX-License-Identifier: Apache-2.0

//go:build !unix && !windows

package engine

import "os"

const openNoFollow = 0

// lock has nothing to keep a second writer out with.
func lock(*os.File) error { return ErrNotSupported }

func syncDir(string) error { return nil }
