// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import "golang.org/x/sys/unix"

func makeFIFO(path string) error { return unix.Mkfifo(path, 0o600) }
