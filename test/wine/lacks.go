//go:build linux

package main

// A lack is something of Windows that wine does not have. Tests that need it are
// skipped there, and nowhere else; see test/needs.
type lack struct {
	feature string
	// tests are those that are skipped for it: package and name, subtests
	// included.
	tests []string
	// covered are tests that run here instead and show the same by a probe in
	// memory.
	covered []string
}

// lacks is what wine 10 of Debian trixie lacks. CreateSymbolicLink reports success
// and makes nothing; FSCTL_SET_REPARSE_POINT, which makes junctions, is not
// implemented.
var lacks = []lack{
	{
		feature: "symbolic links",
		tests: []string{
			"pkg/fallback TestGuard", "pkg/fallback TestRoots",
			"cmd/thenforce TestEngineFollowsWhatItMay", "cmd/thenforce TestScripts/links",
		},
		covered: []string{"pkg/engine TestWalkWindows", "pkg/engine TestWindowsBind", "pkg/fallback TestReparseTarget"},
	},
	{
		feature: "junctions",
		tests:   []string{"pkg/fallback TestJunction"},
		covered: []string{"pkg/engine TestWalkWindows", "pkg/fallback TestReparseTarget", "pkg/fallback TestMountsVolume"},
	},
}
