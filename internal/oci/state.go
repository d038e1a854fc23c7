package oci

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// stateBytes bounds what is read of a state. Annotations are the only part without a natural limit.
const stateBytes = 1 << 20

// Stage is what the hook is called for.
type Stage int

const (
	Create Stage = iota // createRuntime: make the jail
	Stop                // poststop: end it
)

// ReadState reads the state of a container, which a runtime writes to the standard input of each hook (runtime.md,
// "State"). The stage shows in the status: a hook is not told it in any other way. Runtimes call a container "creating"
// or "created" in createRuntime (runc the first, crun the second).
func ReadState(r io.Reader) (specs.State, Stage, error) {
	var state specs.State
	fail := func(err error) (specs.State, Stage, error) {
		return specs.State{}, 0, fmt.Errorf("read the container's state: %w", err)
	}
	text, err := io.ReadAll(io.LimitReader(r, stateBytes+1))
	switch {
	case err != nil:
		return fail(err)
	case len(text) > stateBytes:
		return fail(fmt.Errorf("it is longer than %d bytes", stateBytes))
	case len(text) == 0:
		return fail(errors.New("standard input is empty: this command is for container runtimes to call (thenforce hook --help)"))
	}
	if err := json.Unmarshal(text, &state); err != nil {
		return fail(err)
	}
	switch {
	case state.ID == "":
		return fail(errors.New("it has no id"))
	case !path.IsAbs(state.Bundle):
		return fail(fmt.Errorf("container %s: bundle %q is not an absolute path", state.ID, state.Bundle))
	}
	switch state.Status {
	case specs.StateCreating, specs.StateCreated:
		if state.Pid <= 0 {
			return fail(fmt.Errorf("container %s: it has no process: call this hook in the stage createRuntime", state.ID))
		}
		return state, Create, nil
	case specs.StateStopped:
		return state, Stop, nil
	}
	return fail(fmt.Errorf("container %s: status %q is that of no stage this hook is for: call it in createRuntime and poststop", state.ID, state.Status))
}
