package arch

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/pkg/fallback"
)

// rows returns the first cells of the tables below a heading of a page, one for each word in code type.
func rows(t *testing.T, page, heading string) []string {
	t.Helper()
	text, err := os.ReadFile("../../docs/" + page)
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(text), "\n## "+heading+"\n")
	if !ok {
		t.Fatalf("%s has no section %q", page, heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	var words []string
	for line := range strings.Lines(section) {
		if cells := strings.Split(line, "|"); len(cells) > 2 {
			for _, word := range regexp.MustCompile("`[^`]+`").FindAllString(cells[1], -1) {
				words = append(words, strings.Trim(word, "`"))
			}
		}
	}
	return words
}

// The page has every code, in the order in which they came, and no other.
func TestEnginePage(t *testing.T) {
	var codes []string
	for _, code := range append(engine.Codes(), fallback.CodeObjectChanged) {
		codes = append(codes, string(code))
	}
	outcomes := []string{string(engine.Allowed), string(engine.Denied), string(engine.Conflict), string(engine.EnforcementUnverified)}
	boundaries := []string{
		string(engine.BoundaryUnsafePath), string(engine.BoundaryWorkspaceEscape), string(engine.BoundaryHostThreatening),
		string(engine.BoundaryNetworkDestination), string(engine.BoundaryUnverified), string(engine.BoundaryQuotaExceeded),
		string(engine.BoundaryWrongCredential),
	}
	for heading, want := range map[string][]string{"Outcomes": outcomes, "Codes": codes, "Hard boundaries": boundaries} {
		if got := rows(t, "engine.md", heading); !slices.Equal(got, want) {
			t.Errorf("%s: the page has\n%q, want\n%q", heading, got, want)
		}
	}
	text, err := os.ReadFile("../../docs/engine.md")
	if err != nil {
		t.Fatal(err)
	}
	words := []string{string(engine.ResourceIdentityChanged), string(engine.WorkspaceIdentityChanged), string(engine.EnforcementStateChanged)}
	for _, op := range engine.Ops() {
		words = append(words, string(op))
	}
	for _, word := range words {
		if !strings.Contains(string(text), "`"+word+"`") {
			t.Errorf("the page does not have %s", word)
		}
	}
}

// Every reason is on the page, with what brings it about, and no other.
func TestStatusPage(t *testing.T) {
	var codes []string
	for _, code := range engine.EnforcementCodes() {
		codes = append(codes, string(code))
	}
	got := rows(t, "status.md", "Reasons")
	slices.Sort(got)
	if !slices.Equal(got, codes) {
		t.Errorf("the page has\n%q, want\n%q", got, codes)
	}
}
