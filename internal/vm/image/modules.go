//go:build linux

package image

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// Module is a kernel module, decompressed: the guest has nothing to do it with.
type Module struct {
	// Name is the module's file name without suffixes.
	Name string
	Data []byte
}

// LoadModules returns the named modules of a kernel and all that they need, in
// an order in which they can be loaded. A name that the kernel has built in, or
// does not have at all, is left out: series differ in what is a module, and a
// guest that lacks one says so when it mounts.
func LoadModules(k Kernel, names []string) ([]Module, error) {
	text, err := os.ReadFile(filepath.Join(k.ModulesPath(), "modules.dep"))
	if err != nil {
		return nil, err
	}
	var out []Module
	for _, path := range moduleClosure(string(text), names) {
		data, err := readModule(filepath.Join(k.ModulesPath(), path))
		if err != nil {
			return nil, err
		}
		out = append(out, Module{Name: moduleName(path), Data: data})
	}
	return out, nil
}

// moduleClosure returns the paths of the named modules and their dependencies
// from the text of a modules.dep, dependencies first. A line of it lists, after
// the module, all it needs, the nearest first.
func moduleClosure(dep string, names []string) []string {
	needs := map[string][]string{}
	path := map[string]string{}
	for line := range strings.Lines(dep) {
		module, list, ok := strings.Cut(strings.TrimSpace(line), ":")
		if !ok {
			continue
		}
		path[moduleName(module)] = module
		needs[module] = strings.Fields(list)
	}
	var out []string
	add := func(p string) {
		if !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	for _, n := range names {
		module, ok := path[strings.ReplaceAll(n, "-", "_")]
		if !ok {
			continue
		}
		for _, d := range slices.Backward(needs[module]) {
			add(d)
		}
		add(module)
	}
	return out
}

// moduleName is the name of a module as the kernel writes it.
func moduleName(path string) string {
	name, _, _ := strings.Cut(filepath.Base(path), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}

func readModule(path string) ([]byte, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	switch filepath.Ext(path) {
	case ".xz":
		r, err := xz.NewReader(bytes.NewReader(raw))
		if err != nil {
			return nil, fmt.Errorf("decompress %s: %w", path, err)
		}
		if raw, err = io.ReadAll(r); err != nil {
			return nil, fmt.Errorf("decompress %s: %w", path, err)
		}
	case ".zst":
		r, err := zstd.NewReader(bytes.NewReader(raw))
		if err != nil {
			return nil, fmt.Errorf("decompress %s: %w", path, err)
		}
		defer r.Close()
		if raw, err = io.ReadAll(r); err != nil {
			return nil, fmt.Errorf("decompress %s: %w", path, err)
		}
	}
	return raw, nil
}
