// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package fallback

import "github.com/thenforce/thenforce/pkg/engine"

// openRoot opens the root of a workspace.
func (p *Probes) openRoot(path string) (dir, error) { return p.openOSRoot(path) }

const batchSize = 64

// checkBatch answers for each target by itself: here is nothing that proves that
// what they share did not change.
func (g *Guard) checkBatch(targets []string, decisions []engine.ContainmentDecision) {
	for i, target := range targets {
		decisions[i] = engine.CheckContainment(g.Workspace, target, g.Options, g.probes())
	}
}
