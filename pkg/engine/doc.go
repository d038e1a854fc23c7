// SPDX-License-Identifier: Apache-2.0

// Package engine decides what lies inside a workspace and what a policy allows.
//
// It is pure. It looks at file systems only through [Probes], knows no kernel
// object, and gives the same answers on every system, for paths of every system:
// the shape of a root, and not the host, decides whether its paths are POSIX or
// Windows paths. A backend enforces what the engine decided; pkg/fallback has the
// live probes and opens files by its answers.
//
// # The questions, and who answers
//
//	which directory is this root?            Bind              -> WorkspaceIdentity
//	does this path lie safely inside?        CheckContainment  -> ContainmentDecision
//	  of many paths                          CheckAll
//	  and what was seen on the way           WalkContainment   -> Walk
//	  or just which object it is             Locate            -> Walk
//	what does this policy come to?           Compile           -> AllowedSets
//	may this be done with this path?         Evaluator.Decide  -> Decision
//	does a boundary stand that none lifts?   CheckHardBoundary -> BoundaryDecision
//	was more granted for a while?            Registry.IsActive
//	is the decision still fresh?             Snapshot, Revalidate
//
// # Answers
//
// There are four outcomes. [Allowed] is the only good one. [Denied] is a reason
// against. [Conflict] is a contradiction: the path is inside, and what it is does
// not fit what is known. [EnforcementUnverified] is a question that could not be
// answered. Nothing unknown is ever allowed: no probe, no mount table, a
// component that cannot be inspected, a binding without identity all end there.
// When a walk meets several, denied outranks enforcement-unverified, and that
// outranks conflict.
//
// Each answer has a [Code], a stable token for programs, and a reason, a sentence
// for people. Codes are only ever added.
//
// # The walk
//
// A target is first judged as text. It is made absolute, starting from the root;
// ".." takes away the name before it; what then lies outside is denied without a
// look at any file. Then every component from the root down is inspected once. A
// link is refused, or followed where the options say so: its target is walked in
// its place, physically, as the kernel does it, and may lead above the root only
// to come back by the root's own names. A mount point is refused, or followed
// where the mount table confirms it: a bind mount on the same device and a file
// mounted on a file are mount points too. Elsewhere a change of device is a
// conflict. The last component may be missing: that is a file to be made.
//
// On Windows a path is refused before all this if it means something else than it
// shows: device names, alternate streams, \\?\ and \\.\, trailing dots and
// spaces, C:x. Names match regardless of case and in NFC there, in NFD on macOS,
// byte by byte elsewhere.
//
// # What a check does not do
//
// It says what was true while it looked. Between a check and an open anybody may
// put a link in the way, so open the resolved path without following links and
// compare what you got with the identities in [Walk], or use pkg/fallback, which
// does. Expansions, hard boundaries and snapshots are decisions too: the engine
// enforces nothing.
//
// # Wire form
//
// Types that travel have JSON with the reference product's field names. Fields
// that it allows to be null are always there; 64-bit numbers are decimal strings;
// a path that is not UTF-8 comes along in base64 in a second field, as in
// resolvedPathBytes.
package engine
