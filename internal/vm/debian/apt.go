// Package debian fetches Debian packages without installing them: a private
// apt, with its own sources, lists and cache below one folder, verified with
// the Debian archive keyring. Nothing of the machine's own apt state is read
// but the mirror and proxy settings, and nothing is written.
package debian

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Keyring verifies the archive; package debian-archive-keyring.
const Keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// Suites are parts of the archive to look into.
type Suites struct{ Archive, Security []string }

var (
	// Supported has the kernels 6.1 (bookworm), 6.12 (trixie) and 7.x (backports).
	Supported = Suites{
		Archive:  []string{"bookworm", "trixie", "trixie-backports"},
		Security: []string{"bookworm-security", "trixie-security"},
	}
	// Old has 5.10, for seeing what is said on a kernel that is too old. It is
	// apart because one day mirrors will not have it, and that must not keep the
	// others from being read.
	Old = Suites{Archive: []string{"bullseye"}}
)

// Apt is a private apt. Open makes one.
type Apt struct {
	dir     string
	mirrors Mirrors
	suites  Suites
}

// Open prepares a private apt in dir that looks into the given suites. It writes its configuration anew each
// time, so that a changed mirror or proxy is picked up, and downloads nothing.
func Open(ctx context.Context, dir string, suites Suites) (*Apt, error) {
	mirrors, err := FindMirrors("/etc/apt")
	if err != nil {
		return nil, err
	}
	a := &Apt{dir: dir, mirrors: mirrors, suites: suites}
	for _, d := range []string{"lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	machine, err := MachineSettings(ctx)
	if err != nil {
		return nil, err
	}
	for name, text := range map[string]string{
		"apt.conf":     a.config() + machine,
		"sources.list": a.sources(),
		"status":       "",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	return a, nil
}

func (a *Apt) sources() string {
	var b strings.Builder
	add := func(uri string, suites []string) {
		for _, s := range suites {
			if uri != "" {
				fmt.Fprintf(&b, "deb [signed-by=%s] %s %s main\n", Keyring, uri, s)
			}
		}
	}
	add(a.mirrors.Archive, a.suites.Archive)
	add(a.mirrors.Security, a.suites.Security)
	return b.String()
}

func (a *Apt) config() string {
	var b strings.Builder
	set := func(key, value string) { fmt.Fprintf(&b, "%s %q;\n", key, value) }
	// Dir::Etc::parts: the machine's apt.conf.d has hooks for its own package
	// database and asks for index files that nobody here reads.
	set("Dir::Etc::parts", "/dev/null")
	set("Dir::Etc::main", "/dev/null")
	set("Dir::Etc::sourcelist", filepath.Join(a.dir, "sources.list"))
	set("Dir::Etc::sourceparts", "/dev/null")
	set("Dir::State", a.dir)
	set("Dir::State::lists", filepath.Join(a.dir, "lists"))
	set("Dir::State::status", filepath.Join(a.dir, "status"))
	set("Dir::Cache", filepath.Join(a.dir, "cache"))
	// A binary form of the indexes, of 100 MB, to save the second that reading
	// them takes.
	set("Dir::Cache::pkgcache", "")
	set("Dir::Cache::srcpkgcache", "")
	set("Acquire::Languages", "none")
	set("Acquire::GzipIndexes", "false")
	set("Acquire::Retries", "3")
	set("APT::Architecture", "amd64")
	set("APT::Architectures", "amd64")
	// apt would hand downloads to the user _apt, who cannot enter the cache.
	set("APT::Sandbox::User", "root")
	return b.String()
}

// MachineSettings returns how this machine reaches an archive (proxies,
// certificates, tolerance for old mirrors) in apt.conf form.
func MachineSettings(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "apt-config", "dump").Output()
	if err != nil {
		return "", fmt.Errorf("read the machine's apt configuration: %w", err)
	}
	var b strings.Builder
	for line := range strings.Lines(string(out)) {
		for _, p := range []string{"Acquire::http", "Acquire::https", "Acquire::ftp", "Acquire::Check-"} {
			if strings.HasPrefix(line, p) {
				b.WriteString(line)
				break
			}
		}
	}
	return b.String(), nil
}

// Update downloads the archive indexes.
func (a *Apt) Update(ctx context.Context) error {
	if _, err := os.Stat(Keyring); err != nil {
		return fmt.Errorf("find the Debian archive keyring (package debian-archive-keyring): %w", err)
	}
	_, err := a.run(ctx, a.dir, "apt-get", "-q", "update", "--error-on=any")
	return err
}

// HaveIndexes reports whether Update has succeeded before.
func (a *Apt) HaveIndexes() bool {
	found, err := filepath.Glob(filepath.Join(a.dir, "lists", "*_Packages"))
	return err == nil && len(found) > 0
}

// Packages returns the packages of all suites whose name keep accepts.
func (a *Apt) Packages(ctx context.Context, keep func(name string) bool) ([]Package, error) {
	out, err := a.run(ctx, a.dir, "apt-get", "indextargets", "--format", "$(FILENAME)", "Created-By: Packages")
	if err != nil {
		return nil, err
	}
	var all []Package
	for name := range strings.Lines(out) {
		f, err := os.Open(strings.TrimSpace(name))
		if err != nil {
			return nil, err
		}
		found, err := ParseIndex(f, keep)
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", strings.TrimSpace(name), err)
		}
		all = append(all, found...)
	}
	return all, nil
}

// Unpack downloads the packages, which apt verifies, and unpacks them into
// dir. progress gets one line for each package.
func (a *Apt) Unpack(ctx context.Context, packages []Package, dir string, progress io.Writer) error {
	tmp, err := os.MkdirTemp(a.dir, "download-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	for _, p := range packages {
		fmt.Fprintf(progress, "  fetch %s %s\n", p.Name, p.Version)
		if _, err := a.run(ctx, tmp, "apt-get", "-q", "download", p.Name+"="+p.Version); err != nil {
			return err
		}
		debs, err := filepath.Glob(filepath.Join(tmp, p.Name+"_*.deb"))
		if err != nil {
			return err
		}
		if len(debs) != 1 {
			return fmt.Errorf("download %s: %d files arrived, want 1", p.Name, len(debs))
		}
		if out, err := exec.CommandContext(ctx, "dpkg-deb", "-x", debs[0], dir).CombinedOutput(); err != nil {
			return fmt.Errorf("unpack %s: %w: %s", p.Name, err, bytes.TrimSpace(out))
		}
		if err := os.Remove(debs[0]); err != nil {
			return err
		}
	}
	return nil
}

func (a *Apt) run(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "APT_CONFIG="+filepath.Join(a.dir, "apt.conf"), "LC_ALL=C.UTF-8")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.String(), nil
}
