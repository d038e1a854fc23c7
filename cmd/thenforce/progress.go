// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/thenforce/thenforce/internal/scan"
)

// progressBar is a line on a terminal that is drawn again and again. The zero value draws nothing.
type progressBar struct {
	out   io.Writer
	width func() int // of the terminal, 0 where not known

	mu    sync.Mutex
	drawn bool
}

// follow draws the bar until the function it returns is called.
func (b *progressBar) follow(s *scan.Scan) (stop func()) {
	quit, ended := make(chan struct{}), make(chan struct{})
	start := time.Now()
	go func() {
		defer close(ended)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				b.aside(func() error { return nil })
				return
			case <-tick.C:
				b.draw(s.Progress(), time.Since(start))
			}
		}
	}()
	return func() {
		close(quit)
		<-ended
	}
}

func (b *progressBar) draw(p scan.Progress, elapsed time.Duration) {
	const width = 24
	full := int(p.Done * width)
	rate := int64(float64(p.Entries) / elapsed.Seconds())
	line := fmt.Sprintf("[%s%s] %3.0f%%  %s entries  %s/s  %s findings", strings.Repeat("#", full), strings.Repeat(".", width-full),
		p.Done*100, thousands(p.Entries), thousands(rate), thousands(p.Findings+p.Trouble))
	// A line that the terminal breaks is one that cannot be taken back.
	if columns := b.width(); columns > 0 && len(line) >= columns {
		line = line[:columns-1]
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	fmt.Fprintf(b.out, "\r%s\x1b[K", line)
	b.drawn = true
}

// aside does something that writes to the terminal, with the bar out of its way.
func (b *progressBar) aside(do func() error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.drawn {
		io.WriteString(b.out, "\r\x1b[K")
		b.drawn = false
	}
	return do()
}
