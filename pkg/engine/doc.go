// SPDX-License-Identifier: Apache-2.0

// Package engine decides what lies inside a workspace and what a policy allows.
//
// It is pure: it looks at file systems only through [Probes], knows no kernel
// object, and gives the same answers on every system. A backend enforces what it
// decided; see pkg/loader and pkg/fallback.
package engine
