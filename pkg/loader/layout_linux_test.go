package loader

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"reflect"
	"testing"
)

// layouts has the digest of the layout that each ABI stands for: what lies in the maps that builds of one ABI share.
var layouts = map[int]string{
	1: "456d6c8d0e211af0fdb9bc640fc16380bbecb1de74f566e94b17061cb1967411",
}

// Another build takes over the maps of live jails where its ABI is the same (see upgrade), and the kernel checks no more
// than the sizes. Two arrays of one size that changed places would be read as one another: a filter that says "no grant
// here" would hide a none. So a layout that changes takes another ABI, unless what an older build wrote means the same in
// it, as for a field that was padding; only then is the digest to be changed here.
func TestLayoutOfTheABI(t *testing.T) {
	h := sha256.New()
	for _, v := range []any{
		enforcerTfGlobal{}, enforcerTfJail{}, enforcerTfMember{}, enforcerTfGrantKey{}, enforcerTfGrant{}, enforcerTfNameKey{},
		enforcerTfName{}, enforcerTfExpanded{}, enforcerTfPtyKey{}, enforcerTfRoot{}, enforcerTfEvent{}, enforcerTfProof{},
	} {
		describeType(h, "", reflect.TypeOf(v), 0)
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != layouts[ABI] {
		t.Errorf("the layout of ABI %d has the digest %s, want %s: raise the ABI, or see above", ABI, got, layouts[ABI])
	}
}

// describeType writes every field with its place and size.
func describeType(w io.Writer, name string, t reflect.Type, at uintptr) {
	fmt.Fprintf(w, "%s %s %d %d\n", name, t.Kind(), at, t.Size())
	switch t.Kind() {
	case reflect.Array:
		describeType(w, name+"[]", t.Elem(), at)
	case reflect.Struct:
		for f := range t.NumField() {
			field := t.Field(f)
			describeType(w, name+"."+field.Name, field.Type, at+field.Offset)
		}
	}
}
