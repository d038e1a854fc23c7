//go:build linux

package main

import (
	"fmt"
	"strings"
)

// profile is a way to boot. Tests that need one that is not the default say so
// by their name.
type profile struct {
	name string
	// prefix begins the names of the tests that run in this profile.
	prefix string
	// cmdline is added to the kernel's.
	cmdline string
	// full asks for the full guest, systemd also for systemd as its process 1.
	full, systemd bool
	// cpus is their number where --smp does not say; 0 means 1.
	cpus int
}

// profilePrefix begins the names of all tests that do not run in the default
// profile.
const profilePrefix = "TestProfile"

// profiles is the table of ways to boot. The guest finds the name in
// THENFORCE_VM_PROFILE.
var profiles = []profile{
	{name: "default", prefix: "Test"},
	// bpf is on Debian's built-in list; lsm= replaces the list.
	{name: "nolsm", prefix: profilePrefix + "NoLSM", cmdline: "lsm=lockdown,capability,yama,apparmor"},
	{name: "full-nolsm", prefix: profilePrefix + "ContainersNoLSM", cmdline: "lsm=lockdown,capability,yama,apparmor", full: true},
	{name: "lockdown", prefix: profilePrefix + "Lockdown", cmdline: "lockdown=confidentiality"},
	{name: "full", prefix: profilePrefix + "Full", full: true},
	{name: "two", prefix: profilePrefix + "Two", cpus: 2},
	{name: "systemd", prefix: profilePrefix + "Systemd", full: true, systemd: true},
}

// profileOf returns the profile that a test runs in.
func profileOf(testName string) (profile, error) {
	if !strings.HasPrefix(testName, profilePrefix) {
		return profiles[0], nil
	}
	for _, p := range profiles[1:] {
		if strings.HasPrefix(testName, p.prefix) {
			return p, nil
		}
	}
	return profile{}, fmt.Errorf("%s: no boot profile has a prefix of that name", testName)
}

// findProfile returns the profile of that name.
func findProfile(name string) (profile, error) {
	for _, p := range profiles {
		if p.name == name {
			return p, nil
		}
	}
	var known []string
	for _, p := range profiles {
		known = append(known, p.name)
	}
	return profile{}, fmt.Errorf("no boot profile %q; there are %s", name, strings.Join(known, ", "))
}
