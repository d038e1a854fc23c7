package learn

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/thenforce/thenforce/pkg/engine"
)

// shown is how many operations that no grant allows are listed one by one.
const shown = 20

// YAML is the policy as a file, with comments for those who have to decide on it.
func (s *Suggestion) YAML() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# The smallest policy that the run in jail %s needed, by thenforce policy suggest.\n", comment(s.Jail))
	b.WriteString("# What a run did is not what it should be allowed to do: look through it before you use it.\n")
	if s.EventsLost > 0 {
		fmt.Fprintf(&b, "# %d events of the run were lost: something may be missing here.\n", s.EventsLost)
	}
	if s.Enforced {
		b.WriteString("# The run was enforced: what it would have done after a denial is not in here. Learn with --mode monitor.\n")
	}
	fmt.Fprintf(&b, "version: 1\nworkspace: %s\n", quote(s.Workspace))
	if s.WorkspaceRights != 0 {
		fmt.Fprintf(&b, "workspaceRights: %s\n", quote(s.WorkspaceRights.String()))
	}
	var presets []string
	for _, p := range s.Presets {
		presets = append(presets, string(p))
	}
	fmt.Fprintf(&b, "presets: [%s]\n", strings.Join(presets, ", "))
	if len(s.Grants) > 0 {
		b.WriteString("grants:\n")
	}
	for i := range s.Grants {
		s.Grants[i].write(&b)
	}
	if len(s.Made) > 0 {
		b.WriteString("# The run made these directories. Make them where they are missing: nothing here grants it.\n")
		for _, dir := range s.Made {
			fmt.Fprintf(&b, "#   %s\n", comment(dir))
		}
	}
	s.writeImpossible(&b)
	return b.Bytes()
}

func (n *Needed) write(b *bytes.Buffer) {
	if len(n.Ops) > 0 {
		fmt.Fprintf(b, "  # %s; by %s\n", n.why(), comment(strings.Join(n.Comms, ", ")))
	}
	if n.Listed && n.Rights.Has(engine.Read) && isBroad(n.Path) {
		fmt.Fprintf(b, "  # The directory was listed. To grant that is to grant all that lies below: can the program do without?\n")
	}
	optional := ", optional: true"
	if n.Own {
		optional = ""
	}
	fmt.Fprintf(b, "  - {path: %s, rights: %s%s}\n", quote(n.Path), quote(n.Rights.String()), optional)
}

func (s *Suggestion) writeImpossible(b *bytes.Buffer) {
	if len(s.Impossible) == 0 {
		return
	}
	b.WriteString("# Denied whatever is granted:\n")
	for i, r := range s.Impossible {
		if i == shown {
			fmt.Fprintf(b, "#   and %d more\n", len(s.Impossible)-shown)
			break
		}
		fmt.Fprintf(b, "#   %s %s by %s, %d times: %s\n", comment(r.Op), comment(r.Path), comment(r.Comm), r.Count, comment(r.Code))
	}
}

// quote writes a value in flow style. Every JSON text is a YAML one, and no byte of it can end it early.
func quote(text string) string {
	plain := !slices.Contains([]string{"", "null", "true", "false", "yes", "no", "on", "off", "none"}, text)
	for _, c := range text {
		plain = plain && (c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("/._-", c))
	}
	if plain && (text[0] == '/' || text[0] >= 'a' && text[0] <= 'z') {
		return text
	}
	out, err := json.Marshal(text)
	if err != nil {
		return `""` // no text is refused
	}
	return string(out)
}

// comment keeps what a program chose, its name or a path, from being anything but a comment.
func comment(text string) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f || c == 0x85 || c == 0x2028 || c == 0x2029 || c == 0xfeff {
			return '?'
		}
		return c
	}, text)
}
