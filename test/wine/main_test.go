//go:build linux

package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/thenforce/thenforce/internal/vm/guest"
)

func TestJudge(t *testing.T) {
	passed := guest.Tests{Passed: 3}
	for _, test := range []struct {
		name  string
		tests guest.Tests
		err   error
		want  string
	}{
		{"passed", passed, nil, ""},
		{"failed", guest.Tests{Passed: 3, Failed: []string{"TestA"}}, errors.New("exit status 1"), "failed: TestA"},
		{"died", guest.Tests{Passed: 3, Unfinished: []string{"TestA"}}, errors.New("exit status 2"), "ended in the middle of TestA, exit status 2"},
		{"died after the tests", passed, errors.New("exit status 2"), "exit status 2"},
		{"no test", guest.Tests{}, nil, "no test ran"},
		{"no start", guest.Tests{}, errors.New("no wine"), "no wine"},
	} {
		if got := strings.Join(judge(test.tests, test.err), ", "); got != test.want {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}

func TestJudgeLacks(t *testing.T) {
	lacks := []lack{{feature: "links", tests: []string{"a TestLinks", "a TestTable/links"}, covered: []string{"b TestModel"}}}
	skips := func(names ...string) result { return result{"a", guest.Tests{Skipped: names}} }
	model := result{"b", guest.Tests{Finished: []string{"TestModel"}}}
	for _, test := range []struct {
		name    string
		results []result
		part    bool
		want    string
	}{
		{"as listed", []result{skips("TestLinks", "TestTable/links"), model}, false, ""},
		{"a subtest", []result{skips("TestLinks/deep", "TestTable/links/more"), model}, false, ""},
		{"not listed", []result{skips("TestLinks", "TestTable/links", "TestOther"), model}, false, "a: skipped and not listed in lacks.go: TestOther"},
		{"another subtest", []result{skips("TestLinks", "TestTable/files"), model}, false, "a: skipped and not listed in lacks.go: TestTable/files"},
		{"another test by a part of its name", []result{skips("TestLinks2", "TestLinks", "TestTable/links"), model}, false, "a: skipped and not listed in lacks.go: TestLinks2"},
		{"not skipped any more", []result{skips("TestLinks"), model}, false, "a TestTable/links: listed in lacks.go and not skipped: wine may have links now"},
		{"nothing in its place", []result{skips("TestLinks", "TestTable/links"), {"b", guest.Tests{}}}, false, "b TestModel: did not pass, and covers for the lack of links"},
		{"packages that did not run", nil, false, ""},
		{"a part", []result{skips("TestLinks"), {"b", guest.Tests{}}}, true, ""},
		{"a part, not listed", []result{skips("TestOther")}, true, "a: skipped and not listed in lacks.go: TestOther"},
	} {
		if got := strings.Join(judgeLacks(lacks, test.results, !test.part), ", "); got != test.want {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}
