package debian

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Mirrors are the archive addresses to download from. Security is empty when
// the machine has none configured; kernels then come from the point releases.
type Mirrors struct {
	Archive  string
	Security string
}

// codenames are the suites by which an entry of the machine's configuration is
// recognised as the Debian archive and not some vendor's repository.
var codenames = []string{
	"bullseye", "bookworm", "trixie", "forky", "sid",
	"oldoldstable", "oldstable", "stable", "testing", "unstable",
}

// source is one repository of the configuration.
type source struct {
	uri        string
	suite      string
	components []string
}

// FindMirrors returns the mirrors that the machine itself is configured to
// use, read from sources.list and sources.list.d below etcApt ("/etc/apt").
// The variables THENFORCE_VM_MIRROR and THENFORCE_VM_SECURITY_MIRROR take
// precedence, for machines that are not Debian. It errors when neither names
// an archive.
func FindMirrors(etcApt string) (Mirrors, error) {
	m := Mirrors{
		Archive:  os.Getenv("THENFORCE_VM_MIRROR"),
		Security: os.Getenv("THENFORCE_VM_SECURITY_MIRROR"),
	}
	if m.Archive != "" {
		return m, nil
	}
	sources, err := readSources(etcApt)
	if err != nil {
		return Mirrors{}, err
	}
	for _, s := range sources {
		if !slices.Contains(s.components, "main") {
			continue
		}
		switch {
		case m.Archive == "" && slices.Contains(codenames, s.suite):
			m.Archive = s.uri
		case m.Security == "" && isSecurity(s.suite):
			m.Security = s.uri
		}
	}
	if m.Archive == "" {
		return Mirrors{}, fmt.Errorf("find a Debian mirror: none configured in %s; set THENFORCE_VM_MIRROR to the address of a Debian archive", etcApt)
	}
	return m, nil
}

func isSecurity(suite string) bool {
	name, ok := strings.CutSuffix(suite, "-security")
	return ok && slices.Contains(codenames, name)
}

func readSources(etcApt string) ([]source, error) {
	names := []string{filepath.Join(etcApt, "sources.list")}
	for _, glob := range []string{"*.list", "*.sources"} {
		found, err := filepath.Glob(filepath.Join(etcApt, "sources.list.d", glob))
		if err != nil {
			return nil, err
		}
		names = append(names, found...)
	}
	var out []source
	for _, name := range names {
		text, err := os.ReadFile(name)
		if os.IsNotExist(err) {
			continue
		} else if err != nil {
			return nil, err
		}
		if strings.HasSuffix(name, ".sources") {
			out = append(out, parseDeb822Sources(string(text))...)
		} else {
			out = append(out, parseListSources(string(text))...)
		}
	}
	return out, nil
}

// parseListSources reads the one-line style of sources.list(5).
func parseListSources(text string) []source {
	var out []source
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		if i, j := strings.IndexByte(line, '['), strings.IndexByte(line, ']'); i >= 0 && j > i {
			line = line[:i] + line[j+1:]
		}
		f := strings.Fields(line)
		if len(f) < 4 || f[0] != "deb" {
			continue
		}
		out = append(out, source{uri: strings.TrimSuffix(f[1], "/"), suite: f[2], components: f[3:]})
	}
	return out
}

// parseDeb822Sources reads the stanza style of sources.list(5).
func parseDeb822Sources(text string) []source {
	var (
		out    []source
		fields = map[string]string{}
		last   string
	)
	flush := func() {
		defer func() { fields, last = map[string]string{}, "" }()
		if !slices.Contains(strings.Fields(fields["types"]), "deb") || strings.EqualFold(strings.TrimSpace(fields["enabled"]), "no") {
			return
		}
		for _, uri := range strings.Fields(fields["uris"]) {
			for _, suite := range strings.Fields(fields["suites"]) {
				out = append(out, source{
					uri:        strings.TrimSuffix(uri, "/"),
					suite:      suite,
					components: strings.Fields(fields["components"]),
				})
			}
		}
	}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		switch {
		case strings.HasPrefix(line, "#"):
		case strings.TrimSpace(line) == "":
			flush()
		case line[0] == ' ' || line[0] == '\t':
			fields[last] += line
		default:
			name, value, _ := strings.Cut(line, ":")
			last = strings.ToLower(strings.TrimSpace(name))
			fields[last] = value
		}
	}
	flush()
	return out
}
