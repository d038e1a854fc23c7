// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/json"
	"strconv"
	"unicode/utf8"

	"github.com/thenforce/thenforce/pkg/mountmap"
)

// pathBytes returns the bytes of a path that JSON cannot carry as a string, and
// nil for one that it can.
func pathBytes(path string) []byte {
	if utf8.ValidString(path) {
		return nil
	}
	return []byte(path)
}

// pathFrom is the inverse: the path that both forms together stand for.
func pathFrom(text string, bytes []byte) string {
	if bytes != nil {
		return string(bytes)
	}
	return text
}

// nullable returns nil for "".
func nullable(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func fromNullable(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// id64 is a 64-bit number that JSON carries as a string, since JavaScript has no
// room for it.
type id64 uint64

func (n id64) MarshalText() ([]byte, error) { return strconv.AppendUint(nil, uint64(n), 10), nil }

func (n *id64) UnmarshalText(text []byte) error {
	v, err := strconv.ParseUint(string(text), 10, 64)
	*n = id64(v)
	return err
}

type volumeJSON struct {
	Dev     mountmap.StatDev `json:"dev"`
	Ino     id64             `json:"ino"`
	InoHigh id64             `json:"inoHigh,omitempty"`
	FSType  string           `json:"fsType"`
}

// MarshalJSON writes {"dev","ino","fsType"}; the numbers are decimal strings.
func (v VolumeIdentity) MarshalJSON() ([]byte, error) {
	return json.Marshal(volumeJSON{v.Dev, id64(v.Ino), id64(v.InoHigh), v.FSType})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (v *VolumeIdentity) UnmarshalJSON(data []byte) error {
	var j volumeJSON
	if err := json.Unmarshal(data, &j); err != nil {
		return err
	}
	*v = VolumeIdentity{Dev: j.Dev, Ino: uint64(j.Ino), InoHigh: uint64(j.InoHigh), FSType: j.FSType}
	return nil
}

type workspaceJSON struct {
	WorkspaceID        string           `json:"workspaceId"`
	Platform           PlatformIdentity `json:"platform"`
	CanonicalRoot      string           `json:"canonicalRoot"`
	CanonicalRootBytes []byte           `json:"canonicalRootBytes,omitempty"`
	VolumeIdentity     *VolumeIdentity  `json:"volumeIdentity"`
	BindingStatus      BindingStatus    `json:"bindingStatus"`
	BlockedReason      *string          `json:"blockedReason"`
	Notices            []string         `json:"notices,omitempty"`
}

// MarshalJSON writes the seed's fields. volumeIdentity and blockedReason are
// null where there is none; canonicalRootBytes is there where the root is not
// UTF-8.
func (w WorkspaceIdentity) MarshalJSON() ([]byte, error) {
	return json.Marshal(workspaceJSON{
		WorkspaceID:        w.WorkspaceID,
		Platform:           w.Platform,
		CanonicalRoot:      w.CanonicalRoot,
		CanonicalRootBytes: pathBytes(w.CanonicalRoot),
		VolumeIdentity:     w.VolumeIdentity,
		BindingStatus:      w.BindingStatus,
		BlockedReason:      nullable(w.BlockedReason),
		Notices:            w.Notices,
	})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (w *WorkspaceIdentity) UnmarshalJSON(data []byte) error {
	var j workspaceJSON
	if err := json.Unmarshal(data, &j); err != nil {
		return err
	}
	*w = WorkspaceIdentity{
		WorkspaceID:    j.WorkspaceID,
		Platform:       j.Platform,
		CanonicalRoot:  pathFrom(j.CanonicalRoot, j.CanonicalRootBytes),
		VolumeIdentity: j.VolumeIdentity,
		BindingStatus:  j.BindingStatus,
		BlockedReason:  fromNullable(j.BlockedReason),
		Notices:        j.Notices,
	}
	return nil
}

type decisionJSON struct {
	Outcome           Outcome `json:"outcome"`
	Code              Code    `json:"code"`
	Reason            string  `json:"reason"`
	ResolvedPath      *string `json:"resolvedPath"`
	ResolvedPathBytes []byte  `json:"resolvedPathBytes,omitempty"`
}

// MarshalJSON writes {"outcome","code","reason","resolvedPath"}. resolvedPath is
// null where there is none; resolvedPathBytes is there where it is not UTF-8.
func (d ContainmentDecision) MarshalJSON() ([]byte, error) {
	return json.Marshal(decisionJSON{d.Outcome, d.Code, d.Reason, nullable(d.ResolvedPath), pathBytes(d.ResolvedPath)})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (d *ContainmentDecision) UnmarshalJSON(data []byte) error {
	var j decisionJSON
	if err := json.Unmarshal(data, &j); err != nil {
		return err
	}
	*d = ContainmentDecision{j.Outcome, j.Code, j.Reason, pathFrom(fromNullable(j.ResolvedPath), j.ResolvedPathBytes)}
	return nil
}

type objectJSON struct {
	Dev           mountmap.StatDev `json:"dev"`
	Ino           id64             `json:"ino"`
	InoHigh       id64             `json:"inoHigh,omitempty"`
	Generation    *id64            `json:"generation,omitempty"`
	MountID       id64             `json:"mountId,omitempty"`
	UniqueMountID bool             `json:"uniqueMountId,omitempty"`
}

// MarshalJSON writes the numbers as decimal strings, and leaves out what is not
// known.
func (id ObjectID) MarshalJSON() ([]byte, error) {
	j := objectJSON{id.Dev, id64(id.Ino), id64(id.InoHigh), nil, id64(id.MountID), id.UniqueMountID}
	if id.HasGeneration {
		g := id64(id.Generation)
		j.Generation = &g
	}
	return json.Marshal(j)
}

// UnmarshalJSON reads what MarshalJSON writes.
func (id *ObjectID) UnmarshalJSON(data []byte) error {
	var j objectJSON
	if err := json.Unmarshal(data, &j); err != nil {
		return err
	}
	*id = ObjectID{Dev: j.Dev, Ino: uint64(j.Ino), InoHigh: uint64(j.InoHigh), MountID: uint64(j.MountID), UniqueMountID: j.UniqueMountID}
	if j.Generation != nil {
		id.Generation, id.HasGeneration = uint64(*j.Generation), true
	}
	return nil
}
