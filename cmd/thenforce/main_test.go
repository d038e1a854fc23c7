// SPDX-License-Identifier: Apache-2.0

package main

import "testing"

// A command line that begins with a command's name has that command, and no other is made.
func TestCommandsByName(t *testing.T) {
	all := newApp(nil)
	for name, command := range all.commands() {
		if got := command().Name(); got != name {
			t.Errorf("%s is listed as %s", got, name)
		}
		app := newApp([]string{name, "--help"})
		if commands := app.root.Commands(); len(commands) != 1 || commands[0].Name() != name {
			t.Errorf("%s: %v", name, commands)
		}
	}
	for _, args := range [][]string{{"--json", "status"}, {"help", "run"}, {"__complete", "r"}, {"nothing"}, {"-h"}, {""}} {
		if got, want := len(newApp(args).root.Commands()), len(all.commands())+len(extra); got != want {
			t.Errorf("%q: %d commands, want %d", args, got, want)
		}
	}
}
