// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"testing"
	"time"

	"github.com/thenforce/thenforce/internal/scan"
)

func TestProgressBar(t *testing.T) {
	var out bytes.Buffer
	columns := 0
	bar := progressBar{out: &out, width: func() int { return columns }}
	expect := func(want string) {
		t.Helper()
		if out.String() != want {
			t.Errorf("the terminal got %q, want %q", out.String(), want)
		}
		out.Reset()
	}
	write := func() error {
		_, err := io.WriteString(&out, "finding\n")
		return err
	}
	bar.aside(write)
	expect("finding\n") // nothing was in the way
	bar.draw(scan.Progress{Entries: 1234, Findings: 1, Trouble: 1, Done: 0.5}, time.Second/2)
	expect("\r[############............]  50%  1,234 entries  2,468/s  2 findings\x1b[K")
	bar.aside(write)
	expect("\r\x1b[Kfinding\n")
	bar.aside(write)
	expect("finding\n")
	columns = 10
	bar.draw(scan.Progress{Done: 1}, time.Second)
	expect("\r[########\x1b[K") // one column is left, or the terminal goes to the next line
}

func TestThousands(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", 100000: "100,000"} {
		if got := thousands(n); got != want {
			t.Errorf("thousands(%d) = %s, want %s", n, got, want)
		}
	}
}
