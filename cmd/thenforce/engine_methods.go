// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/thenforce/thenforce/internal/rpc"
	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/pkg/fallback"
)

// maxRead is the largest file that readFile returns: the answer is one line that the client holds in memory.
const maxRead = 16 << 20

// methods are what a session answers.
func (s *session) methods() map[string]rpc.Method {
	return map[string]rpc.Method{
		"version":            method(s.version),
		"bind":               method(s.bind),
		"checkContainment":   method(s.checkContainment),
		"decide":             method(s.decide),
		"checkHardBoundary":  method(s.checkHardBoundary),
		"snapshot":           method(s.snapshot),
		"revalidate":         method(s.revalidate),
		"readFile":           method(s.readFile),
		"writeFile":          method(s.writeFile),
		"expansion.grant":    method(s.grantExpansion),
		"expansion.revoke":   method(s.revokeExpansion),
		"expansion.get":      method(s.getExpansion),
		"expansion.list":     method(s.listExpansions),
		"expansion.isActive": method(s.expansionActive),
		"enforcementStatus":  method(s.enforcementStatus),
	}
}

// method decodes parameters for f.
func method[P any](f func(*P) (any, *rpc.Error)) rpc.Method {
	return func(raw json.RawMessage) (any, *rpc.Error) {
		var params P
		if err := rpc.Decode(raw, &params); err != nil {
			return nil, err
		}
		return f(&params)
	}
}

type noParams struct{}

type versionResult struct {
	Version  string                  `json:"version"`
	GOOS     string                  `json:"os"`
	Platform engine.PlatformIdentity `json:"platform"`
}

func (s *session) version(*noParams) (any, *rpc.Error) {
	return versionResult{version(), runtime.GOOS, s.probes.Platform()}, nil
}

type bindParams struct {
	Root      *string `json:"root"`
	RootBytes []byte  `json:"rootBytes"`
}

// bind binds a root, again if it was bound before: the root may have become another directory.
func (s *session) bind(p *bindParams) (any, *rpc.Error) {
	root, err := text("root", p.Root, p.RootBytes)
	if err != nil {
		return nil, err
	}
	workspace := engine.Bind(root, s.probes)
	s.bindings[workspace.WorkspaceID] = workspace
	return workspace, nil
}

// targetParams name a path in a bound workspace.
type targetParams struct {
	Binding     string                    `json:"binding"`
	Target      *string                   `json:"target"`
	TargetBytes []byte                    `json:"targetBytes"`
	Options     engine.ContainmentOptions `json:"options"`
}

// target resolves the names in p.
func (s *session) target(p *targetParams) (engine.WorkspaceIdentity, string, *rpc.Error) {
	target, err := text("target", p.Target, p.TargetBytes)
	if err != nil {
		return engine.WorkspaceIdentity{}, "", err
	}
	workspace, ok := s.bindings[p.Binding]
	if !ok {
		return workspace, "", &rpc.Error{Code: rpcUnknownBinding, Message: fmt.Sprintf("there is no binding %q: bind the root first", p.Binding)}
	}
	return workspace, target, nil
}

func (s *session) checkContainment(p *targetParams) (any, *rpc.Error) {
	workspace, target, err := s.target(p)
	if err != nil {
		return nil, err
	}
	return engine.CheckContainment(workspace, target, p.Options, s.probes), nil
}

type decideParams struct {
	Policy               *policyParams `json:"policy"`
	Path                 *string       `json:"path"`
	PathBytes            []byte        `json:"pathBytes"`
	Op                   string        `json:"op"`
	To                   *string       `json:"to"`
	ToBytes              []byte        `json:"toBytes"`
	EnforcementAvailable *bool         `json:"enforcementAvailable"`
}

// decide compiles the policy each time, since what its paths lead to may have changed.
func (s *session) decide(p *decideParams) (any, *rpc.Error) {
	req := engine.Request{}
	var rpcErr *rpc.Error
	if req.Path, rpcErr = text("path", p.Path, p.PathBytes); rpcErr != nil {
		return nil, rpcErr
	}
	if p.To != nil || p.ToBytes != nil {
		if req.To, rpcErr = text("to", p.To, p.ToBytes); rpcErr != nil {
			return nil, rpcErr
		}
	}
	var err error
	if req.Op, err = engine.ParseOp(p.Op); err != nil {
		return nil, rpc.InvalidParams("op: %v", err)
	}
	if req.To != "" && req.Op != engine.OpRename && req.Op != engine.OpLink {
		return nil, rpc.InvalidParams("to: %s has no second path", req.Op)
	}
	policy, rpcErr := p.Policy.policy(time.Now())
	if rpcErr != nil {
		return nil, rpcErr
	}
	if req.EnforcementAvailable, rpcErr = s.available(p.EnforcementAvailable); rpcErr != nil {
		return nil, rpcErr
	}
	decision, err := engine.Decide(policy, req, s.registry, s.probes)
	if err != nil {
		e := &rpc.Error{Code: rpcPolicy, Message: err.Error()}
		if wrong := (*engine.PolicyError)(nil); errors.As(err, &wrong) {
			e.Data = map[string]string{"field": wrong.Field}
		}
		return nil, e
	}
	return decision, nil
}

// available is whether enforcement is available: as stated, or else the truth about this host.
func (s *session) available(stated *bool) (bool, *rpc.Error) {
	if stated != nil {
		return *stated, nil
	}
	status, err := s.status()
	if err != nil {
		return false, &rpc.Error{Code: rpcUnverifiable, Message: err.Error()}
	}
	return status.State == engine.Verified, nil
}

// boundaryParams are a BoundaryInput that tells absent from false.
type boundaryParams struct {
	engine.BoundaryInput
	EnforcementAvailable *bool `json:"enforcementAvailable"`
}

func (s *session) checkHardBoundary(p *boundaryParams) (any, *rpc.Error) {
	in := p.BoundaryInput
	var err *rpc.Error
	if in.EnforcementAvailable, err = s.available(p.EnforcementAvailable); err != nil {
		return nil, err
	}
	return engine.CheckHardBoundary(in), nil
}

type snapshotParams struct {
	targetParams
	EnforcementAvailable *bool `json:"enforcementAvailable"`
}

func (s *session) snapshot(p *snapshotParams) (any, *rpc.Error) {
	workspace, target, err := s.target(&p.targetParams)
	if err != nil {
		return nil, err
	}
	available, err := s.available(p.EnforcementAvailable)
	if err != nil {
		return nil, err
	}
	snapshot, _ := engine.Snapshot(workspace, target, p.Options, available, s.probes)
	return snapshot, nil
}

type revalidateParams struct {
	Original *engine.BoundarySnapshot `json:"original"`
	Current  *engine.BoundarySnapshot `json:"current"`
}

func (s *session) revalidate(p *revalidateParams) (any, *rpc.Error) {
	if p.Original == nil || p.Current == nil {
		return nil, rpc.InvalidParams("original and current are both needed")
	}
	return engine.Revalidate(*p.Original, *p.Current), nil
}

type readResult struct {
	ContentBase64 []byte `json:"contentBase64"`
}

func (s *session) readFile(p *targetParams) (any, *rpc.Error) {
	workspace, target, rpcErr := s.target(p)
	if rpcErr != nil {
		return nil, rpcErr
	}
	guard := fallback.Guard{Workspace: workspace, Options: p.Options, Probes: s.probes}
	file, err := guard.Open(target)
	if err != nil {
		return nil, fileError(err)
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, maxRead+1))
	if err != nil {
		return nil, fileError(err)
	}
	if len(content) > maxRead {
		return nil, &rpc.Error{
			Code: rpcFileSystem, Message: fmt.Sprintf("read %s: larger than %d bytes", target, maxRead), Data: fileErrorData{"too-large"},
		}
	}
	return readResult{content}, nil
}

type writeParams struct {
	targetParams
	ContentBase64 *[]byte `json:"contentBase64"`
}

type writeResult struct {
	Written int `json:"written"`
}

func (s *session) writeFile(p *writeParams) (any, *rpc.Error) {
	workspace, target, rpcErr := s.target(&p.targetParams)
	if rpcErr != nil {
		return nil, rpcErr
	}
	if p.ContentBase64 == nil {
		return nil, rpc.InvalidParams("the parameter contentBase64 is missing")
	}
	guard := fallback.Guard{Workspace: workspace, Options: p.Options, Probes: s.probes}
	if err := guard.WriteFile(target, *p.ContentBase64, 0o666); err != nil {
		return nil, fileError(err)
	}
	return writeResult{len(*p.ContentBase64)}, nil
}

type fileErrorData struct {
	Code string `json:"code"`
}

// fileError says why a file was not read or written: the workspace's rules or the system.
func fileError(err error) *rpc.Error {
	if refused := (*fallback.RefusedError)(nil); errors.As(err, &refused) {
		return &rpc.Error{Code: rpcRefused, Message: err.Error(), Data: refused.Decision}
	}
	code := "io"
	switch {
	case errors.Is(err, fallback.ErrSpecial):
		code = "special"
	case errors.Is(err, fs.ErrNotExist):
		code = "not-exist"
	case errors.Is(err, fs.ErrPermission):
		code = "permission"
	case errors.Is(err, syscall.EISDIR):
		code = "is-directory"
	case errors.Is(err, syscall.ENOTDIR):
		code = "not-directory"
	}
	return &rpc.Error{Code: rpcFileSystem, Message: err.Error(), Data: fileErrorData{code}}
}

type grantParams struct {
	ResourceIdentity      *string    `json:"resourceIdentity"`
	ResourceIdentityBytes []byte     `json:"resourceIdentityBytes"`
	WorkspaceID           string     `json:"workspaceId"`
	ActionClasses         []string   `json:"actionClasses"`
	Reason                string     `json:"reason"`
	ExpiresAt             *time.Time `json:"expiresAt"`
}

func (s *session) grantExpansion(p *grantParams) (any, *rpc.Error) {
	resource, rpcErr := text("resourceIdentity", p.ResourceIdentity, p.ResourceIdentityBytes)
	if rpcErr != nil {
		return nil, rpcErr
	}
	if resource == "" || p.WorkspaceID == "" || len(p.ActionClasses) == 0 {
		return nil, rpc.InvalidParams("an expansion needs resourceIdentity, workspaceId and actionClasses")
	}
	req := engine.ExpansionRequest{ResourceIdentity: resource, WorkspaceID: p.WorkspaceID, ActionClasses: p.ActionClasses, Reason: p.Reason}
	if p.ExpiresAt != nil {
		if p.ExpiresAt.IsZero() {
			return nil, rpc.InvalidParams("expiresAt: the year 1 stands for no time: leave it out for an expansion without end")
		}
		req.ExpiresAt = *p.ExpiresAt
	}
	expansion, err := s.registry.Grant(req)
	if err != nil {
		return nil, &rpc.Error{Code: rpcJournal, Message: err.Error()}
	}
	return expansion, nil
}

type expansionParams struct {
	ExpansionID string `json:"expansionId"`
}

func (s *session) revokeExpansion(p *expansionParams) (any, *rpc.Error) {
	revoked, err := s.registry.Revoke(p.ExpansionID)
	if err != nil {
		return nil, &rpc.Error{Code: rpcJournal, Message: err.Error()}
	}
	return revoked, nil
}

func (s *session) getExpansion(p *expansionParams) (any, *rpc.Error) {
	if expansion, ok := s.registry.Get(p.ExpansionID); ok {
		return expansion, nil
	}
	return nil, nil
}

func (s *session) listExpansions(*noParams) (any, *rpc.Error) { return s.registry.List(), nil }

type activeParams struct {
	ExpansionID           string     `json:"expansionId"`
	ResourceIdentity      *string    `json:"resourceIdentity"`
	ResourceIdentityBytes []byte     `json:"resourceIdentityBytes"`
	WorkspaceID           string     `json:"workspaceId"`
	ActionClass           string     `json:"actionClass"`
	Now                   *time.Time `json:"now"`
}

func (s *session) expansionActive(p *activeParams) (any, *rpc.Error) {
	resource, rpcErr := text("resourceIdentity", p.ResourceIdentity, p.ResourceIdentityBytes)
	if rpcErr != nil {
		return nil, rpcErr
	}
	now := time.Now()
	if p.Now != nil {
		now = *p.Now
	}
	return s.registry.IsActive(p.ExpansionID, resource, p.WorkspaceID, p.ActionClass, now), nil
}

func (s *session) enforcementStatus(*noParams) (any, *rpc.Error) {
	status, err := s.status()
	if err != nil {
		return nil, &rpc.Error{Code: rpcUnverifiable, Message: err.Error()}
	}
	return status, nil
}

// text is a parameter that may be anything a path may be: where the text is not UTF-8 the bytes say it.
func text(name string, value *string, bytes []byte) (string, *rpc.Error) {
	switch {
	case bytes != nil:
		return string(bytes), nil
	case value == nil:
		return "", rpc.InvalidParams("the parameter %s is missing", name)
	case strings.ContainsRune(*value, '\ufffd'):
		// A reader of JSON writes this character for what it cannot say, so it may stand for another name.
		return "", rpc.InvalidParams("the parameter %s holds U+FFFD: send the name's bytes in %sBytes, as base64", name, name)
	}
	return *value, nil
}
