package oci

import (
	"strings"
	"testing"
)

func TestReadState(t *testing.T) {
	for _, c := range []struct {
		text, err string
		stage     Stage
	}{
		{text: `{"ociVersion":"1.2.0","id":"a","status":"creating","pid":7,"bundle":"/b","annotations":{"k":"v"}}`},
		{text: `{"ociVersion":"1.0","id":"a","status":"created","pid":7,"bundle":"/b","root":"of crun"}`},
		{text: `{"id":"a","status":"stopped","bundle":"/b"}`, stage: Stop},
		{text: `{"id":"a","status":"stopped","pid":0,"bundle":"/b"}`, stage: Stop},
		{text: ``, err: "standard input is empty"},
		{text: `{`, err: "unexpected end"},
		{text: `{"id":"a"} {}`, err: "invalid character"},
		{text: `{"id":7}`, err: "cannot unmarshal number"},
		{text: `{"status":"creating","pid":7,"bundle":"/b"}`, err: "it has no id"},
		{text: `{"id":"a","status":"creating","pid":7}`, err: `bundle "" is not an absolute path`},
		{text: `{"id":"a","status":"creating","pid":-1,"bundle":"/b"}`, err: "it has no process"},
		{text: `{"id":"a","status":"created","pid":0,"bundle":"/b"}`, err: "it has no process"}, // createContainer of crun
		{text: `{"id":"a","status":"running","pid":7,"bundle":"/b"}`, err: `status "running"`},
		{text: `{"id":"a","pid":7,"bundle":"/b"}`, err: `status ""`},
		{text: `{"id":"` + strings.Repeat("a", stateBytes) + `"}`, err: "longer than 1048576 bytes"},
	} {
		state, stage, err := ReadState(strings.NewReader(c.text))
		switch {
		case c.err == "" && (err != nil || state.ID != "a" || stage != c.stage):
			t.Errorf("%s: %+v, stage %d, %v", c.text, state, stage, err)
		case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
			t.Errorf("%.80s: error %v, want one with %q", c.text, err, c.err)
		}
	}
}

func FuzzReadState(f *testing.F) {
	f.Add(`{"id":"a","status":"creating","pid":7,"bundle":"/b"}`)
	f.Fuzz(func(t *testing.T, text string) {
		state, stage, err := ReadState(strings.NewReader(text))
		if err == nil && (state.ID == "" || state.Bundle[0] != '/' || stage == Create && state.Pid <= 0) {
			t.Errorf("%q passes as %+v", text, state)
		}
	})
}
