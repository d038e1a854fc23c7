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

// progressBar is a line on a terminal that is drawn again and again.
type progressBar struct {
	out io.Writer

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
				b.clear()
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
	b.mu.Lock()
	defer b.mu.Unlock()
	fmt.Fprintf(b.out, "\r[%s%s] %3.0f%%  %s entries  %s/s  %s findings\x1b[K", strings.Repeat("#", full), strings.Repeat(".", width-full),
		p.Done*100, thousands(p.Entries), thousands(rate), thousands(p.Findings+p.Trouble))
	b.drawn = true
}

// clear takes the bar away, so that something else can be written where it is.
func (b *progressBar) clear() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.drawn {
		io.WriteString(b.out, "\r\x1b[K")
		b.drawn = false
	}
}
