package debian

import (
	"fmt"
	"strings"
)

// kernelMeta is the package that always depends on the newest cloud kernel of
// a suite. Cloud kernels are small, start fast, and have BPF LSM, BTF,
// Landlock and SECURITY_PATH.
const kernelMeta = "linux-image-cloud-amd64"

// kernelParts are the name prefixes of packages that hold pieces of a kernel.
// Up to 6.x linux-image-* holds everything; in trixie-backports (7.x) it is
// empty and depends on linux-binary-* (vmlinuz) and linux-modules-*.
var kernelParts = []string{"linux-image-", "linux-binary-", "linux-modules-"}

// IsKernelPackage reports whether ResolveKernel may need the package: give it
// to ParseIndex.
func IsKernelPackage(name string) bool {
	for _, p := range kernelParts {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return false
}

// ResolveKernel finds the newest cloud kernel of a series in the given
// packages and returns every package that must be unpacked to have it, the
// meta package excepted. A series is a version prefix at a dot: "6.1" is
// 6.1.176 but not 6.12.3, "7" is any 7.x. It errors when no kernel of the
// series exists or a part of it is missing from the index.
func ResolveKernel(series string, packages []Package) ([]Package, error) {
	var meta *Package
	for i, p := range packages {
		if p.Name != kernelMeta || !inSeries(p.Version, series) {
			continue
		}
		if meta == nil || CompareVersions(p.Version, meta.Version) > 0 {
			meta = &packages[i]
		}
	}
	if meta == nil {
		return nil, fmt.Errorf("resolve kernel %s: no %s of that series in the archive", series, kernelMeta)
	}
	var (
		out  []Package
		seen = map[string]bool{kernelMeta: true}
		walk func(p Package) error
	)
	walk = func(p Package) error {
		for _, d := range p.Depends {
			if !IsKernelPackage(d.Name) || seen[d.Name] {
				continue
			}
			seen[d.Name] = true
			part, ok := find(packages, d)
			if !ok {
				return fmt.Errorf("resolve kernel %s: %s %s needs %s %s, which the archive does not have",
					series, p.Name, p.Version, d.Name, d.Exact)
			}
			out = append(out, part)
			if err := walk(part); err != nil {
				return err
			}
		}
		return nil
	}
	if err := walk(*meta); err != nil {
		return nil, err
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("resolve kernel %s: %s %s depends on no kernel package", series, meta.Name, meta.Version)
	}
	return out, nil
}

func inSeries(version, series string) bool {
	rest, ok := strings.CutPrefix(version, series)
	return ok && series != "" && (rest == "" || rest[0] == '.' || rest[0] == '-' || rest[0] == '~')
}

// find returns the package that satisfies d: its exact version, else the newest.
func find(packages []Package, d Dependency) (Package, bool) {
	var best Package
	for _, p := range packages {
		if p.Name != d.Name || (d.Exact != "" && p.Version != d.Exact) {
			continue
		}
		if best.Name == "" || CompareVersions(p.Version, best.Version) > 0 {
			best = p
		}
	}
	return best, best.Name != ""
}
