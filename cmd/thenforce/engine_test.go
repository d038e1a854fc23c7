// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/thenforce/thenforce/internal/rpc"
	"github.com/thenforce/thenforce/pkg/engine"
)

// client calls a session as a program in another language does.
type client struct {
	t       *testing.T
	session *session
}

func newClient(t *testing.T, journal string) *client {
	t.Helper()
	s, err := newSession(journal)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	return &client{t, s}
}

type reply struct {
	Result json.RawMessage
	Error  *struct {
		Code    int
		Message string
		Data    map[string]any
	}
}

// call sends one request, with parameters as JSON text in which %q and the like stand for args.
func (c *client) call(method, params string, args ...any) reply {
	c.t.Helper()
	var out bytes.Buffer
	line := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":%s}`, method, fmt.Sprintf(params, args...))
	if err := rpc.Serve(strings.NewReader(line), &out, c.session.methods()); err != nil {
		c.t.Fatal(err)
	}
	var r reply
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		c.t.Fatalf("%s: %v: %q", line, err, out.String())
	}
	return r
}

// result is the result of a call that must have one.
func (c *client) result(method, params string, args ...any) json.RawMessage {
	c.t.Helper()
	r := c.call(method, params, args...)
	if r.Error != nil {
		c.t.Fatalf("%s: %+v", method, r.Error)
	}
	return r.Result
}

func (c *client) object(method, params string, args ...any) map[string]any {
	c.t.Helper()
	var object map[string]any
	if text := c.result(method, params, args...); json.Unmarshal(text, &object) != nil {
		c.t.Fatalf("%s: %s is not an object", method, text)
	}
	return object
}

// fails makes a call that must be answered with an error.
func (c *client) fails(code int, method, params string, args ...any) map[string]any {
	c.t.Helper()
	r := c.call(method, params, args...)
	if r.Error == nil {
		c.t.Errorf("%s %s: %s, want error %d", method, fmt.Sprintf(params, args...), r.Result, code)
		return nil
	}
	if r.Error.Code != code {
		c.t.Errorf("%s: %+v, want error %d", method, r.Error, code)
	}
	return r.Error.Data
}

func (c *client) bind(root string) (binding string) {
	c.t.Helper()
	return c.object("bind", `{"root":%q}`, root)["workspaceId"].(string)
}

// bindings makes a workspace beside a directory that is outside.
func bindings(t *testing.T) (workspace, outside string) {
	t.Helper()
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	workspace, outside = filepath.Join(base, "ws"), filepath.Join(base, "outside")
	for _, dir := range []string{filepath.Join(workspace, "dir"), outside} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{filepath.Join(workspace, "file"), filepath.Join(outside, "secret")} {
		if err := os.WriteFile(file, []byte("kept"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return workspace, outside
}

func TestEngineBind(t *testing.T) {
	workspace, _ := bindings(t)
	c := newClient(t, "")
	got := c.object("bind", `{"root":%q}`, workspace)
	if got["bindingStatus"] != "bound" || got["canonicalRoot"] != workspace || got["blockedReason"] != nil {
		t.Errorf("bind: %v", got)
	}
	if id, ok := got["workspaceId"].(string); !ok || len(id) != 16 {
		t.Errorf("workspaceId: %v", got["workspaceId"])
	}
	// A blocked binding is an answer, and everything in it is denied.
	got = c.object("bind", `{"root":%q}`, filepath.Join(workspace, "nowhere"))
	if got["bindingStatus"] != "blocked" || got["blockedReason"] == nil {
		t.Errorf("bind of a missing root: %v", got)
	}
	if d := c.object("checkContainment", `{"binding":%q,"target":"f"}`, got["workspaceId"]); d["outcome"] != "denied" || d["code"] != "binding-blocked" {
		t.Errorf("in a blocked binding: %v", d)
	}
	c.fails(-32602, "bind", `{}`)
	c.fails(-32602, "bind", `{"root":1}`)
	c.fails(-32602, "bind", `{"root":"a","path":"b"}`)
}

func TestEngineCheckContainment(t *testing.T) {
	workspace, outside := bindings(t)
	c := newClient(t, "")
	binding := c.bind(workspace)
	for _, test := range []struct{ target, outcome, code string }{
		{"file", "allowed", "within"},
		{"dir/new", "allowed", "within"},
		{"", "allowed", "within"},
		{"../outside/secret", "denied", "outside"},
		{filepath.Join(outside, "secret"), "denied", "outside"},
		{"a\x00b", "denied", "nul-in-path"},
		{"file/x", "denied", "not-directory"},
		{"nodir/x", "enforcement-unverified", "missing-component"},
	} {
		target, _ := json.Marshal(test.target)
		got := c.object("checkContainment", `{"binding":%q,"target":%s}`, binding, target)
		if got["outcome"] != test.outcome || got["code"] != test.code {
			t.Errorf("%q: %v, want %s, %s", test.target, got, test.outcome, test.code)
		}
	}
	c.fails(-32000, "checkContainment", `{"binding":"0000000000000000","target":"file"}`)
	c.fails(-32602, "checkContainment", `{"binding":%q}`, binding)
	c.fails(-32602, "checkContainment", `{"binding":%q,"target":"f","options":{"followsymlinks":1}}`, binding)
	// U+FFFD may stand for anything; the bytes do not.
	c.fails(-32602, "checkContainment", `{"binding":%q,"target":"a\ufffd"}`, binding)
	got := c.object("checkContainment", `{"binding":%q,"target":"a\ufffd","targetBytes":%q}`, binding, base64.StdEncoding.EncodeToString([]byte("a\xff")))
	if runtime.GOOS == "linux" && (got["outcome"] != "allowed" || got["resolvedPathBytes"] != base64.StdEncoding.EncodeToString([]byte(workspace+"/a\xff"))) {
		t.Errorf("a name that is not UTF-8: %v", got)
	}
}

func TestEngineFiles(t *testing.T) {
	workspace, outside := bindings(t)
	c := newClient(t, "")
	binding := c.bind(workspace)
	content := []byte("\x00\xffany bytes")
	write := `{"binding":%q,"target":%q,"contentBase64":%q}`
	for _, target := range []string{"new", "file"} {
		if got := c.object("writeFile", write, binding, target, base64.StdEncoding.EncodeToString(content)); got["written"] != float64(len(content)) {
			t.Errorf("write %s: %v", target, got)
		}
		if text, err := os.ReadFile(filepath.Join(workspace, target)); !bytes.Equal(text, content) {
			t.Errorf("%s holds %q, %v", target, text, err)
		}
		if got := c.object("readFile", `{"binding":%q,"target":%q}`, binding, target); got["contentBase64"] != base64.StdEncoding.EncodeToString(content) {
			t.Errorf("read %s: %v", target, got)
		}
	}
	if got := c.object("writeFile", write, binding, "file", ""); got["written"] != 0.0 {
		t.Errorf("write nothing: %v", got)
	}
	if got := c.object("readFile", `{"binding":%q,"target":"file"}`, binding); got["contentBase64"] != "" {
		t.Errorf("read an empty file: %v", got)
	}

	for _, test := range []struct {
		target string
		rpc    int
		code   string
	}{
		{"../outside/secret", -32001, "outside"},
		{"nodir/f", -32001, "missing-component"},
		{"file/f", -32001, "not-directory"},
	} {
		for _, method := range []string{"readFile", "writeFile"} {
			params := `{"binding":%q,"target":%q}`
			if method == "writeFile" {
				params = `{"binding":%q,"target":%q,"contentBase64":"eA=="}`
			}
			if data := c.fails(test.rpc, method, params, binding, test.target); data["code"] != test.code {
				t.Errorf("%s %s: %v, want %s", method, test.target, data, test.code)
			}
		}
	}
	if data := c.fails(-32002, "readFile", `{"binding":%q,"target":"nothing"}`, binding); data["code"] != "not-exist" {
		t.Errorf("read what is not there: %v", data)
	}
	if data := c.fails(-32002, "writeFile", write, binding, "dir", "eA=="); data["code"] != "is-directory" {
		t.Errorf("write a directory: %v", data)
	}
	c.fails(-32602, "writeFile", `{"binding":%q,"target":"file"}`, binding)
	c.fails(-32602, "writeFile", write, binding, "file", "no base64!")
	if text, _ := os.ReadFile(filepath.Join(outside, "secret")); string(text) != "kept" {
		t.Errorf("the file outside holds %q", text)
	}

	large, err := os.Create(filepath.Join(workspace, "large"))
	if err != nil {
		t.Fatal(err)
	}
	defer large.Close()
	if err := large.Truncate(maxRead + 1); err != nil {
		t.Fatal(err)
	}
	if data := c.fails(-32002, "readFile", `{"binding":%q,"target":"large"}`, binding); data["code"] != "too-large" {
		t.Errorf("read a file that is too large: %v", data)
	}
}

// What was bound is replaced: nothing is read or written there any more.
func TestEngineRootReplaced(t *testing.T) {
	workspace, _ := bindings(t)
	c := newClient(t, "")
	binding := c.bind(workspace)
	if err := os.Rename(workspace, workspace+".old"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(workspace, 0o755); err != nil {
		t.Fatal(err)
	}
	if data := c.fails(-32001, "writeFile", `{"binding":%q,"target":"f","contentBase64":"eA=="}`, binding); data["outcome"] != "conflict" || data["code"] != "root-changed" {
		t.Errorf("write: %v", data)
	}
	if _, err := os.Lstat(filepath.Join(workspace, "f")); err == nil {
		t.Error("it was written all the same")
	}
	// Only the caller can say that the new one is meant.
	if c.bind(workspace) != binding {
		t.Error("the same path has another id")
	}
	c.result("writeFile", `{"binding":%q,"target":"f","contentBase64":"eA=="}`, binding)
}

func TestEngineDecide(t *testing.T) {
	workspace, outside := bindings(t)
	c := newClient(t, "")
	decide := func(available bool, policy, path, op string) map[string]any {
		t.Helper()
		return c.object("decide", `{"policy":{"workspace":%q,"presets":["none"]%s},"path":%q,"op":%q,"enforcementAvailable":%t}`, workspace, policy, path, op, available)
	}
	grant := fmt.Sprintf(`,"grants":[{"path":%q,"rights":"ro","reason":"r","expires":"1h"},{"path":"../gone","rights":"rw","optional":true}]`, outside)
	for _, test := range []struct{ policy, path, op, outcome, code string }{
		{``, "file", "write", "allowed", "within"},
		{`,"workspaceRights":"ro"`, "file", "write", "denied", "rights"},
		{`,"deny":["dir"]`, "dir/x", "read", "denied", "denied-name"},
		{``, "../outside/secret", "read", "denied", "outside"},
		{grant, "../outside/secret", "read", "allowed", "within"},
		{grant, "../outside/secret", "write", "denied", "rights"},
		{`,"version":1,"mode":"monitor","symlinks":"refuse","follow":{"symlinks":true}`, "file", "read", "allowed", "within"},
	} {
		if got := decide(true, test.policy, test.path, test.op); got["outcome"] != test.outcome || got["code"] != test.code {
			t.Errorf("%s %s under %s: %v, want %s, %s", test.op, test.path, test.policy, got, test.outcome, test.code)
		}
	}
	if got := decide(false, ``, "file", "read"); got["outcome"] != "enforcement-unverified" || got["code"] != "hard-boundary" {
		t.Errorf("without enforcement: %v", got)
	}
	// Both ends of a rename.
	got := c.object("decide", `{"policy":{"workspace":%q,"presets":["none"]},"path":"file","to":"../outside/f","op":"rename","enforcementAvailable":true}`, workspace)
	if got["outcome"] != "denied" || got["to"].(map[string]any)["code"] != "outside" {
		t.Errorf("rename to the outside: %v", got)
	}

	if data := c.fails(-32003, "decide", `{"policy":{"workspace":%q},"path":"f","op":"read"}`, filepath.Join(workspace, "nowhere")); data["field"] != "workspace" {
		t.Errorf("a workspace that is not there: %v", data)
	}
	for _, params := range []string{
		`{"path":"f","op":"read"}`,
		`{"policy":{},"path":"f","op":"read"}`,
		`{"policy":{"workspace":"."},"op":"read"}`,
		`{"policy":{"workspace":"."},"path":"f"}`,
		`{"policy":{"workspace":"."},"path":"f","op":"chew"}`,
		`{"policy":{"workspace":"."},"path":"f","op":"read","to":"g"}`,
		`{"policy":{"workspace":".","version":2},"path":"f","op":"read"}`,
		`{"policy":{"workspace":".","resources":{}},"path":"f","op":"read"}`,
		`{"policy":{"workspace":".","workspaceRights":"none"},"path":"f","op":"read"}`,
		`{"policy":{"workspace":".","mode":"quiet"},"path":"f","op":"read"}`,
		`{"policy":{"workspace":".","symlinks":"follow"},"path":"f","op":"read"}`,
		`{"policy":{"workspace":".","presets":["all"]},"path":"f","op":"read"}`,
		`{"policy":{"workspace":".","grants":[{"path":"."}]},"path":"f","op":"read"}`,
		`{"policy":{"workspace":".","grants":[{"path":".","rights":"zz"}]},"path":"f","op":"read"}`,
		`{"policy":{"workspace":".","grants":[{"path":".","rights":"ro","expires":"soon"}]},"path":"f","op":"read"}`,
		`{"policy":{"workspace":".","grants":[{"path":".","rights":"ro","expires":"-1h"}]},"path":"f","op":"read"}`,
	} {
		c.fails(-32602, "decide", "%s", params)
	}
}

// Where the caller does not say whether enforcement is available, the host's real state counts.
func TestEngineEnforcementOfThisHost(t *testing.T) {
	workspace, _ := bindings(t)
	c := newClient(t, "")
	binding := c.bind(workspace)
	for _, state := range []engine.EnforcementState{engine.Unverified, engine.Verified} {
		asked := 0
		c.session.status = func() (engine.EnforcementStatus, error) {
			asked++
			return engine.EnforcementStatus{State: state}, nil
		}
		available := state == engine.Verified
		boundary := c.object("checkHardBoundary", `{"workspaceRoot":"/w","candidatePath":"a"}`)
		if (boundary["outcome"] == "allow") != available || !available && boundary["reason"] != "ENFORCEMENT UNVERIFIED" {
			t.Errorf("%v: boundary %v", state, boundary)
		}
		if got := c.object("snapshot", `{"binding":%q,"target":"file"}`, binding); got["enforcementAvailable"] != available {
			t.Errorf("%v: snapshot %v", state, got)
		}
		if got := c.object("decide", `{"policy":{"workspace":%q,"presets":["none"]},"path":"file","op":"read"}`, workspace); (got["outcome"] == "allowed") != available {
			t.Errorf("%v: decide %v", state, got)
		}
		if got := c.object("enforcementStatus", `{}`); got["state"] != state.String() {
			t.Errorf("%v: status %v", state, got)
		}
		if asked != 4 {
			t.Errorf("the host was asked %d times, want 4: its state may change between calls", asked)
		}
		// What is stated counts, also that it is not.
		if got := c.object("checkHardBoundary", `{"workspaceRoot":"/w","enforcementAvailable":%t}`, !available); (got["outcome"] == "allow") == available {
			t.Errorf("stated against %v: %v", state, got)
		}
		if asked != 4 {
			t.Error("the host was asked though the caller stated it")
		}
	}
	c.session.status = func() (engine.EnforcementStatus, error) {
		return engine.EnforcementStatus{State: engine.Verified}, io.ErrUnexpectedEOF
	}
	c.fails(-32005, "checkHardBoundary", `{"workspaceRoot":"/w"}`)
	c.fails(-32005, "enforcementStatus", `{}`)
}

func TestEngineHardBoundaries(t *testing.T) {
	c := newClient(t, "")
	for params, want := range map[string]string{
		`"candidatePath":"a\u0000b"`:        "unsafe-path",
		`"candidatePath":"../x"`:            "workspace-escape",
		`"candidatePath":""`:                "",
		`"commandClass":"host-threatening"`: "host-threatening-command",
		`"networkDestination":""`:           "unallowlisted-network-destination",
		`"networkDestination":"h","allowlistedNetworkDestinations":["h"]`: "",
		`"quotaExceeded":true`:                                              "quota-exceeded",
		`"credentialGroup":"a","expectedCredentialGroup":"b"`:               "wrong-credential-group",
		`"networkDestination":null,"candidatePath":null,"commandClass":"x"`: "",
	} {
		got := c.object("checkHardBoundary", `{"workspaceRoot":"/w","enforcementAvailable":true,%s}`, params)
		if reason, _ := got["reason"].(string); reason != want || (want == "") != (got["outcome"] == "allow") {
			t.Errorf("%s: %v, want %q", params, got, want)
		}
	}
}

func TestEngineRevalidate(t *testing.T) {
	workspace, _ := bindings(t)
	c := newClient(t, "")
	binding := c.bind(workspace)
	snapshot := func(available bool) json.RawMessage {
		t.Helper()
		return c.result("snapshot", `{"binding":%q,"target":"file","enforcementAvailable":%t}`, binding, available)
	}
	stale := func(original, current json.RawMessage) map[string]any {
		t.Helper()
		return c.object("revalidate", `{"original":%s,"current":%s}`, original, current)
	}
	original := snapshot(true)
	if got := stale(original, snapshot(true)); got["stale"] != false {
		t.Errorf("nothing changed: %v", got)
	}
	if got := stale(original, snapshot(false)); got["reason"] != "enforcement-state-changed" {
		t.Errorf("enforcement lost: %v", got)
	}
	file := filepath.Join(workspace, "file")
	if err := os.Rename(file, file+".old"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("kept"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := stale(original, snapshot(true)); got["stale"] != true || got["reason"] != "resource-identity-changed" {
		t.Errorf("the file was replaced: %v", got)
	}
	c.fails(-32602, "revalidate", `{"original":%s}`, original)
	c.fails(-32602, "revalidate", `{"original":%s,"current":null}`, original)
}

func TestEngineExpansions(t *testing.T) {
	workspace, _ := bindings(t)
	journal := filepath.Join(t.TempDir(), "journal")
	c := newClient(t, journal)
	id := c.bind(workspace)
	file := filepath.Join(workspace, "file")
	granted := c.object("expansion.grant", `{"resourceIdentity":%q,"workspaceId":%q,"actionClasses":["write_file"],"reason":"why","expiresAt":null}`, file, id)
	expansion := granted["expansionId"].(string)
	if granted["revoked"] != false || granted["expiresAt"] != nil || granted["revokedAt"] != nil || granted["reason"] != "why" {
		t.Errorf("granted: %v", granted)
	}
	active := func(class string) string {
		t.Helper()
		return string(c.result("expansion.isActive", `{"expansionId":%q,"resourceIdentity":%q,"workspaceId":%q,"actionClass":%q}`, expansion, file, id, class))
	}
	if active("write_file") != "true" || active("delete") != "false" {
		t.Error("active for what it names, and only that")
	}
	// It adds to what a policy grants.
	decide := func() map[string]any {
		t.Helper()
		return c.object("decide", `{"policy":{"workspace":%q,"presets":["none"],"workspaceRights":"ro"},"path":"file","op":"write","enforcementAvailable":true}`, workspace)
	}
	if got := decide(); got["outcome"] != "allowed" || got["grant"].(map[string]any)["expansionId"] != expansion {
		t.Errorf("decide with the expansion: %v", got)
	}
	if got := c.object("expansion.get", `{"expansionId":%q}`, expansion); got["resourceIdentity"] != file {
		t.Errorf("get: %v", got)
	}
	if got := string(c.result("expansion.get", `{"expansionId":"nothing"}`)); got != "null" {
		t.Errorf("get of nothing: %s", got)
	}
	for i, want := range []string{"true", "false"} {
		if got := string(c.result("expansion.revoke", `{"expansionId":%q}`, expansion)); got != want {
			t.Errorf("revoke %d: %s, want %s", i, got, want)
		}
	}
	if active("write_file") != "false" || decide()["code"] != "rights" {
		t.Error("it counts though it was revoked")
	}
	// The instant of its expiry is after its end.
	expires := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	expansion = c.object("expansion.grant", `{"resourceIdentity":%q,"workspaceId":%q,"actionClasses":["read_file"],"reason":"","expiresAt":%q}`,
		file, id, expires.Format(time.RFC3339))["expansionId"].(string)
	for now, want := range map[time.Time]string{expires: "false", expires.Add(-time.Nanosecond): "true"} {
		got := string(c.result("expansion.isActive", `{"expansionId":%q,"resourceIdentity":%q,"workspaceId":%q,"actionClass":"read_file","now":%q}`,
			expansion, file, id, now.Format(time.RFC3339Nano)))
		if got != want {
			t.Errorf("at %s: %s, want %s", now, got, want)
		}
	}
	for _, params := range []string{
		`{"workspaceId":"w","actionClasses":["read_file"],"reason":""}`,
		`{"resourceIdentity":"","workspaceId":"w","actionClasses":["read_file"],"reason":""}`,
		`{"resourceIdentity":"/f","actionClasses":["read_file"],"reason":""}`,
		`{"resourceIdentity":"/f","workspaceId":"w","reason":""}`,
		`{"resourceIdentity":"/f","workspaceId":"w","actionClasses":["read_file"],"expiresAt":"soon"}`,
		`{"resourceIdentity":"/f","workspaceId":"w","actionClasses":["read_file"],"expiresAt":"0001-01-01T00:00:00Z"}`,
	} {
		c.fails(-32602, "expansion.grant", "%s", params)
	}

	// A later session finds them in the journal, as history.
	c.session.registry.Close()
	c = newClient(t, journal)
	var list []map[string]any
	if err := json.Unmarshal(c.result("expansion.list", `{}`), &list); err != nil || len(list) != 2 {
		t.Fatalf("list: %v, %v", list, err)
	}
	if active("read_file") != "false" {
		t.Error("an expansion of an earlier session is active")
	}
}

func TestEngineVersion(t *testing.T) {
	c := newClient(t, "")
	if got := c.object("version", `{}`); got["version"] == "" || got["os"] != runtime.GOOS || got["platform"] == nil {
		t.Errorf("version: %v", got)
	}
	c.fails(-32602, "version", `{"x":1}`)
}

// BenchmarkEngine is what a call costs when requests wait in the pipe, the protocol included.
func BenchmarkEngine(b *testing.B) {
	workspace, err := filepath.EvalSymlinks(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	deep := filepath.Join(workspace, "a", "b", "c", "d")
	if err := os.MkdirAll(deep, 0o755); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(deep, "file"), []byte("content"), 0o644); err != nil {
		b.Fatal(err)
	}
	s, err := newSession("")
	if err != nil {
		b.Fatal(err)
	}
	defer s.close()
	binding := engine.Bind(workspace, s.probes)
	s.bindings[binding.WorkspaceID] = binding
	for _, call := range []struct{ method, params string }{
		{"checkContainment", `{"binding":"` + binding.WorkspaceID + `","target":"a/b/c/d/file"}`},
		{"checkHardBoundary", `{"workspaceRoot":"/w","candidatePath":"a/b","enforcementAvailable":true}`},
		{"enforcementStatus", `{}`},
		{"snapshot", `{"binding":"` + binding.WorkspaceID + `","target":"a/b/c/d/file","enforcementAvailable":true}`},
		{"readFile", `{"binding":"` + binding.WorkspaceID + `","target":"a/b/c/d/file"}`},
		{"decide", fmt.Sprintf(`{"policy":{"workspace":%q,"presets":["none"]},"path":"a/b/c/d/file","op":"read","enforcementAvailable":true}`, workspace)},
		{"decide-system", fmt.Sprintf(`{"policy":{"workspace":%q},"path":"a/b/c/d/file","op":"read","enforcementAvailable":true}`, workspace)},
	} {
		b.Run(call.method, func(b *testing.B) {
			method, _, _ := strings.Cut(call.method, "-")
			line := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":%s}`, method, call.params) + "\n"
			var out bytes.Buffer
			if err := rpc.Serve(strings.NewReader(line), &out, s.methods()); err != nil || strings.Contains(out.String(), `"error"`) {
				b.Fatalf("%v: %s", err, out.String())
			}
			requests := io.LimitReader(&repeated{text: line}, int64(b.N)*int64(len(line)))
			b.ReportAllocs()
			b.ResetTimer()
			if err := rpc.Serve(requests, io.Discard, s.methods()); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
		})
	}
}

// repeated gives a text again and again.
type repeated struct {
	text string
	at   int
}

func (r *repeated) Read(p []byte) (int, error) {
	n := copy(p, r.text[r.at:])
	r.at = (r.at + n) % len(r.text)
	return n, nil
}
