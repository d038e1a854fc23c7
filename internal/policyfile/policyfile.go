// SPDX-License-Identifier: Apache-2.0

// Package policyfile reads policies from YAML files.
//
// A policy file is read strictly: a field nobody knows, a key that comes twice, a value of another type, rights or a
// size that are misspelt are errors, each with line and column. So are the parts of YAML by which a file can mean
// something else than it shows: anchors and aliases, tags, merge keys, more than one document. docs/policy.md
// describes the fields, schema.json holds them for editors.
//
// [Parse] looks at no path. What a policy says of paths is found out by [engine.Compile]; [File.Locate] adds to its
// errors where in the file the field stands.
package policyfile

import (
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/thenforce/thenforce/pkg/engine"
)

// Version is the only version of the format.
const Version = 1

// MaxSize is the size in bytes past which a file is refused unread.
const MaxSize = 1 << 20

// Schema is the JSON schema of a policy file.
//
//go:embed schema.json
var Schema string

// A File is a policy file that was read. Fields that the file does not name are nil, so that a caller can tell them
// from those that say what holds anyway.
type File struct {
	// Source is the file's name in messages.
	Source string

	// Workspace is a path as it is written: absolute, or relative to the file.
	Workspace       *string
	WorkspaceRights *engine.Rights
	Mode            *engine.Mode
	Follow          Follow
	NoSymlinks      *bool
	Presets         *[]engine.Preset
	Grants          []Grant
	Deny            []string
	Resources       Resources

	places map[string]place
}

// Follow is what the walk may follow.
type Follow struct {
	Symlinks, MountPoints, Junctions, ReparsePoints *bool
}

// Grant is an entry of the list of grants.
type Grant struct {
	Path     string // absolute, or relative to the workspace
	Rights   engine.Rights
	Reason   string
	Expires  Expiry
	Optional bool
}

// Expiry is when a grant ends: never, a time after the policy is applied, or at an instant.
type Expiry struct {
	After time.Duration
	At    time.Time
}

// From gives the instant for a policy that is applied now. The zero time is never.
func (e Expiry) From(now time.Time) time.Time {
	if e.After > 0 {
		return now.Add(e.After)
	}
	return e.At
}

// Resources are limits of the jail's cgroup; 0 is none.
type Resources struct {
	Memory int64 // bytes
	Pids   int64
	CPUs   float64
}

// place is where something stands in a file, both counted from 1.
type place struct{ line, column int }

// Errors is everything that is wrong with a file, in its order. Each is an [*engine.PolicyError].
type Errors []error

// Error gives the first, and how many more there are.
func (e Errors) Error() string {
	if len(e) == 1 {
		return e[0].Error()
	}
	return fmt.Sprintf("%v (and %d more)", e[0], len(e)-1)
}

// Unwrap gives them all.
func (e Errors) Unwrap() []error { return e }

// Read reads the policy file at path. Errors are those of opening it, as *fs.PathError, and those of [Parse].
func Read(path string) (*File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, MaxSize+1))
	if err != nil {
		return nil, err
	}
	return Parse(path, text)
}

// WorkspacePath is the workspace that the file names, absolute, or "" where it names none.
func (f *File) WorkspacePath() (string, error) {
	if f.Workspace == nil {
		return "", nil
	}
	if filepath.IsAbs(*f.Workspace) {
		return filepath.Clean(*f.Workspace), nil
	}
	return filepath.Abs(filepath.Join(filepath.Dir(f.Source), *f.Workspace))
}

// Locate adds to an [*engine.PolicyError] about a field of this file where that stands. Other errors, also those about
// grants that were appended to the file's, it returns as they are.
func (f *File) Locate(err error) error {
	var policy *engine.PolicyError
	if !errors.As(err, &policy) || policy.Source != "" {
		return err
	}
	at, ok := f.places[policy.Field]
	if !ok {
		return err
	}
	located := *policy
	located.Source, located.Line, located.Column = f.Source, at.line, at.column
	return &located
}

// ParseSize reads a number of bytes: with k, m, g or t, each also followed by iB, it counts powers of 1024.
func ParseSize(text string) (int64, error) {
	digits := strings.TrimRight(text, "kKmMgGtTiB")
	unit := text[len(digits):]
	shift := uint(0)
	if unit != "" {
		at := strings.IndexByte("kmgt", unit[0]|0x20)
		if at < 0 || len(unit) > 1 && unit[1:] != "iB" {
			return 0, errSize
		}
		shift = uint(at+1) * 10
	}
	n, err := strconv.ParseUint(digits, 10, 63)
	if err != nil || n == 0 || n > (1<<63-1)>>shift {
		return 0, errSize
	}
	return int64(n << shift), nil
}

var errSize = errors.New("want a number of bytes, or one with k, m, g or t, such as 512m or 2GiB")
