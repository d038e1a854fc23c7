package learn

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func denied(op, path, comm, grant string, count uint64) Event {
	e := Event{Op: op, Path: path, Comm: comm, Code: "no-grant", Count: count}
	e.Suggest.Grant = grant
	return e
}

func TestMarkdown(t *testing.T) {
	r := report(denied("read", "/root/.ssh/id", "cat", "/root/.ssh/id:ro", 2), denied("read", "/root/.ssh/id", "sh", "/root/.ssh/id:ro", 0),
		denied("create", "/a|b\n<b>`*", "x", "/:rw", 1), Event{Op: "mount", Code: "forbidden-operation", Comm: "mount"})
	r.Policy.Mode = "enforce"
	r.Enforcement.State = "verified"
	r.Exit = &Exit{Code: 3, From: "command"}
	r.DurationMS, r.EventsLost = 1500, 7
	const want = `### thenforce

5 operations denied; enforcement verified; exit code 3 from the command after 1.5s; 7 events were lost.

| operation | object | by | times | why | grant that would allow it |
|---|---|---|--:|---|---|
| read | <code>/root/.ssh/id</code> | cat, sh | 3 | no-grant | <code>/root/.ssh/id:ro</code> |
| mount |  | mount | 1 | forbidden-operation |  |
| create | <code>/a&#124;b?&#60;b&#62;&#96;&#42;</code> | x | 1 | no-grant | <code>/:rw</code> |
`
	if diff := cmp.Diff(want, string(r.Markdown())); diff != "" {
		t.Error(diff)
	}
	r.Denials, r.Policy.Mode = nil, "monitor"
	if text := string(r.Markdown()); !strings.Contains(text, "\n0 operations would have been denied;") || strings.Contains(text, "|") {
		t.Errorf("nothing denied: %q", text)
	}
}

// Whatever a job calls its files and programs, a row of the table stays one row of six cells, and nothing in it is markup.
func FuzzMarkdown(f *testing.F) {
	f.Add("/a|b", "x\ny", "</code><script>", "read")
	f.Add("[x](http://y)", "![", "\\|", "&#124;")
	f.Fuzz(func(t *testing.T, path, comm, grant, op string) {
		r := report(denied(op, path, comm, grant, 1))
		_, table, _ := strings.Cut(string(r.Markdown()), "|--:|---|---|\n")
		row := strings.NewReplacer("<code>", "", "</code>", "").Replace(table)
		if strings.Count(table, "\n") != 1 || strings.Count(row, "|") != 7 || strings.ContainsAny(row, "<>`[]*\\_!\r") || strings.Count(table, "<") > 4 {
			t.Errorf("the row is %q", table)
		}
	})
}
