//go:build linux

package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/thenforce/thenforce/internal/vm/guest"
	"github.com/thenforce/thenforce/internal/vm/image"
	"github.com/thenforce/thenforce/internal/vm/qemu"
)

func TestProfileTable(t *testing.T) {
	if profiles[0].name != "default" || profiles[0].cmdline != "" || profiles[0].full {
		t.Errorf("the first profile is %+v, not the default", profiles[0])
	}
	seen := map[string]bool{}
	for _, p := range profiles[1:] {
		if seen[p.name] || !strings.HasPrefix(p.prefix, profilePrefix) || p.prefix == profilePrefix {
			t.Errorf("profile %+v: its name or prefix does not tell it from others", p)
		}
		seen[p.name] = true
		if got, err := profileOf(p.prefix + "Something"); err != nil || got.name != p.name {
			t.Errorf("%sSomething belongs to %q, %v; want %s", p.prefix, got.name, err, p.name)
		}
	}
	if p, err := profileOf("TestOrdinary"); err != nil || p.name != "default" {
		t.Errorf("TestOrdinary belongs to %q, %v", p.name, err)
	}
	// A misspelt prefix must not be left out of every boot in silence.
	if p, err := profileOf(profilePrefix + "Nolsm"); err == nil {
		t.Errorf("a misspelt profile is %q, no error", p.name)
	}
	if _, err := findProfile("nolsm"); err != nil {
		t.Error(err)
	}
	if _, err := findProfile("other"); err == nil || !strings.Contains(err.Error(), "nolsm") {
		t.Errorf("error %v; want one that lists the profiles", err)
	}
}

func TestSelectTests(t *testing.T) {
	p := goPackage{path: "x", tests: []string{"TestA", "TestAB", "TestProfileNoLSM", "TestProfileNoLSMStatus"}}
	nolsm, err := findProfile("nolsm")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		profile profile
		run     string
		want    []string
	}{
		{profiles[0], "", []string{"TestA", "TestAB"}},
		{profiles[0], "B$", []string{"TestAB"}},
		{profiles[0], "^TestA$/sub|x", []string{"TestA"}},
		{profiles[0], "Status", nil},
		{nolsm, "", []string{"TestProfileNoLSM", "TestProfileNoLSMStatus"}},
		{nolsm, "Status", []string{"TestProfileNoLSMStatus"}},
	} {
		got, err := p.selectTests(c.profile, c.run)
		if err != nil {
			t.Errorf("%s %q: %v", c.profile.name, c.run, err)
		} else if diff := gocmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s %q: (-want +got)\n%s", c.profile.name, c.run, diff)
		}
	}
	if _, err := p.selectTests(profiles[0], "("); err == nil {
		t.Error("a broken pattern: no error")
	}
	p.tests = append(p.tests, "TestProfileTypo")
	if _, err := p.selectTests(profiles[0], ""); err == nil {
		t.Error("a test of no profile: no error")
	}
}

func TestRunPattern(t *testing.T) {
	pattern := runPattern([]string{"TestA", "TestB"}, "A|B/sub/x")
	top, sub, _ := strings.Cut(pattern, "/")
	if sub != "sub/x" {
		t.Errorf("pattern %q loses the part for subtests", pattern)
	}
	re := regexp.MustCompile(top)
	for name, want := range map[string]bool{"TestA": true, "TestB": true, "TestAB": false, "XTestA": false} {
		if got := re.MatchString(name); got != want {
			t.Errorf("%s matches %s: %v", top, name, got)
		}
	}
}

func TestTestNames(t *testing.T) {
	const source = `package p
func TestOne(t *testing.T) {}
func Test(t *testing.T) {}
func TestÄ(t *testing.T) {}
func Test_x(t *testing.T) {}
func TestMain(m *testing.M) {}
func Testify(t *testing.T) {}
func (s suite) TestMethod(t *testing.T) {}
func helperTest() {}
func FuzzX(f *testing.F) {}
`
	name := filepath.Join(t.TempDir(), "x_test.go")
	if err := os.WriteFile(name, []byte(source), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := testNames(name)
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff([]string{"TestOne", "Test", "TestÄ", "Test_x"}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// The harness must find its own package of guest tests, and none of the tests
// that run on the host.
func TestFindPackages(t *testing.T) {
	found, err := findPackages(t.Context(), []string{"./..."}, false)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(found, func(p goPackage) bool { return p.rel == "test/vm/selftest" })
	if i < 0 {
		t.Fatalf("test/vm/selftest is not among %+v", found)
	}
	if !slices.Contains(found[i].tests, "TestKernelHasBTF") {
		t.Errorf("its tests are %q", found[i].tests)
	}
	if slices.ContainsFunc(found, func(p goPackage) bool { return p.rel == "test/vm" }) {
		t.Error("this package has no tests for guests")
	}
	all, err := findPackages(t.Context(), []string{"."}, true)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 1 || !slices.Contains(all[0].tests, t.Name()) {
		t.Errorf("with the untagged files: %+v", all)
	}
	if _, err := findPackages(t.Context(), []string{"./no/such/package"}, false); err == nil {
		t.Error("a package that does not exist: no error")
	}
}

func TestPrefixWriter(t *testing.T) {
	var out bytes.Buffer
	w := newPrefixWriter(&out, "[7] ")
	for _, s := range []string{"one\ntw", "o\n", "\n", "open"} {
		if n, err := w.Write([]byte(s)); n != len(s) || err != nil {
			t.Errorf("wrote %d of %q: %v", n, s, err)
		}
	}
	if got, want := out.String(), "[7] one\n[7] two\n[7] \n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	w.flush()
	w.flush()
	if got, want := out.String(), "[7] one\n[7] two\n[7] \n[7] open\n"; got != want {
		t.Errorf("flushed: got %q, want %q", got, want)
	}
}

func TestSummary(t *testing.T) {
	ended := func(passed int, reasons ...string) verdict {
		rec := &guest.Record{Programs: []guest.Result{{Tests: &guest.Tests{Passed: passed}}, {}}}
		return verdict{kernel: image.Kernel{Series: "6.1"}, profile: profiles[0], outcome: &qemu.Outcome{Record: rec, Total: time.Second}, reasons: reasons}
	}
	noRecord := ended(0, "the guest ended without a result record")
	noRecord.outcome.Record = nil
	for _, c := range []struct {
		what     string
		verdicts []verdict
		last     string
		want     error
	}{
		{"all pass", []verdict{ended(3), ended(4)}, "7 passed, 0 failed", nil},
		{"one fails", []verdict{ended(3), ended(4, "pkg: skipped: TestX")}, "7 passed, 1 failed", errFailed},
		{"no record", []verdict{ended(3), noRecord}, "3 passed, 1 failed", errFailed},
	} {
		var out bytes.Buffer
		if err := summarize(&out, c.verdicts); !errors.Is(err, c.want) {
			t.Errorf("%s: error %v, want %v", c.what, err, c.want)
		}
		lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
		if last := lines[len(lines)-1]; last != c.last {
			t.Errorf("%s: last line %q, want %q", c.what, last, c.last)
		}
		for _, v := range c.verdicts {
			for _, r := range v.reasons {
				if !strings.Contains(out.String(), r) {
					t.Errorf("%s: the reason %q is not shown", c.what, r)
				}
			}
		}
	}
	if err := summarize(io.Discard, []verdict{ended(0)}); err == nil {
		t.Error("no test passed, none failed: no error")
	}
}

func TestProofCheck(t *testing.T) {
	p := proof{want: []string{"skipped: TestX", "exit status"}}
	for _, c := range []struct {
		reasons []string
		trouble int
	}{
		{[]string{"a: skipped: TestX", "a: exit status 1"}, 0},
		{[]string{"a: skipped: TestX"}, 1},
		{[]string{"a: skipped: TestX", "a: exit status 1", "another"}, 1},
		{nil, 2},
	} {
		if got := p.check(c.reasons); len(got) != c.trouble {
			t.Errorf("%q: %q", c.reasons, got)
		}
	}
}

func TestBootTwice(t *testing.T) {
	dead, deadKVM := qemu.Outcome{Console: "panic"}, qemu.Outcome{KVM: true}
	alive := qemu.Outcome{Started: true, Record: &guest.Record{}}
	hung := qemu.Outcome{Started: true, Expired: "not done"}
	errNoQEMU := errors.New("no qemu")
	for _, c := range []struct {
		what string
		runs []qemu.Outcome // an error when there is none left
		uses int
		err  error
		loud int
	}{
		{"at once", []qemu.Outcome{alive}, 1, nil, 0},
		{"the second time", []qemu.Outcome{dead, alive}, 2, nil, 1},
		{"never", []qemu.Outcome{dead, dead, alive}, 2, nil, 1},
		{"without KVM", []qemu.Outcome{deadKVM, alive}, 2, nil, 1},
		{"without KVM the second time", []qemu.Outcome{deadKVM, dead, alive}, 3, nil, 2},
		{"hung after init: never repeated", []qemu.Outcome{hung, alive}, 1, nil, 0},
		{"no QEMU", nil, 0, errNoQEMU, 0},
		{"no QEMU any more", []qemu.Outcome{dead}, 1, errNoQEMU, 1},
	} {
		var log bytes.Buffer
		uses := 0
		out, err := bootTwice(&log, qemu.Machine{Kernel: "/k/vmlinuz-7"}, func(m qemu.Machine) (*qemu.Outcome, error) {
			if uses == len(c.runs) {
				return nil, errNoQEMU
			}
			if uses > 0 && c.runs[uses-1].KVM && !m.NoKVM {
				t.Errorf("%s: KVM again", c.what)
			}
			uses++
			return &c.runs[uses-1], nil
		})
		if !errors.Is(err, c.err) || uses != c.uses {
			t.Errorf("%s: %d boots, %v; want %d, %v", c.what, uses, err, c.uses, c.err)
		} else if err == nil && out != &c.runs[uses-1] {
			t.Errorf("%s: not the outcome of the last boot", c.what)
		}
		if got := strings.Count(log.String(), "vm: RETRY: vmlinuz-7"); got != c.loud {
			t.Errorf("%s: said %d times, want %d:\n%s", c.what, got, c.loud, log.String())
		}
	}
}

func TestEscapeReader(t *testing.T) {
	for _, c := range []struct {
		typed, want string
		escaped     bool
	}{
		{"hello", "hello", false},
		{"a\x01b", "a\x01b", false},
		{"a\x01\x01b", "a\x01b", false},
		{"a\x01xb", "a", true},
		{"\x01\x01x", "\x01x", false},
		{"x", "x", false},
	} {
		for name, r := range map[string]io.Reader{
			"at once": strings.NewReader(c.typed), "byte by byte": iotest.OneByteReader(strings.NewReader(c.typed)),
		} {
			escaped := false
			got, err := io.ReadAll(&escapeReader{r: r, escape: func() { escaped = true }})
			if err != nil || string(got) != c.want || escaped != c.escaped {
				t.Errorf("%q %s: %q, escaped %v, %v; want %q, %v", c.typed, name, got, escaped, err, c.want, c.escaped)
			}
		}
	}
}

func TestShellProgram(t *testing.T) {
	script := filepath.Join(t.TempDir(), "s")
	if err := os.WriteFile(script, []byte("echo hi\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	p, text, err := shellProgram(script, "", []string{"a", "b"})
	if err != nil || string(text) != "echo hi\n" || !slices.Equal(p.Args, []string{"/bin/sh", scriptPath, "a", "b"}) {
		t.Errorf("script: %+v, %q, %v", p, text, err)
	}
	p, text, err = shellProgram("", "id", nil)
	if err != nil || text != nil || !slices.Equal(p.Args, []string{"/bin/sh", "-c", "id"}) {
		t.Errorf("commands: %+v, %q, %v", p, text, err)
	}
	if _, _, err := shellProgram(script, "id", nil); err == nil {
		t.Error("both: no error")
	}
	if _, _, err := shellProgram(script+".not", "", nil); err == nil {
		t.Error("no such script: no error")
	}
}

func TestAdded(t *testing.T) {
	want := []file{{"/a/b", "/b"}, {"c", "/usr/bin/d"}}
	if got := added([]string{"/a/b", "c:/usr/bin/d"}); !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestLastLines(t *testing.T) {
	if got, want := lastLines("a\r\nb\nc\n\n", 2), "    b\n    c"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestMissingTools(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	err := needTools(false)
	if err == nil {
		t.Fatal("nothing is missing on an empty PATH")
	}
	for _, want := range []string{"qemu-system-x86_64 (package qemu-system-x86)", "go run ./test/vm setup"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not have %q", err, want)
		}
	}
	if strings.Contains(err.Error(), "debootstrap") {
		t.Error("debootstrap is wanted for the small guest")
	}
	if err := needTools(true); !strings.Contains(err.Error(), "debootstrap") {
		t.Error("debootstrap is not wanted for the full guest")
	}
}
