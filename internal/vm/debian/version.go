package debian

import "strings"

// CompareVersions orders two Debian package versions and returns -1, 0 or +1.
// It implements the algorithm of deb-version(7): epoch, upstream version and
// revision, each compared as alternating runs of non-digits and digits, with
// "~" before everything, even before the end. Characters that no version may
// contain are ordered by their byte value; there is no error.
func CompareVersions(a, b string) int {
	ea, ua, ra := splitVersion(a)
	eb, ub, rb := splitVersion(b)
	if c := comparePart(ea, eb); c != 0 {
		return c
	}
	if c := comparePart(ua, ub); c != 0 {
		return c
	}
	return comparePart(ra, rb)
}

// splitVersion cuts [epoch:]upstream[-revision] into its parts.
func splitVersion(v string) (epoch, upstream, revision string) {
	if e, rest, ok := strings.Cut(v, ":"); ok {
		epoch, v = e, rest
	}
	if i := strings.LastIndexByte(v, '-'); i >= 0 {
		return epoch, v[:i], v[i+1:]
	}
	return epoch, v, ""
}

func comparePart(a, b string) int {
	for a != "" || b != "" {
		for (a != "" && !isDigit(a[0])) || (b != "" && !isDigit(b[0])) {
			if c := order(a) - order(b); c != 0 {
				return sign(c)
			}
			a, b = tail(a), tail(b)
		}
		na, restA := digits(a)
		nb, restB := digits(b)
		// Without leading zeros the longer number is the larger, and numbers
		// of one length compare as strings: no overflow on long dates.
		if c := len(na) - len(nb); c != 0 {
			return sign(c)
		}
		if c := strings.Compare(na, nb); c != 0 {
			return c
		}
		a, b = restA, restB
	}
	return 0
}

// order is the weight of the first character: "~" before the end or a digit,
// those before letters, and letters before all else.
func order(s string) int {
	switch {
	case s == "" || isDigit(s[0]):
		return 0
	case s[0] == '~':
		return -1
	case 'A' <= s[0] && s[0] <= 'Z' || 'a' <= s[0] && s[0] <= 'z':
		return int(s[0])
	default:
		return int(s[0]) + 256
	}
}

// tail drops the first character unless a number begins there or nothing is left.
func tail(s string) string {
	if s == "" || isDigit(s[0]) {
		return s
	}
	return s[1:]
}

func digits(s string) (number, rest string) {
	n := 0
	for n < len(s) && isDigit(s[n]) {
		n++
	}
	return strings.TrimLeft(s[:n], "0"), s[n:]
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func sign(n int) int {
	switch {
	case n < 0:
		return -1
	case n > 0:
		return 1
	}
	return 0
}
