// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/thenforce/thenforce/pkg/engine"
	"go.yaml.in/yaml/v4"
)

// Parse reads the text of a policy file. source names it in messages, and relative workspaces start from its folder.
// The error is of type [Errors].
func Parse(source string, text []byte) (*File, error) {
	d := decoder{file: &File{Source: source, places: map[string]place{}}}
	d.document(text)
	if len(d.errs) > 0 {
		return nil, d.errs
	}
	return d.file, nil
}

// decoder reads one file. It goes on after an error, so that a file is mended in one go.
type decoder struct {
	file *File
	errs Errors
}

// fail records what is wrong with a field at a node.
func (d *decoder) fail(n *yaml.Node, field, value string, err error, fix string) {
	d.errs = append(d.errs, &engine.PolicyError{
		Source: d.file.Source, Line: n.Line, Column: n.Column, Field: brief(field), Value: brief(value), Err: err, Fix: fix,
	})
}

// brief keeps a message to a line that can be read, whatever the file holds.
func brief(text string) string {
	const most = 100
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "..."
}

func (d *decoder) document(text []byte) {
	whole := &yaml.Node{Line: 1, Column: 1}
	if len(text) > MaxSize {
		d.fail(whole, "policy", "", fmt.Errorf("is larger than %d bytes", MaxSize), "")
		return
	}
	var doc yaml.Node
	// Twice the same key is found below, where both places are known.
	if err := yaml.Load(text, &doc, yaml.WithV4Defaults(), yaml.WithUniqueKeys(false)); err != nil {
		var syntax *yaml.LoadError
		if errors.As(err, &syntax) {
			whole.Line, whole.Column = max(1, syntax.Mark.Line), max(1, syntax.Mark.Column)
			err = errors.New(syntax.Message)
		}
		d.fail(whole, "policy", "", errors.New(strings.TrimPrefix(err.Error(), "yaml: ")), "")
		return
	}
	if doc.Kind != yaml.DocumentNode || len(doc.Content) != 1 {
		d.fail(whole, "policy", "", errors.New("is empty"), "begin with version: 1")
		return
	}
	root := doc.Content[0]
	if !d.plain(root, "policy") {
		return
	}
	if d.mapping(root, "", d.fields()) && !d.has("version") {
		d.fail(root, "version", "", errors.New("is missing"), "begin with version: 1")
	}
}

// fields is the whole format: what each field of the file is read by.
func (d *decoder) fields() fields {
	f := d.file
	return fields{
		"version": func(n *yaml.Node, at string) {
			if v, ok := d.integer(n, at); ok && v != Version {
				d.fail(n, at, n.Value, errors.New("is a version that this build does not know"), "use version: 1, or a newer thenforce")
			}
		},
		"workspace": func(n *yaml.Node, at string) {
			if v, ok := d.path(n, at); ok {
				f.Workspace = &v
			}
		},
		"workspaceRights": func(n *yaml.Node, at string) {
			if v, ok := parsed(d, n, at, isText, engine.ParseWorkspaceRights); ok {
				f.WorkspaceRights = &v
			}
		},
		"mode": func(n *yaml.Node, at string) {
			if v, ok := oneOf(d, n, at, map[string]engine.Mode{"enforce": engine.Enforce, "monitor": engine.Monitor}); ok {
				f.Mode = &v
			}
		},
		"follow": func(n *yaml.Node, at string) {
			d.mapping(n, at, fields{
				"symlinks":      d.flag(&f.Follow.Symlinks),
				"mountPoints":   d.flag(&f.Follow.MountPoints),
				"junctions":     d.flag(&f.Follow.Junctions),
				"reparsePoints": d.flag(&f.Follow.ReparsePoints),
			})
		},
		"symlinks": func(n *yaml.Node, at string) {
			if v, ok := oneOf(d, n, at, map[string]bool{"judge": false, "refuse": true}); ok {
				f.NoSymlinks = &v
			}
		},
		"presets": func(n *yaml.Node, at string) {
			presets := []engine.Preset{}
			d.list(n, at, func(n *yaml.Node, at string) {
				if v, ok := oneOf(d, n, at, map[string]engine.Preset{"system": engine.PresetSystem}); ok {
					presets = append(presets, v)
				}
			})
			f.Presets = &presets
		},
		"grants": func(n *yaml.Node, at string) { d.list(n, at, d.grant) },
		"deny": func(n *yaml.Node, at string) {
			d.list(n, at, func(n *yaml.Node, at string) {
				if v, ok := d.path(n, at); ok {
					f.Deny = append(f.Deny, v)
				}
			})
		},
		"resources": func(n *yaml.Node, at string) {
			d.mapping(n, at, fields{
				"memory": func(n *yaml.Node, at string) {
					if v, ok := parsed(d, n, at, isSize, ParseSize); ok {
						f.Resources.Memory = v
					}
				},
				"pids": func(n *yaml.Node, at string) {
					v, ok := d.integer(n, at)
					if ok && v < 1 {
						d.fail(n, at, n.Value, errors.New("is not above 0"), "leave it out for no limit")
					}
					f.Resources.Pids = v
				},
				"cpus": func(n *yaml.Node, at string) {
					if v, ok := parsed(d, n, at, isNumber, parseCPUs); ok {
						f.Resources.CPUs = v
					}
				},
			})
		},
	}
}

func (d *decoder) grant(n *yaml.Node, at string) {
	var g Grant
	read := d.mapping(n, at, fields{
		"path":     func(n *yaml.Node, at string) { g.Path, _ = d.path(n, at) },
		"rights":   func(n *yaml.Node, at string) { g.Rights, _ = parsed(d, n, at, isText, engine.ParseRights) },
		"reason":   func(n *yaml.Node, at string) { g.Reason, _ = d.text(n, at) },
		"expires":  func(n *yaml.Node, at string) { g.Expires, _ = parsed(d, n, at, isTime, parseExpiry) },
		"optional": func(n *yaml.Node, at string) { g.Optional, _ = d.boolean(n, at) },
	})
	if read {
		for _, field := range []string{"path", "rights"} {
			if !d.has(at + "." + field) {
				d.fail(n, at+"."+field, "", errors.New("is missing"), "write {path: PATH, rights: RIGHTS}")
			}
		}
	}
	d.file.Grants = append(d.file.Grants, g)
}

// duration is the form that the schema takes. time.ParseDuration takes more: a sign, no digit before the point, another mu.
var duration = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^([0-9]+(\.[0-9]*)?(ns|us|µs|ms|s|m|h))+$`)
})

func parseExpiry(text string) (Expiry, error) {
	if after, err := time.ParseDuration(text); err == nil && after > 0 && duration().MatchString(text) {
		return Expiry{After: after}, nil
	}
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return Expiry{At: at.UTC()}, nil
	}
	return Expiry{}, errors.New("want a time from now on above 0, such as 90m or 2h, or an instant, such as 2031-01-31T18:00:00Z")
}

func parseCPUs(text string) (float64, error) {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || v <= 0 || math.IsInf(v, 0) || math.IsNaN(v) {
		return 0, errors.New("want a number above 0, such as 1.5")
	}
	return v, nil
}

// fields says for each key of a mapping who reads its value; at is the whole name of the field.
type fields map[string]func(n *yaml.Node, at string)

// has reports whether a field was there, right or wrong.
func (d *decoder) has(field string) bool { _, ok := d.file.places[field]; return ok }

// plain refuses what makes a file mean more than it shows.
func (d *decoder) plain(n *yaml.Node, at string) bool {
	switch {
	case n.Kind == yaml.AliasNode:
		d.fail(n, at, "*"+n.Value, errors.New("is an alias"), "write the value out")
	case n.Anchor != "":
		d.fail(n, at, "&"+n.Anchor, errors.New("is an anchor"), "leave it out: aliases are not read")
	case n.Style&yaml.TaggedStyle != 0:
		d.fail(n, at, n.Tag, errors.New("is a tag"), "leave it out")
	default:
		return true
	}
	return false
}

// mapping reads an object with named fields.
func (d *decoder) mapping(n *yaml.Node, at string, known fields) bool {
	if n.Kind != yaml.MappingNode {
		d.mismatch(n, at, "fields with values")
		return false
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if !d.plain(key, cmp.Or(at, "policy")) {
			continue
		}
		if key.Kind != yaml.ScalarNode || key.Tag != "!!str" || key.Value == "" {
			d.fail(key, cmp.Or(at, "policy"), key.Value, errors.New("is no name of a field"), knownFields(known))
			continue
		}
		field := key.Value
		if at != "" {
			field = at + "." + field
		}
		read, ok := known[key.Value]
		first, again := d.file.places[field]
		switch {
		case !ok:
			d.fail(key, field, "", errors.New("unknown field"), knownFields(known))
			continue
		case again:
			d.fail(key, field, "", fmt.Errorf("comes a second time (first at %d:%d)", first.line, first.column), "keep one of the two")
			continue
		}
		d.file.places[field] = place{value.Line, value.Column}
		if d.plain(value, field) {
			read(value, field)
		}
	}
	return true
}

func knownFields(known fields) string {
	var names []string
	for name := range known {
		names = append(names, name)
	}
	slices.Sort(names)
	return "use " + strings.Join(names, ", ")
}

func (d *decoder) list(n *yaml.Node, at string, each func(n *yaml.Node, at string)) {
	if n.Kind != yaml.SequenceNode {
		d.mismatch(n, at, "a list")
		return
	}
	for i, item := range n.Content {
		field := fmt.Sprintf("%s[%d]", at, i)
		d.file.places[field] = place{item.Line, item.Column}
		if d.plain(item, field) {
			each(item, field)
		}
	}
}

// mismatch says that a value is of another type than it must be.
func (d *decoder) mismatch(n *yaml.Node, at, want string) {
	names := map[string]string{
		"!!str": "text", "!!int": "a number", "!!float": "a number", "!!bool": "true or false", "!!null": "nothing",
		"!!timestamp": "a time", "!!seq": "a list", "!!map": "fields with values", "!!merge": "a merge key",
	}
	have, ok := names[n.Tag]
	if !ok {
		have = "something of type " + n.Tag
	}
	fix := ""
	if want == "text" && n.Kind == yaml.ScalarNode && n.Tag != "!!null" {
		fix = "put it in quotes"
	}
	d.fail(n, cmp.Or(at, "policy"), n.Value, fmt.Errorf("is %s, want %s", have, want), fix)
}

// scalar checks that a node is a single value of a kind.
func (d *decoder) scalar(n *yaml.Node, at string, k kind) bool {
	if n.Kind == yaml.ScalarNode && slices.Contains(k.tags, n.Tag) {
		return true
	}
	d.mismatch(n, at, k.want)
	return false
}

func (d *decoder) text(n *yaml.Node, at string) (string, bool) {
	return n.Value, d.scalar(n, at, isText)
}

// path reads text that may not be empty.
func (d *decoder) path(n *yaml.Node, at string) (string, bool) {
	if !d.scalar(n, at, isText) {
		return "", false
	}
	if n.Value == "" {
		d.fail(n, at, "", errors.New("is empty"), "name a path")
		return "", false
	}
	return n.Value, true
}

func (d *decoder) boolean(n *yaml.Node, at string) (bool, bool) {
	return strings.EqualFold(n.Value, "true"), d.scalar(n, at, isBool)
}

func (d *decoder) flag(to **bool) func(n *yaml.Node, at string) {
	return func(n *yaml.Node, at string) {
		if v, ok := d.boolean(n, at); ok {
			*to = &v
		}
	}
}

func (d *decoder) integer(n *yaml.Node, at string) (int64, bool) {
	return parsed(d, n, at, isWhole, func(text string) (int64, error) {
		v, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return 0, errors.New("want a whole number in decimal digits")
		}
		return v, nil
	})
}

// kind is a type of single values.
type kind struct {
	want string // in a message
	tags []string
}

var (
	isText   = kind{"text", []string{"!!str"}}
	isBool   = kind{"true or false", []string{"!!bool"}}
	isWhole  = kind{"a whole number", []string{"!!int"}}
	isNumber = kind{"a number", []string{"!!int", "!!float"}}
	isSize   = kind{"a size, such as 512m", []string{"!!int", "!!str"}}
	isTime   = kind{"a time, such as 2h", []string{"!!str", "!!timestamp"}}
)

// parsed reads a value by a function of its text.
func parsed[T any](d *decoder, n *yaml.Node, at string, k kind, parse func(string) (T, error)) (T, bool) {
	var none T
	if !d.scalar(n, at, k) {
		return none, false
	}
	v, err := parse(n.Value)
	if err != nil {
		value := n.Value
		if strings.Contains(err.Error(), strconv.Quote(value)) {
			value = "" // said by the error itself
		}
		d.fail(n, at, value, err, "")
		return none, false
	}
	return v, true
}

func oneOf[T any](d *decoder, n *yaml.Node, at string, words map[string]T) (T, bool) {
	return parsed(d, n, at, isText, func(text string) (T, error) {
		v, ok := words[text]
		if !ok {
			var known []string
			for word := range words {
				known = append(known, word)
			}
			slices.Sort(known)
			return v, fmt.Errorf("want %s", strings.Join(known, " or "))
		}
		return v, nil
	})
}
