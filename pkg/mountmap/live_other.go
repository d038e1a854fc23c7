// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package mountmap

import "context"

// Live is the mount table of the running system. There is none here.
type Live struct{}

// OpenLive returns [ErrNotSupported].
func OpenLive() (*Live, error) { return nil, ErrNotSupported }

// Close does nothing.
func (l *Live) Close() error { return nil }

// Table returns [ErrNotSupported].
func (l *Live) Table() (*Table, error) { return nil, ErrNotSupported }

// A Watcher waits for mounts and unmounts. There is nothing to wait for here.
type Watcher struct{}

// NewWatcher returns [ErrNotSupported].
func NewWatcher() (*Watcher, error) { return nil, ErrNotSupported }

// Close does nothing.
func (w *Watcher) Close() error { return nil }

// Wait returns [ErrNotSupported].
func (w *Watcher) Wait(context.Context) error { return ErrNotSupported }
