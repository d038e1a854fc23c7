// SPDX-License-Identifier: Apache-2.0

package fallback

import (
	"errors"
	"slices"
	"testing"

	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/test/needs"
)

func TestStatusNeverVerified(t *testing.T) {
	status := Status()
	if status.State != engine.Unverified || status.Backend != "userspace" {
		t.Errorf("got %v by %q, want unverified by userspace", status.State, status.Backend)
	}
	if !slices.Contains(status.Blocking(), engine.UserspaceOnly) {
		t.Errorf("blocking reasons are %v, want userspace-only among them", status.Blocking())
	}
	if got := slices.Contains(status.Blocking(), engine.OSUnsupported); got != needs.Wine() {
		t.Errorf("blocking reasons are %v: os-unsupported is for wine alone", status.Blocking())
	}
	if unverified := (*engine.UnverifiedError)(nil); !errors.As(status.Err(), &unverified) {
		t.Errorf("error is %v, want an UnverifiedError", status.Err())
	}
	if status.Kernel == "" {
		t.Error("the kernel is not named")
	}

	// A proof that somebody adds changes nothing.
	status.Proof = &engine.EnforcementProof{}
	status.Settle()
	if status.State != engine.Unverified {
		t.Error("a proof made the state of this backend verified")
	}
}
