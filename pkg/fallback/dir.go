// SPDX-License-Identifier: Apache-2.0

package fallback

import (
	"io/fs"
	"os"

	"github.com/thenforce/thenforce/pkg/engine"
)

// A dir is a handle on a directory of a workspace, with the identity it was
// opened with. Names and paths are relative to it, and clean; nothing outside the
// workspace is ever reached by them. mounts says whether to enter mounts.
//
// There are handleDir, on Linux, and rootDir, on every system; Linux's tests try
// both.
type dir interface {
	// is reports whether the directory is the one that was seen.
	is(seen engine.ObjectID) bool

	// sub opens the directory rel.
	sub(rel string, mounts bool) (dir, error)

	// lookup describes the object rel. A link in the last place is described.
	lookup(rel string, mounts bool) (engine.Entry, error)

	// open opens the existing object rel and describes it. It does not wait
	// for what a FIFO or a device might make it wait for.
	open(rel string, flag int, mounts bool) (*os.File, engine.Entry, error)

	// create creates a file in the directory itself and describes it.
	create(name string, flag int, perm fs.FileMode) (*os.File, engine.Entry, error)

	// mkdir makes a directory in the directory itself and describes it.
	mkdir(name string, perm fs.FileMode) (engine.Entry, error)

	// remove removes a name from the directory itself.
	remove(name string, directory bool) error

	// rename moves a name from the directory itself to another directory of
	// the same workspace. It returns errChanged, and has moved nothing, where
	// one of them cannot be reached any more.
	rename(name string, to dir, newName string) error

	close()
}
