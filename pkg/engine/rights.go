// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"strings"
)

// Rights is a set of things a jail may do below a grant. The zero value is
// none: inside a wider grant it takes everything away.
type Rights uint8

// The bits are part of the ABI shared with the BPF programs: never renumber.
const (
	Read    Rights = 1 << iota // r: read a file, list a directory
	Write                      // w: write, truncate, change attributes
	Create                     // c: create a name; be the target of a link or rename
	Delete                     // d: remove a name; be the source of a rename
	Exec                       // x: execute
	Connect                    // u: connect or send to a unix socket
)

// None is the empty set: deny, inside a wider grant.
const None Rights = 0

// AllRights is every right there is.
const AllRights = Read | Write | Create | Delete | Exec | Connect

// DefaultWorkspaceRights is what a workspace gets where its policy names no
// rights: rwx+u.
const DefaultWorkspaceRights = AllRights

// rightLetters holds the letter of each bit, lowest first.
const rightLetters = "rwcdxu"

// rightNames are the short forms, in the order String prefers them.
var rightNames = [...]struct {
	name   string
	rights Rights
}{
	{"ro", Read},
	{"rx", Read | Exec},
	{"rw", Read | Write | Create | Delete},
	{"rwx", Read | Write | Create | Delete | Exec},
}

// rightForms completes a message about a value that is none of them.
const rightForms = `want ro, rx, rw or rwx, each optionally with "+u", or none, or "=" and letters of ` + rightLetters

// ParseRights reads rights as the command line and policy files write them:
//
//	ro  = r         read and list
//	rx  = rx        and execute
//	rw  = rwcd      read, write, create, delete
//	rwx = rwcdx     and execute
//
// each optionally followed by "+u" (connect to unix sockets); "none"; or "=" and
// any letters of rwcdxu, each once. Anything else is an error that names the
// value and the accepted forms.
func ParseRights(s string) (Rights, error) {
	if s == "none" {
		return None, nil
	}
	if letters, ok := strings.CutPrefix(s, "="); ok {
		var r Rights
		for _, c := range letters {
			i := strings.IndexRune(rightLetters, c)
			if i < 0 || r&(1<<i) != 0 {
				return 0, fmt.Errorf("parse rights %q: %s", s, rightForms)
			}
			r |= 1 << i
		}
		if r != 0 {
			return r, nil
		}
	}
	name, plus := strings.CutSuffix(s, "+u")
	for _, known := range rightNames {
		if name == known.name {
			if plus {
				return known.rights | Connect, nil
			}
			return known.rights, nil
		}
	}
	return 0, fmt.Errorf("parse rights %q: %s", s, rightForms)
}

// ParseWorkspaceRights is [ParseRights] for [Policy.WorkspaceRights], where 0
// stands for the default and not for none. It refuses "none": a workspace in
// which nothing may be done is a mistake, and to take it for the default would
// turn the strictest wish into the widest.
func ParseWorkspaceRights(s string) (Rights, error) {
	r, err := ParseRights(s)
	if err == nil && r == None {
		return 0, fmt.Errorf("parse rights %q: a workspace needs rights; name another workspace, or deny names inside it", s)
	}
	return r, err
}

// String returns the canonical form that [ParseRights] accepts for r: a short
// name, with "+u" where needed, and letters where no name fits. Bits that are no
// right are shown in hexadecimal, which ParseRights refuses.
func (r Rights) String() string {
	if !r.Valid() {
		return fmt.Sprintf("rights(%#x)", uint8(r))
	}
	if r == None {
		return "none"
	}
	for _, known := range rightNames {
		switch r {
		case known.rights:
			return known.name
		case known.rights | Connect:
			return known.name + "+u"
		}
	}
	letters := []byte{'='}
	for i := range rightLetters {
		if r&(1<<i) != 0 {
			letters = append(letters, rightLetters[i])
		}
	}
	return string(letters)
}

// Valid reports whether r holds nothing but rights.
func (r Rights) Valid() bool { return r&^AllRights == 0 }

// Has reports whether r holds every right of want.
func (r Rights) Has(want Rights) bool { return r&want == want }

// MarshalText writes the form of [Rights.String]. It errors for bits that are
// no right.
func (r Rights) MarshalText() ([]byte, error) {
	if !r.Valid() {
		return nil, fmt.Errorf("write rights %#x: unknown bits", uint8(r))
	}
	return []byte(r.String()), nil
}

// UnmarshalText reads the forms of [ParseRights].
func (r *Rights) UnmarshalText(text []byte) error {
	v, err := ParseRights(string(text))
	if err != nil {
		return err
	}
	*r = v
	return nil
}
