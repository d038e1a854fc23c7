package debian

import (
	"cmp"
	"os"
	"path/filepath"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestCompareVersions(t *testing.T) {
	// Ascending; each pair is compared both ways. The order is dpkg's own.
	ascending := []string{
		"~~", "~", "0", "0.1~rc1", "0.1", "0.1a", "0.1+b1", "0.1.1", "0.9", "0.10",
		"6.1.99-1", "6.1.176-1", "6.1.192-2", "6.1.192-3", "6.12.9-1", "6.12.117-1~bpo13+1", "6.12.117-1", "6.12.117-1+b1", "6.12.118-1",
		"7.0~rc7-1~exp1", "7.0-1", "7.3.4-1~bpo13+1", "7.3.4-1", "7.10.1-1", "20250101000000000000000000000000", "1:0.5", "2:0",
	}
	for i, a := range ascending {
		for j, b := range ascending {
			if got, want := CompareVersions(a, b), cmp.Compare(i, j); got != want {
				t.Errorf("CompareVersions(%q, %q) = %d, want %d", a, b, got, want)
			}
		}
	}
	for _, same := range [][2]string{{"1.0", "1.00"}, {"0:1", "1"}, {"1.0-0", "1.0"}, {"1", "1"}} {
		if got := CompareVersions(same[0], same[1]); got != 0 {
			t.Errorf("CompareVersions(%q, %q) = %d, want 0", same[0], same[1], got)
		}
	}
}

func TestCompareVersionsIsAnOrder(t *testing.T) {
	version := rapid.StringMatching(`[0-9a-z~+.:-]{0,12}`)
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := version.Draw(t, "a"), version.Draw(t, "b"), version.Draw(t, "c")
		if CompareVersions(a, b) != -CompareVersions(b, a) {
			t.Fatalf("not antisymmetric: %q, %q", a, b)
		}
		if CompareVersions(a, b) <= 0 && CompareVersions(b, c) <= 0 && CompareVersions(a, c) > 0 {
			t.Fatalf("not transitive: %q, %q, %q", a, b, c)
		}
	})
}

// sample is cut from the indexes of bookworm, trixie, their security suites and
// trixie-backports.
func sample(t *testing.T) []Package {
	t.Helper()
	f, err := os.Open("testdata/Packages")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all, err := ParseIndex(f, func(string) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestResolveKernel(t *testing.T) {
	all := sample(t)
	for series, want := range map[string][]string{
		// In both bookworm (6.1.176) and bookworm-security: the newest.
		"6.1":  {"linux-image-6.1.0-57-cloud-amd64 6.1.192-3"},
		"6.12": {"linux-image-6.12.118+deb13-cloud-amd64 6.12.118-1"},
		"6":    {"linux-image-6.12.118+deb13-cloud-amd64 6.12.118-1"},
		// Split into three packages.
		"7": {
			"linux-image-7.3.4+deb13-cloud-amd64 7.3.4-1~bpo13+1",
			"linux-binary-7.3.4+deb13-cloud-amd64 7.3.4-1~bpo13+1",
			"linux-modules-7.3.4+deb13-cloud-amd64 7.3.4-1~bpo13+1",
			"linux-modules-cloud-amd64 7.3.4-1~bpo13+1",
		},
	} {
		found, err := ResolveKernel(series, all)
		if err != nil {
			t.Errorf("%s: %v", series, err)
			continue
		}
		var got []string
		for _, p := range found {
			got = append(got, p.Name+" "+p.Version)
		}
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", series, diff)
		}
	}
}

func TestResolveKernelErrors(t *testing.T) {
	all := sample(t)
	without := func(name string) []Package {
		var out []Package
		for _, p := range all {
			if p.Name != name {
				out = append(out, p)
			}
		}
		return out
	}
	for _, c := range []struct {
		what, series string
		packages     []Package
		want         string
	}{
		{"no such series", "5.10", all, "no linux-image-cloud-amd64 of that series"},
		{"a prefix that ends inside a number", "6.11", all, "no linux-image-cloud-amd64"},
		{"no series", "", all, "no linux-image-cloud-amd64"},
		{"a part is missing", "7", without("linux-binary-7.3.4+deb13-cloud-amd64"), "needs linux-binary-7.3.4"},
		{"only another version of the part", "6.12", append(without("linux-image-6.12.118+deb13-cloud-amd64"),
			Package{Name: "linux-image-6.12.118+deb13-cloud-amd64", Version: "6.12.118-0"}), "needs linux-image-6.12.118"},
		{"a meta package of nothing", "9", []Package{{Name: kernelMeta, Version: "9.1-1"}}, "depends on no kernel package"},
	} {
		if _, err := ResolveKernel(c.series, c.packages); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q in it", c.what, err, c.want)
		}
	}
}

func TestParseIndexErrors(t *testing.T) {
	for what, text := range map[string]string{
		"no version":  "Package: a\n\nPackage: b\nVersion: 1\n",
		"no name":     "Version: 1\n",
		"not a field": "Package: a\nVersion 1\n",
	} {
		if got, err := ParseIndex(strings.NewReader(text), func(string) bool { return true }); err == nil {
			t.Errorf("%s: no error, %v", what, got)
		}
	}
}

func TestParseDepends(t *testing.T) {
	got := parseDepends("kmod, linux-base (>= 4.3~), initramfs-tools (>= 0.120) | linux-initramfs-tool, python3:any, x (= 1:2-3),")
	want := []Dependency{{Name: "kmod"}, {Name: "linux-base"}, {Name: "initramfs-tools"}, {Name: "python3"}, {Name: "x", Exact: "1:2-3"}}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func FuzzParseIndex(f *testing.F) {
	f.Add("Package: a\nVersion: 1\nDepends: b (= 1) | c, d:any\n more\n\n")
	f.Add("Depends: (,|")
	f.Fuzz(func(t *testing.T, text string) {
		found, err := ParseIndex(strings.NewReader(text), IsKernelPackage)
		if err != nil {
			return
		}
		for _, p := range found {
			if p.Name == "" || p.Version == "" || !IsKernelPackage(p.Name) {
				t.Errorf("accepted %+v", p)
			}
		}
	})
}

func TestFindMirrors(t *testing.T) {
	t.Setenv("THENFORCE_VM_MIRROR", "")
	t.Setenv("THENFORCE_VM_SECURITY_MIRROR", "")
	const deb822 = `# a comment
Types: deb
URIs: http://mirror.example/debian/
Suites: bookworm bookworm-updates
Components: main
Signed-By: /k.gpg

Types: deb deb-src
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main contrib
`
	for _, c := range []struct {
		what  string
		files map[string]string
		want  Mirrors
	}{
		{"stanzas", map[string]string{"sources.list.d/debian.sources": deb822}, Mirrors{"http://mirror.example/debian", "http://mirror.example/debian-security"}},
		{"lines", map[string]string{"sources.list": "deb-src http://no.example/debian trixie main\n" +
			"# deb http://no.example/debian trixie main\n" +
			"deb [arch=amd64 signed-by=/k] http://yes.example/debian trixie main # why\n"}, Mirrors{Archive: "http://yes.example/debian"}},
		{"a vendor's repository first", map[string]string{
			"sources.list.d/a.list":         "deb https://vendor.example/apt stable-vendor main\n",
			"sources.list.d/b.sources":      "Types: deb\nURIs: https://vendor.example/x\nSuites: nodistro\nComponents: main\n",
			"sources.list.d/debian.sources": deb822,
		}, Mirrors{"http://mirror.example/debian", "http://mirror.example/debian-security"}},
		{"switched off", map[string]string{
			"sources.list.d/a.sources": "Types: deb\nEnabled: no\nURIs: http://off.example/debian\nSuites: trixie\nComponents: main\n",
			"sources.list.d/b.sources": "Types: deb\nEnabled: yes\nURIs: http://on.example/debian\nSuites: sid\nComponents: main\n",
		}, Mirrors{Archive: "http://on.example/debian"}},
		{"folded field", map[string]string{
			"sources.list.d/a.sources": "Types: deb\nURIs:\n http://folded.example/debian\nSuites: trixie\nComponents: main\n",
		}, Mirrors{Archive: "http://folded.example/debian"}},
	} {
		dir := t.TempDir()
		for name, text := range c.files {
			name = filepath.Join(dir, filepath.FromSlash(name))
			if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := FindMirrors(dir)
		if err != nil {
			t.Errorf("%s: %v", c.what, err)
		} else if got != c.want {
			t.Errorf("%s: %+v, want %+v", c.what, got, c.want)
		}
	}
	if got, err := FindMirrors(t.TempDir()); err == nil || !strings.Contains(err.Error(), "THENFORCE_VM_MIRROR") {
		t.Errorf("no sources at all: %+v, %v; want an error that names the variable", got, err)
	}
	t.Setenv("THENFORCE_VM_MIRROR", "http://env.example/debian")
	if got, err := FindMirrors(t.TempDir()); err != nil || got.Archive != "http://env.example/debian" {
		t.Errorf("by variable: %+v, %v", got, err)
	}
}
