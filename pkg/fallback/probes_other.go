// SPDX-License-Identifier: Apache-2.0

//go:build !linux && !darwin && !windows

package fallback

import (
	"os"
	"runtime"

	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/pkg/mountmap"
)

// Probes looks at the file systems of the running system. This one is not known,
// so there is nothing it could prove.
type Probes struct{}

var _ engine.Probes = (*Probes)(nil)

// NewProbes returns [engine.ErrNotSupported].
func NewProbes() (*Probes, error) { return nil, engine.ErrNotSupported }

func kernelRelease() string { return "" }

func blind() string { return "" }

func (p *Probes) entryOf(*os.File) (engine.Entry, error) {
	return engine.Entry{}, engine.ErrNotSupported
}

// Close does nothing.
func (p *Probes) Close() error { return nil }

// Inspect returns [engine.ErrNotSupported].
func (p *Probes) Inspect(string) (engine.Entry, error) {
	return engine.Entry{}, engine.ErrNotSupported
}

// ReadLink returns [engine.ErrNotSupported].
func (p *Probes) ReadLink(string) (string, error) { return "", engine.ErrNotSupported }

// ReadDir returns [engine.ErrNotSupported].
func (p *Probes) ReadDir(string) ([]string, error) { return nil, engine.ErrNotSupported }

// Mounts returns [engine.ErrNotSupported].
func (p *Probes) Mounts() (*mountmap.Table, error) { return nil, engine.ErrNotSupported }

// WorkingDir implements [engine.Probes].
func (p *Probes) WorkingDir() (string, error) { return os.Getwd() }

// Platform implements [engine.Probes].
func (p *Probes) Platform() engine.PlatformIdentity { return engine.PlatformFor(runtime.GOOS) }
