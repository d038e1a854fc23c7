// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
)

var (
	// ErrNotSupported is returned where this system cannot answer. It is also
	// an errors.ErrUnsupported.
	ErrNotSupported = fmt.Errorf("not supported on this system: %w", errors.ErrUnsupported)

	// ErrEscape is returned for a path that leads out of its root. It is also
	// an fs.ErrPermission.
	ErrEscape = fmt.Errorf("path leads out of the workspace: %w", fs.ErrPermission)

	// ErrUnsafePath is returned for a path that is not safe to interpret: NUL,
	// too long, or one of the Windows forms that name something else than
	// they show. It is also an fs.ErrInvalid.
	ErrUnsafePath = fmt.Errorf("unsafe path: %w", fs.ErrInvalid)

	// ErrLinkLoop is returned where resolving a path meets more than 40 links.
	ErrLinkLoop = errors.New("too many links")

	// ErrMagicLink is returned for a link of procfs that leads to an object
	// and not to a path: /proc/PID/fd/N, cwd, root, exe.
	ErrMagicLink = errors.New("magic link")

	// ErrNotDirectory is returned where a directory is needed and something
	// else was found.
	ErrNotDirectory = errors.New("not a directory")

	// ErrAmbiguous is returned where a path could stand for two objects: it
	// changed while it was read, or two names match it.
	ErrAmbiguous = errors.New("ambiguous")
)

// A PolicyError says what is wrong in a policy, where, and what to do.
type PolicyError struct {
	// Source, Line and Column are the place in a file or on the command line,
	// as far as known; Compile knows none, a decoder fills them in by Field.
	Source string
	Line   int
	Column int
	// Field is the field of the policy, such as "workspace" or
	// "grants[2].path".
	Field string
	// Value is the value that is wrong, where there is one.
	Value string
	// Err is what is wrong with it.
	Err error
	// Fix is what to do about it, as an instruction, where there is advice.
	Fix string
}

// Error returns "source:line:column: field "value": error; fix", without the
// parts that are not known.
func (e *PolicyError) Error() string {
	var b strings.Builder
	if e.Source != "" {
		b.WriteString(e.Source)
		if e.Line > 0 {
			fmt.Fprintf(&b, ":%d", e.Line)
			if e.Column > 0 {
				fmt.Fprintf(&b, ":%d", e.Column)
			}
		}
		b.WriteString(": ")
	}
	b.WriteString(e.Field)
	if e.Value != "" {
		fmt.Fprintf(&b, " %q", e.Value)
	}
	if e.Err != nil {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	if e.Fix != "" {
		b.WriteString("; ")
		b.WriteString(e.Fix)
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *PolicyError) Unwrap() error { return e.Err }

// bug reports a state that the code around it rules out. It panics: to go on
// would mean to decide on something that is not understood.
func bug(format string, args ...any) {
	panic("engine: bug: " + fmt.Sprintf(format, args...))
}
