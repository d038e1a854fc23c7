package guest

import (
	"io"
	"slices"
	"strings"
)

// Tests are the counts of one run of a Go test binary, subtests included.
type Tests struct {
	Passed  int      `json:"passed"`
	Failed  []string `json:"failed,omitempty"`
	Skipped []string `json:"skipped,omitempty"`
	// Unfinished tests were started and never reported: the binary died in them.
	Unfinished []string `json:"unfinished,omitempty"`
	// Finished are the top-level tests that passed.
	Finished []string `json:"finished,omitempty"`
}

// marker begins every framing line of -test.v=test2json, also where a test left
// its own last line unfinished; output of tests cannot be taken for framing
// unless it contains the byte itself.
const marker = 0x16

// Counter passes the output of a test binary run with -test.v=test2json on to
// another writer, without the markers, and counts the tests in it.
type Counter struct {
	out     io.Writer
	framing bool   // between a marker and the end of its line
	line    []byte // the framing line so far
	midline bool   // what was passed on last did not end a line
	running []string
	tests   Tests
}

// NewCounter returns a Counter that passes output on to out.
func NewCounter(out io.Writer) *Counter { return &Counter{out: out} }

// Write implements io.Writer; its errors are those of the other writer.
func (c *Counter) Write(p []byte) (int, error) {
	clean := make([]byte, 0, len(p))
	for _, b := range p {
		switch {
		case b == marker:
			// A marker may come in the middle of a line of output.
			if c.midline {
				clean, c.midline = append(clean, '\n'), false
			}
			c.framing, c.line = true, c.line[:0]
		case !c.framing:
			clean = append(clean, b)
			c.midline = b != '\n'
		case b != '\n':
			c.line = append(c.line, b)
		default:
			c.framing = false
			if line := string(c.line); c.take(line) {
				clean = append(append(clean, line...), '\n')
			}
		}
	}
	if _, err := c.out.Write(clean); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Tests returns the counts; call it when the binary has ended.
func (c *Counter) Tests() Tests {
	t := c.tests
	t.Unfinished = slices.Clone(c.running)
	return t
}

// take counts a framing line and reports whether people want to see it.
func (c *Counter) take(line string) bool {
	text := strings.TrimSpace(line)
	if name, ok := strings.CutPrefix(text, "=== RUN   "); ok {
		c.running = append(c.running, name)
		return true
	}
	outcome, rest, ok := cutOutcome(text)
	if !ok {
		return !strings.HasPrefix(text, "=== NAME")
	}
	name := rest
	if i := strings.LastIndex(rest, " ("); i >= 0 {
		name = rest[:i]
	}
	if i := slices.Index(c.running, name); i >= 0 {
		c.running = slices.Delete(c.running, i, i+1)
	}
	switch outcome {
	case "PASS":
		c.tests.Passed++
		if !strings.Contains(name, "/") {
			c.tests.Finished = append(c.tests.Finished, name)
		}
	case "FAIL":
		c.tests.Failed = append(c.tests.Failed, name)
	case "SKIP":
		c.tests.Skipped = append(c.tests.Skipped, name)
	}
	return true
}

func cutOutcome(text string) (outcome, rest string, ok bool) {
	for _, outcome := range []string{"PASS", "FAIL", "SKIP"} {
		if rest, ok := strings.CutPrefix(text, "--- "+outcome+": "); ok {
			return outcome, rest, true
		}
	}
	return "", "", false
}
