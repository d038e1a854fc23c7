package oci

import (
	"regexp"
	"testing"
)

// FuzzPolicyName holds isPolicyName against the pattern that it stands for.
func FuzzPolicyName(f *testing.F) {
	pattern := regexp.MustCompile(`^[a-z0-9][a-z0-9._-]*$`)
	for _, name := range []string{"", "a", "9", ".a", "-", "a.", "a/b", "..", "A", "a\n", "\xffa", "é", "aé"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if got, want := isPolicyName(name), pattern.MatchString(name); got != want {
			t.Errorf("isPolicyName(%q) = %v, want %v", name, got, want)
		}
	})
}
