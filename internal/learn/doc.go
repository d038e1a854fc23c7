// Package learn makes a policy of what a monitored run needed ("thenforce policy suggest").
//
// [Read] takes the report of a run in monitor mode, which has an event for every operation that the policy would have
// denied. [Report.Suggest] gives the fewest grants with the fewest rights by which all of them would have been allowed:
//
//   - An existing object that was read, written or executed is granted itself; one in which names came or went is a
//     directory, and gets the rights for that.
//   - Four or more of the same directory become one grant of that directory, and so on upwards: a cache has other files at
//     its next run. Directories in which everything lies, such as / or a home, are never reached this way.
//   - A grant inside another has the rights of both, because of two grants the nearest decides alone.
//
// What no grant can allow (mounting, signals to others, devices) is listed and left out.
package learn
