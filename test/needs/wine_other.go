//go:build !windows

package needs

// Wine reports whether this is Windows as wine has it.
func Wine() bool { return false }
