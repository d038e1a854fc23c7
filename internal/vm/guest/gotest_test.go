package guest

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// test2json.txt is what a real binary printed that passes, fails, skips, runs
// subtests in parallel, prints lines that look like results, leaves a line open,
// and dies with exit status 0 in a subtest.
func recorded(t interface{ Fatal(...any) }) []byte {
	text, err := os.ReadFile("testdata/test2json.txt")
	if err != nil {
		t.Fatal(err)
	}
	return text
}

var recordedTests = Tests{
	Passed:     6,
	Failed:     []string{"TestSub/one", "TestSub"},
	Skipped:    []string{"TestSkipped"},
	Unfinished: []string{"TestDies", "TestDies/deep"},
	Finished:   []string{"TestPlain", "TestParallel", "TestLies"},
}

func TestCounterOnRealOutput(t *testing.T) {
	var out bytes.Buffer
	c := NewCounter(&out)
	if _, err := c.Write(recorded(t)); err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(recordedTests, c.Tests()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	text := out.String()
	if strings.ContainsRune(text, marker) {
		t.Error("markers were passed on")
	}
	for _, want := range []string{
		"\nno newline at the end\n--- PASS: TestPlain (0.00s)\n",
		"    a_test.go:4: bad\n--- FAIL: TestSub/one (0.00s)\n=== RUN   TestSub/two_(2)\n",
		"\n--- PASS: TestNever (0.00s)\n",
		"\ndying\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q was not passed on in:\n%s", want, text)
		}
	}
	if strings.Contains(text, "=== NAME") {
		t.Error("framing that says nothing to people was passed on")
	}
}

func TestCounterInPieces(t *testing.T) {
	text := recorded(t)
	var whole bytes.Buffer
	NewCounter(&whole).Write(text)
	rapid.Check(t, func(t *rapid.T) {
		var out bytes.Buffer
		c := NewCounter(&out)
		for rest := text; len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "n")
			c.Write(rest[:n])
			rest = rest[n:]
		}
		if diff := gocmp.Diff(recordedTests, c.Tests()); diff != "" {
			t.Fatalf("(-want +got)\n%s", diff)
		}
		if out.String() != whole.String() {
			t.Fatal("other output than in one piece")
		}
	})
}

type brokenWriter struct{}

var errBroken = errors.New("broken")

func (brokenWriter) Write([]byte) (int, error) { return 0, errBroken }

func TestCounterPassesErrorsOn(t *testing.T) {
	if _, err := NewCounter(brokenWriter{}).Write([]byte("x")); !errors.Is(err, errBroken) {
		t.Errorf("error %v", err)
	}
}

func FuzzCounter(f *testing.F) {
	f.Add(recorded(f))
	f.Add([]byte("\x16--- PASS: \n\x16=== RUN   \n\x16\x16\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		var out bytes.Buffer
		c := NewCounter(&out)
		if n, err := c.Write(text); n != len(text) || err != nil {
			t.Fatalf("wrote %d of %d: %v", n, len(text), err)
		}
		c.Tests()
		if bytes.IndexByte(out.Bytes(), marker) >= 0 {
			t.Error("a marker was passed on")
		}
	})
}
