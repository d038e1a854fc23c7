// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/rand"
	"encoding/hex"
	"os"
	"runtime"
	"strings"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	"github.com/thenforce/thenforce/internal/rpc"
	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/pkg/fallback"
)

// Codes of the engine's own errors. They are stable.
const (
	rpcUnknownBinding = -32000 // no bind in this process gave this id
	rpcRefused        = -32001 // the workspace's containment refuses; data is the decision
	rpcFileSystem     = -32002 // the system refuses; data.code is a token
	rpcPolicy         = -32003 // the policy cannot be compiled; data.field says where it is wrong
	rpcJournal        = -32004 // the journal of expansions cannot be written
	rpcUnverifiable   = -32005 // the state of enforcement cannot be found out
)

func (a *app) engineCommand() *cobra.Command {
	var journal string
	cmd := &cobra.Command{
		Use:   "engine",
		Short: "Answer questions of programs in other languages on standard input",
		Long: `Answer questions of programs in other languages: JSON-RPC 2.0 on standard input
and output, one object of at most 1 MiB a line, answered in order, until the
input ends. Parameters are named; batches are not taken.

  version {}                              bind {root}
  checkContainment {binding,target,options}
  decide {policy,path,op,to}              checkHardBoundary {workspaceRoot,...}
  snapshot {binding,target,options}       revalidate {original,current}
  readFile {binding,target,options}       writeFile {...,contentBase64}
  expansion.grant {resourceIdentity,workspaceId,actionClasses,reason,expiresAt}
  expansion.revoke {expansionId}          expansion.get {expansionId}
  expansion.list {}                       enforcementStatus {}
  expansion.isActive {expansionId,resourceIdentity,workspaceId,actionClass}

A binding is named by the workspaceId that bind gave. readFile and writeFile
check and open in one: nobody can lead them out of the workspace in between.
Errors: -32700 -32600 -32601 -32602 of JSON-RPC; -32000 unknown binding, -32001
refused (data: the decision), -32002 file system, -32003 policy, -32004 journal,
-32005 the state of enforcement cannot be found out.`,
		Example: `  echo '{"jsonrpc":"2.0","id":1,"method":"bind","params":{"root":"."}}' | thenforce engine`,
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			s, err := newSession(journal)
			if err != nil {
				return err
			}
			defer s.close()
			return rpc.Serve(os.Stdin, os.Stdout, s.methods())
		},
	}
	cmd.Flags().StringVar(&journal, "journal", "", "keep expansions in `FILE` as well (default: in memory, as long as the engine runs)")
	return cmd
}

// session is one run of "thenforce engine".
type session struct {
	probes   *fallback.Probes
	bindings map[string]engine.WorkspaceIdentity
	registry *engine.Registry
	status   func() (engine.EnforcementStatus, error)
}

// newSession starts an activation of its own: what an earlier session granted is history in the journal.
func newSession(journal string) (*session, error) {
	probes, err := fallback.NewProbes()
	if err != nil {
		return nil, err
	}
	s := &session{
		probes:   probes,
		bindings: map[string]engine.WorkspaceIdentity{},
		status:   func() (engine.EnforcementStatus, error) { return currentStatus(false) },
	}
	activation := engine.Activation{BootID: bootID(), Scope: "engine-" + randomID()}
	if journal == "" {
		s.registry = engine.NewRegistry(activation)
		return s, nil
	}
	registry, recovery, err := engine.OpenRegistry(journal, activation)
	if err != nil {
		probes.Close()
		return nil, err
	}
	if recovery.Dropped > 0 {
		logrus.Warnf("%s: dropped a last record that was cut short (%d bytes)", journal, recovery.Dropped)
	}
	s.registry = registry
	return s, nil
}

func (s *session) close() {
	if err := s.registry.Close(); err != nil {
		logrus.Warn(err)
	}
	s.probes.Close()
}

// bootID names this boot of the machine. Where the system does not tell, every session counts as one: its scope is
// never used again in any case.
func bootID() string {
	if runtime.GOOS == "linux" {
		if text, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err == nil {
			return strings.TrimSpace(string(text))
		}
	}
	return randomID()
}

func randomID() string {
	var id [8]byte
	rand.Read(id[:]) // never errors: see crypto/rand
	return hex.EncodeToString(id[:])
}
