// SPDX-License-Identifier: Apache-2.0

// Package rpc answers JSON-RPC 2.0 requests that come one a line, in the order in which they come.
//
// The rules are those of jsonrpc.org/specification, and stricter: members are called by their exact names and none
// appears twice, parameters are named, a line is at most [MaxLine] bytes of UTF-8, and there are no batches. The
// libraries there are (sourcegraph/jsonrpc2, creachadair/jrpc2) answer out of order, take batches and have no limit.
package rpc

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"
)

// MaxLine is the longest line that is taken, in bytes without its end.
const MaxLine = 1 << 20

// Codes of the specification. A server's own go from -32000 down.
const (
	CodeParse          = -32700
	CodeInvalidRequest = -32600
	CodeNoMethod       = -32601
	CodeInvalidParams  = -32602
	codeInternal       = -32603
)

// An Error is an answer that says what went wrong.
type Error struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
	Data    any    `json:"data,omitempty"`
}

func (e *Error) Error() string { return fmt.Sprintf("%s (code %d)", e.Message, e.Code) }

// InvalidParams says what is wrong with a request's parameters.
func InvalidParams(format string, args ...any) *Error {
	return &Error{Code: CodeInvalidParams, Message: fmt.Sprintf(format, args...)}
}

// A Method answers one kind of request. Its parameters are a JSON object, {} where the request has none.
type Method func(params json.RawMessage) (any, *Error)

// success and failure are what a request is answered with. A result may be null.
type (
	success struct {
		Version string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Result  any             `json:"result"`
	}
	failure struct {
		Version string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Error   *Error          `json:"error"`
	}
)

// Serve answers the lines of in on out until in ends; a line of white space alone is passed over. Answers are flushed
// when no further request waits. It returns an error where in cannot be read or out not written.
func Serve(in io.Reader, out io.Writer, methods map[string]Method) error {
	r, w := bufio.NewReaderSize(in, 64<<10), bufio.NewWriterSize(out, 64<<10)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	var line []byte
	for {
		var whole bool
		var err error
		line, whole, err = readLine(r, line[:0])
		if err != nil && err != io.EOF {
			return errors.Join(err, w.Flush())
		}
		if answer := answerLine(line, whole, methods); answer != nil {
			if err := write(enc, answer); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return w.Flush()
		}
		if r.Buffered() == 0 {
			if err := w.Flush(); err != nil {
				return err
			}
		}
	}
}

// write writes an answer, or that it cannot be said in JSON.
func write(enc *json.Encoder, answer any) error {
	err := enc.Encode(answer)
	if done, ok := answer.(*success); ok && err != nil {
		var unsupported *json.UnsupportedValueError
		var marshaler *json.MarshalerError
		if errors.As(err, &unsupported) || errors.As(err, &marshaler) {
			return enc.Encode(failed(done.ID, &Error{Code: codeInternal, Message: fmt.Sprintf("encode the result: %v", err)}))
		}
	}
	return err
}

// readLine appends the next line to buf, without its end. Of one that is too long it returns a part, and false.
func readLine(r *bufio.Reader, buf []byte) (line []byte, whole bool, err error) {
	whole = true
	for {
		part, err := r.ReadSlice('\n')
		end := err == nil
		if end {
			part = part[:len(part)-1]
		}
		if len(buf)+len(part) > MaxLine {
			whole = false
		}
		if whole {
			buf = append(buf, part...)
		}
		if end || err != bufio.ErrBufferFull {
			return buf, whole, err
		}
	}
}

// answerLine gives the answer to one line, or nil where there is none to give.
func answerLine(line []byte, whole bool, methods map[string]Method) any {
	null := json.RawMessage("null")
	if !whole {
		return failed(null, &Error{Code: CodeInvalidRequest, Message: fmt.Sprintf("the line is longer than %d bytes", MaxLine)})
	}
	line = bytes.TrimSpace(line)
	switch {
	case len(line) == 0:
		return nil
	case !utf8.Valid(line):
		return failed(null, &Error{Code: CodeParse, Message: "the line is not UTF-8"})
	case !json.Valid(line):
		return failed(null, &Error{Code: CodeParse, Message: "the line is not one JSON value"})
	case line[0] == '[':
		return failed(null, &Error{Code: CodeInvalidRequest, Message: "batches are not supported: send one request a line"})
	}
	req, err := parseRequest(line)
	if err != nil {
		return failed(null, &Error{Code: CodeInvalidRequest, Message: err.Error()})
	}
	result, rpcErr := call(req, methods)
	switch {
	case req.id == nil:
		return nil // a notification, and those get no answer whatever comes of them
	case rpcErr != nil:
		return failed(req.id, rpcErr)
	}
	return &success{Version: "2.0", ID: req.id, Result: result}
}

func failed(id json.RawMessage, err *Error) *failure {
	return &failure{Version: "2.0", ID: id, Error: err}
}

// request is a request as it came.
type request struct {
	id     json.RawMessage // nil for a notification
	method string
	params json.RawMessage
}

func parseRequest(line []byte) (request, error) {
	var req request
	found, err := members(line)
	if err != nil {
		return req, err
	}
	version := false
	for name, value := range found {
		switch name {
		case "jsonrpc":
			version = string(value) == `"2.0"`
		case "method":
			if value[0] != '"' || json.Unmarshal(value, &req.method) != nil {
				return req, errors.New("the method is not a string")
			}
		case "id":
			if c := value[0]; c != '"' && c != 'n' && c != '-' && (c < '0' || c > '9') {
				return req, errors.New("the id is not a string, a number or null")
			}
			req.id = value
		case "params":
			req.params = value
		default:
			return req, fmt.Errorf("a request has no member %q", name)
		}
	}
	if _, named := found["method"]; !version || !named {
		return req, errors.New(`a request needs "jsonrpc":"2.0" and a method`)
	}
	return req, nil
}

func call(req request, methods map[string]Method) (any, *Error) {
	method, ok := methods[req.method]
	if !ok {
		return nil, &Error{Code: CodeNoMethod, Message: fmt.Sprintf("there is no method %q", req.method)}
	}
	params := req.params
	switch {
	case params == nil:
		params = json.RawMessage("{}")
	case params[0] != '{':
		return nil, InvalidParams("parameters have names here: send an object")
	}
	return method(params)
}

// Decode reads parameters into the struct that params points to, whose fields have json tags. Names that it has no
// field for are an error.
func Decode(raw json.RawMessage, params any) *Error {
	if !json.Valid(raw) {
		return InvalidParams("the parameters are not JSON")
	}
	found, err := members(raw)
	if err != nil {
		return InvalidParams("%v", err)
	}
	known := fieldNames(params)
	for name := range found {
		if !known[name] {
			return InvalidParams("there is no parameter %q", name)
		}
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(params); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) {
			return InvalidParams("the parameter %s is a %s, not a %s", wrong.Field, wrong.Value, wrong.Type)
		}
		return InvalidParams("%v", err)
	}
	return nil
}
