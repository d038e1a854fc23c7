package learn

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Group is one kind of denial: the same operation on the same object for the same reason, whoever tried it.
type Group struct {
	Op    string   `json:"op"`
	Path  string   `json:"path"`
	Code  string   `json:"code"`
	Count uint64   `json:"count"`
	Comms []string `json:"comms"`
	Grant string   `json:"grant,omitempty"` // that would allow it
}

// Groups counts the denials by kind, most frequent first.
func (r *Report) Groups() []Group {
	type key struct{ op, path, code string }
	at := map[key]int{}
	groups := []Group{}
	for _, e := range r.Denials {
		k := key{e.Op, e.Path, e.Code}
		i, ok := at[k]
		if !ok {
			i = len(groups)
			at[k] = i
			groups = append(groups, Group{Op: e.Op, Path: e.Path, Code: e.Code, Grant: e.Suggest.Grant})
		}
		g := &groups[i]
		g.Count += max(e.Count, 1)
		if e.Comm != "" && !slices.Contains(g.Comms, e.Comm) {
			g.Comms = append(g.Comms, e.Comm)
		}
	}
	slices.SortStableFunc(groups, func(a, b Group) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Path, b.Path), cmp.Compare(a.Op, b.Op), cmp.Compare(a.Code, b.Code))
	})
	return groups
}

// Headline says in one line how the run went.
func (r *Report) Headline() string {
	var total uint64
	for _, e := range r.Denials {
		total += max(e.Count, 1)
	}
	what := "denied"
	if r.Policy.Mode == "monitor" {
		what = "would have been denied"
	}
	line := fmt.Sprintf("%d operations %s; enforcement %s", total, what, r.Enforcement.State)
	if r.Exit != nil {
		line += fmt.Sprintf("; exit code %d from the %s after %v", r.Exit.Code, r.Exit.From, time.Duration(r.DurationMS)*time.Millisecond)
	}
	if r.EventsLost > 0 {
		line += fmt.Sprintf("; %d events were lost", r.EventsLost)
	}
	return line
}

// Markdown is the summary of the run for a job's page.
func (r *Report) Markdown() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "### thenforce\n\n%s.\n", escape(r.Headline()))
	groups := r.Groups()
	if len(groups) == 0 {
		return b.Bytes()
	}
	b.WriteString("\n| operation | object | by | times | why | grant that would allow it |\n|---|---|---|--:|---|---|\n")
	for _, g := range groups {
		fmt.Fprintf(&b, "| %s | %s | %s | %d | %s | %s |\n", escape(g.Op), code(g.Path), escape(strings.Join(g.Comms, ", ")), g.Count, escape(g.Code), code(g.Grant))
	}
	return b.Bytes()
}

// escape keeps what a program chose from being more than text: in a table, in Markdown, in HTML. Markdown takes a numeric
// reference for any character and never for markup.
func escape(text string) string {
	var b strings.Builder
	for _, c := range comment(text) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.ContainsRune(" /.,;:-+=%?()", c), c > 0x7f:
			b.WriteRune(c)
		default:
			fmt.Fprintf(&b, "&#%d;", c)
		}
	}
	return b.String()
}

// code is text in the type of code; as an element, because within backticks no references count.
func code(text string) string {
	if text == "" {
		return ""
	}
	return "<code>" + escape(text) + "</code>"
}
