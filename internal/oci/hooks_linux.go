package oci

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// killAfter is after how many seconds a runtime is to kill the hook, which fails the container. The hook itself is done
// long before; the first one after a boot loads and proves the programs, too.
const killAfter = 60

// hooksFile is a file of hooks.d, oci-hooks(5).
type hooksFile struct {
	Version string     `json:"version"`
	Hook    specs.Hook `json:"hook"`
	When    struct {
		Always bool `json:"always"`
	} `json:"when"`
	Stages []string `json:"stages"`
}

// HooksFileName is the name of the file that [Install] writes.
const HooksFileName = "thenforce.json"

// Install writes the file by which podman and CRI-O call executable as a hook of every container. Which of them it acts on
// is for hook.yaml to say.
func Install(dir, executable string) error {
	var file hooksFile
	file.Version = "1.0.0"
	file.Hook = hook(executable)
	file.When.Always = true
	file.Stages = []string{"createRuntime", "poststop"}
	text, err := json.MarshalIndent(file, "", "  ")
	if err != nil {
		return err
	}
	return replaceFile(filepath.Join(dir, HooksFileName), append(text, '\n'), 0o644)
}

func hook(executable string) specs.Hook {
	timeout := killAfter
	return specs.Hook{Path: executable, Args: []string{filepath.Base(executable), "hook"}, Timeout: &timeout}
}

// Inject adds executable as a hook to the config.json of a bundle. Twice is as once.
func Inject(bundle, executable string) error {
	name := filepath.Join(bundle, "config.json")
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	text, err := io.ReadAll(io.LimitReader(f, configBytes))
	if err != nil {
		return err
	}
	text, err = inject(text, hook(executable))
	if err != nil {
		return &fs.PathError{Op: "add the hook to", Path: name, Err: err}
	}
	return replaceFile(name, text, info.Mode().Perm())
}

// inject adds a hook to the text of a config.json. What it does not know, it leaves as it is.
func inject(text []byte, own specs.Hook) ([]byte, error) {
	var config map[string]json.RawMessage
	if err := json.Unmarshal(text, &config); err != nil {
		return nil, err
	}
	if config == nil {
		return nil, errors.New("it is no object")
	}
	hooks := map[string]json.RawMessage{}
	if raw, ok := config["hooks"]; ok && string(raw) != "null" {
		if err := json.Unmarshal(raw, &hooks); err != nil {
			return nil, err
		}
	}
	for _, stage := range []string{"createRuntime", "poststop"} {
		var list []json.RawMessage
		if raw, ok := hooks[stage]; ok {
			if err := json.Unmarshal(raw, &list); err != nil {
				return nil, fmt.Errorf("hooks.%s: %w", stage, err)
			}
		}
		entry, err := json.Marshal(own)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(list, func(have json.RawMessage) bool { return string(have) == string(entry) }) {
			continue
		}
		if hooks[stage], err = json.Marshal(append(list, entry)); err != nil {
			return nil, err
		}
	}
	var err error
	if config["hooks"], err = json.Marshal(hooks); err != nil {
		return nil, err
	}
	return json.Marshal(config)
}

// replaceFile writes a file aside and renames it, so that a reader finds all of the old one or all of the new.
func replaceFile(name string, text []byte, mode os.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Chmod(mode), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// withValue are the global flags of runc and crun that take a value, as the next argument where there is no "=".
var withValue = []string{"--root", "--log", "--log-format", "--log-level", "--criu", "--rootless", "--cgroup-manager"}

// plain are those that take none.
var plain = []string{"--debug", "--systemd-cgroup", "--help", "-h", "--version", "-v"}

// NewBundle says which bundle a call of a runtime makes a container of; "" where it makes none. A call that is not
// understood is an error, for it might make one: the container would be without the hook.
func NewBundle(args []string) (string, error) {
	rest := args
	for len(rest) > 0 && strings.HasPrefix(rest[0], "-") {
		flag, _, inline := strings.Cut(rest[0], "=")
		rest = rest[1:]
		switch {
		case slices.Contains(withValue, flag) && !inline:
			if len(rest) == 0 {
				return "", nil
			}
			rest = rest[1:]
		case !slices.Contains(withValue, flag) && !slices.Contains(plain, flag):
			return "", fmt.Errorf("flag %s of the runtime is unknown, so its command cannot be told", flag)
		}
	}
	if len(rest) == 0 || !slices.Contains([]string{"create", "run", "restore"}, rest[0]) {
		return "", nil
	}
	if rest[0] == "restore" {
		// A restored process goes on where it was, without an exec by which it would be armed.
		return "", errors.New("a restored container cannot be put into a jail: its processes never execute anything anew")
	}
	bundle := "."
	for i, arg := range rest {
		flag, value, inline := strings.Cut(arg, "=")
		if flag != "--bundle" && flag != "-b" {
			continue
		}
		switch {
		case inline:
			bundle = value
		case i+1 < len(rest):
			bundle = rest[i+1]
		}
	}
	return bundle, nil
}
