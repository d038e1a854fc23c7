// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
)

// members returns the members of a JSON object by their exact names. encoding/json would match names regardless of case,
// and take the last of several of one name, which another parser on the way may not. The text must be valid JSON; it
// may be any value.
func members(text []byte) (map[string]json.RawMessage, error) {
	s := scanner{text: text}
	if s.skipSpace() != '{' {
		return nil, errors.New("not an object")
	}
	s.at++
	found := make(map[string]json.RawMessage, 4)
	for s.skipSpace() != '}' {
		var name string
		if err := json.Unmarshal(s.value(), &name); err != nil {
			return nil, err
		}
		s.skipSpace()
		s.at++ // the colon
		s.skipSpace()
		if _, twice := found[name]; twice {
			return nil, fmt.Errorf("the member %q is there twice", name)
		}
		found[name] = s.value()
		if s.skipSpace() == ',' {
			s.at++
		}
	}
	return found, nil
}

// scanner steps through valid JSON.
type scanner struct {
	text []byte
	at   int
}

// skipSpace goes to what comes next and returns its first byte.
func (s *scanner) skipSpace() byte {
	for s.text[s.at] == ' ' || s.text[s.at] == '\t' || s.text[s.at] == '\n' || s.text[s.at] == '\r' {
		s.at++
	}
	return s.text[s.at]
}

// value returns the value that begins here and goes behind it.
func (s *scanner) value() json.RawMessage {
	start, depth := s.at, 0
	for {
		switch s.text[s.at] {
		case '"':
			s.skipString()
			if depth == 0 {
				return s.text[start:s.at]
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 { // it closes what the value is in
				return s.text[start:s.at]
			}
			if depth--; depth == 0 {
				s.at++
				return s.text[start:s.at]
			}
		case ',', ' ', '\t', '\n', '\r':
			if depth == 0 {
				return s.text[start:s.at]
			}
		}
		s.at++
	}
}

func (s *scanner) skipString() {
	for s.at++; s.text[s.at] != '"'; s.at++ {
		if s.text[s.at] == '\\' {
			s.at++
		}
	}
	s.at++
}

var fieldCache sync.Map // of reflect.Type to map[string]bool

// fieldNames returns the names by which encoding/json knows the fields of the struct that v points to.
func fieldNames(v any) map[string]bool {
	t := reflect.TypeOf(v).Elem()
	if names, ok := fieldCache.Load(t); ok {
		return names.(map[string]bool)
	}
	names := map[string]bool{}
	for _, f := range reflect.VisibleFields(t) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
			names[name] = true
		}
	}
	fieldCache.Store(t, names)
	return names
}
