package loader

import (
	"regexp"
	"strings"
	"testing"
)

// FuzzValidName holds validName against the pattern that cli.md gives for a jail's name.
func FuzzValidName(f *testing.F) {
	pattern := regexp.MustCompile(`^[a-z0-9._-]{1,63}$`)
	for _, name := range []string{
		"", "a", "a.b_c-9", "A", "a b", "a\n", "\x00", "é", "\xff", "aéa", strings.Repeat("z", 63), strings.Repeat("z", 64),
	} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if got, want := validName(name), pattern.MatchString(name); got != want {
			t.Errorf("validName(%q) = %v, want %v", name, got, want)
		}
	})
}
