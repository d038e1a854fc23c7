// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
)

type echoParams struct {
	Text   string `json:"text"`
	Number int    `json:"number"`
	Inner  struct {
		Flag bool `json:"flag"`
	} `json:"inner"`
}

var methods = map[string]Method{
	"echo": func(raw json.RawMessage) (any, *Error) {
		var p echoParams
		if err := Decode(raw, &p); err != nil {
			return nil, err
		}
		return p.Text, nil
	},
	"unsayable": func(json.RawMessage) (any, *Error) { return math.Inf(1), nil },
	"nothing":   func(json.RawMessage) (any, *Error) { return nil, nil },
	"fail":      func(json.RawMessage) (any, *Error) { return nil, &Error{Code: -32000, Message: "no", Data: 7} },
}

// serve returns the answers to input, one a line.
func serve(t testing.TB, input io.Reader) []string {
	t.Helper()
	var out bytes.Buffer
	if err := Serve(input, &out, methods); err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
}

func TestAnswers(t *testing.T) {
	for _, test := range []struct{ name, line, want string }{
		{"a result", `{"jsonrpc":"2.0","id":1,"method":"echo","params":{"text":"<a>"}}`, `{"jsonrpc":"2.0","id":1,"result":"<a>"}`},
		{"white space", " { \"jsonrpc\" : \"2.0\" , \"id\" : 1 ,\t\"method\" : \"echo\" , \"params\" : { \"text\" : \"x\" } } \r", `{"jsonrpc":"2.0","id":1,"result":"x"}`},
		{"a null result", `{"jsonrpc":"2.0","id":1,"method":"nothing"}`, `{"jsonrpc":"2.0","id":1,"result":null}`},
		{"an error of its own", `{"jsonrpc":"2.0","id":1,"method":"fail"}`, `{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"no","data":7}}`},
		{"a result that JSON does not know", `{"jsonrpc":"2.0","id":1,"method":"unsayable"}`, `1 -32603`},
		{"a string id", `{"jsonrpc":"2.0","id":"a\u00e9","method":"nothing"}`, `{"jsonrpc":"2.0","id":"a\u00e9","result":null}`},
		{"a large id", `{"jsonrpc":"2.0","id":123456789012345678901234567890,"method":"nothing"}`, `{"jsonrpc":"2.0","id":123456789012345678901234567890,"result":null}`},
		{"a null id", `{"jsonrpc":"2.0","id":null,"method":"nothing"}`, `{"jsonrpc":"2.0","id":null,"result":null}`},
		{"a notification", `{"jsonrpc":"2.0","method":"echo","params":{"text":"x"}}`, ``},
		{"a notification of no method", `{"jsonrpc":"2.0","method":"nope"}`, ``},
		{"a notification with bad parameters", `{"jsonrpc":"2.0","method":"echo","params":[1]}`, ``},
		{"white space alone", " \t\r", ``},
		{"no JSON", `{"jsonrpc":"2.0","id":1,`, `null -32700`},
		{"two values", `{"jsonrpc":"2.0","id":1,"method":"nothing"} {}`, `null -32700`},
		{"not UTF-8", "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"echo\",\"params\":{\"text\":\"\xff\"}}", `null -32700`},
		{"a batch", `[{"jsonrpc":"2.0","id":1,"method":"nothing"}]`, `null -32600`},
		{"an empty batch", `[]`, `null -32600`},
		{"not an object", `"nothing"`, `null -32600`},
		{"a number", `1`, `null -32600`},
		{"an empty object", `{}`, `null -32600`},
		{"no version", `{"id":1,"method":"nothing"}`, `null -32600`},
		{"version 1", `{"jsonrpc":"1.0","id":1,"method":"nothing"}`, `null -32600`},
		{"version as a number", `{"jsonrpc":2.0,"id":1,"method":"nothing"}`, `null -32600`},
		{"no method", `{"jsonrpc":"2.0","id":1}`, `null -32600`},
		{"a method that is no string", `{"jsonrpc":"2.0","id":1,"method":null}`, `null -32600`},
		{"an id that is an object", `{"jsonrpc":"2.0","id":{},"method":"nothing"}`, `null -32600`},
		{"an id that is true", `{"jsonrpc":"2.0","id":true,"method":"nothing"}`, `null -32600`},
		{"a member twice", `{"jsonrpc":"2.0","id":1,"id":2,"method":"nothing"}`, `null -32600`},
		{"a member in other case", `{"jsonrpc":"2.0","id":1,"Method":"nothing"}`, `null -32600`},
		{"an answer", `{"jsonrpc":"2.0","id":1,"result":1}`, `null -32600`},
		{"an unknown method", `{"jsonrpc":"2.0","id":1,"method":"Echo"}`, `1 -32601`},
		{"parameters by position", `{"jsonrpc":"2.0","id":1,"method":"echo","params":["x"]}`, `1 -32602`},
		{"parameters null", `{"jsonrpc":"2.0","id":1,"method":"echo","params":null}`, `1 -32602`},
		{"an unknown parameter", `{"jsonrpc":"2.0","id":1,"method":"echo","params":{"test":"x"}}`, `1 -32602`},
		{"a parameter in other case", `{"jsonrpc":"2.0","id":1,"method":"echo","params":{"Text":"x"}}`, `1 -32602`},
		{"a parameter twice", `{"jsonrpc":"2.0","id":1,"method":"echo","params":{"text":"x","text":"y"}}`, `1 -32602`},
		{"a parameter of the wrong type", `{"jsonrpc":"2.0","id":1,"method":"echo","params":{"text":1}}`, `1 -32602`},
		{"a number that does not fit", `{"jsonrpc":"2.0","id":1,"method":"echo","params":{"number":1.5}}`, `1 -32602`},
		{"an unknown member below", `{"jsonrpc":"2.0","id":1,"method":"echo","params":{"inner":{"flags":true}}}`, `1 -32602`},
	} {
		got := serve(t, strings.NewReader(test.line+"\n"))
		if len(got) != 1 {
			t.Errorf("%s: %d answers: %q", test.name, len(got), got)
			continue
		}
		if strings.Contains(test.want, " ") { // an id and a code
			var r struct {
				Jsonrpc string
				ID      json.RawMessage
				Error   *Error
				Result  *json.RawMessage
			}
			if err := json.Unmarshal([]byte(got[0]), &r); err != nil || r.Error == nil || r.Error.Message == "" || r.Result != nil || r.Jsonrpc != "2.0" {
				t.Errorf("%s: %q is no error: %v", test.name, got[0], err)
				continue
			}
			code, _ := json.Marshal(r.Error.Code)
			got[0] = string(r.ID) + " " + string(code)
		}
		if got[0] != test.want {
			t.Errorf("%s: %q, want %q", test.name, got[0], test.want)
		}
	}
}

// A line that is too long is answered, and what follows as well.
func TestLongLine(t *testing.T) {
	request := func(id string, length int) string {
		line := `{"jsonrpc":"2.0","id":` + id + `,"method":"echo","params":{"text":"`
		end := `"}}`
		return line + strings.Repeat("x", length-len(line)-len(end)) + end
	}
	for _, chunks := range []func(io.Reader) io.Reader{func(r io.Reader) io.Reader { return r }, iotest.HalfReader} {
		got := serve(t, chunks(strings.NewReader(strings.Join([]string{
			request("1", MaxLine), request("2", MaxLine+1), request("3", 3*MaxLine), request("4", 100),
		}, "\n"))))
		var codes []string
		for _, line := range got {
			codes = append(codes, line[:min(len(line), 50)])
		}
		want := []string{
			`{"jsonrpc":"2.0","id":1,"result":"xxxxxxxxxxxxxxxx`,
			`{"jsonrpc":"2.0","id":null,"error":{"code":-32600,`,
			`{"jsonrpc":"2.0","id":null,"error":{"code":-32600,`,
			`{"jsonrpc":"2.0","id":4,"result":"xxxxxxxxxxxxxxxx`,
		}
		if diff := cmp.Diff(want, codes); diff != "" {
			t.Errorf("answers (-want +got):\n%s", diff)
		}
	}
	// The last line needs no end, and one that is too long ends with the input.
	if got := serve(t, strings.NewReader(strings.Repeat("x", MaxLine+1))); len(got) != 1 || !strings.Contains(got[0], "-32600") {
		t.Errorf("a long last line: %q", got)
	}
}

// A client that waits for an answer before it sends more gets it.
func TestAnswersAtOnce(t *testing.T) {
	requests, send := io.Pipe()
	receive, answers := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- Serve(requests, answers, methods)
		answers.Close()
	}()
	dec := json.NewDecoder(receive)
	for id := range 3 {
		go io.WriteString(send, `{"jsonrpc":"2.0","id":`+string(rune('0'+id))+`,"method":"nothing"}`+"\n")
		var answer struct{ ID int }
		if err := dec.Decode(&answer); err != nil || answer.ID != id {
			t.Fatalf("answer %d: %+v, %v", id, answer, err)
		}
	}
	send.Close()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the end of the input does not end it")
	}
}

func TestServeErrors(t *testing.T) {
	broken := errors.New("broken")
	if err := Serve(iotest.ErrReader(broken), io.Discard, methods); !errors.Is(err, broken) {
		t.Errorf("an input that cannot be read: %v", err)
	}
	full := writerFunc(func([]byte) (int, error) { return 0, broken })
	if err := Serve(strings.NewReader("1\n"), full, methods); !errors.Is(err, broken) {
		t.Errorf("an output that cannot be written: %v", err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// FuzzServe: whatever comes, every answer is one line of JSON that answers something, there are never more of them than
// lines, and a request at the end is answered as if nothing had come before.
func FuzzServe(f *testing.F) {
	for _, seed := range []string{
		"", "\n", "{}", "[]", `{"jsonrpc":"2.0","id":1,"method":"echo","params":{"text":"x"}}`, `{"jsonrpc":"2.0","id":"\ud800","method":"nothing"}`,
		"{\"jsonrpc\":\"2.0\",\"id\":1,\n", `{"jsonrpc":"2.0","method":"nothing"}`, `{"jsonrpc":"2.0","id":1e400,"method":"nothing"}`, "\"\\u0000\"", "\xff\xfe",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		lines := bytes.Count(input, []byte("\n")) + 1
		last := `{"jsonrpc":"2.0","id":"last","method":"echo","params":{"text":"end"}}`
		got := serve(t, io.MultiReader(bytes.NewReader(input), strings.NewReader("\n"+last)))
		if len(got) > lines+1 {
			t.Errorf("%d answers to %d lines", len(got), lines+1)
		}
		for i, line := range got {
			var answer map[string]json.RawMessage
			if err := json.Unmarshal([]byte(line), &answer); err != nil {
				t.Fatalf("answer %q: %v", line, err)
			}
			_, result := answer["result"]
			_, failure := answer["error"]
			if answer["id"] == nil || string(answer["jsonrpc"]) != `"2.0"` || result == failure || len(answer) != 3 {
				t.Errorf("answer %q is none", line)
			}
			if i == len(got)-1 && line != `{"jsonrpc":"2.0","id":"last","result":"end"}` {
				t.Errorf("the last answer is %q", line)
			}
		}
	})
}

// FuzzMembers compares with encoding/json, which reads an object into a map by exact names, too.
func FuzzMembers(f *testing.F) {
	for _, seed := range []string{`{}`, ` { "a" : [1, {"b":"]}"}] , "\u0062":"\\\"" ,"c":-1e5}`, `{"":null,"a":{}}`, `[]`, `1 `, `"{"`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if !json.Valid(text) {
			return
		}
		var want map[string]json.RawMessage
		object := json.Unmarshal(text, &want) == nil && want != nil
		got, err := members(text)
		if err != nil {
			if object && !strings.Contains(err.Error(), "twice") {
				t.Errorf("%q: %v", text, err)
			}
			return
		}
		if diff := cmp.Diff(want, got); !object || diff != "" {
			t.Errorf("%q (-want +got):\n%s", text, diff)
		}
	})
}

func BenchmarkServe(b *testing.B) {
	line := `{"jsonrpc":"2.0","id":1,"method":"echo","params":{"text":"src/main.go"}}` + "\n"
	b.SetBytes(int64(len(line)))
	if err := Serve(io.LimitReader(&repeat{text: line}, int64(b.N*len(line))), io.Discard, methods); err != nil {
		b.Fatal(err)
	}
}

// repeat gives a text again and again.
type repeat struct {
	text string
	at   int
}

func (r *repeat) Read(p []byte) (int, error) {
	n := copy(p, r.text[r.at:])
	r.at = (r.at + n) % len(r.text)
	return n, nil
}
