// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"reflect"
	"strings"
	"sync"
)

var fieldCache sync.Map // of reflect.Type to map[string]bool

// fieldNames returns the names by which encoding/json knows the fields of the struct that v points to.
func fieldNames(v any) map[string]bool {
	t := reflect.TypeOf(v).Elem()
	if names, ok := fieldCache.Load(t); ok {
		return names.(map[string]bool)
	}
	names := map[string]bool{}
	for _, f := range reflect.VisibleFields(t) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
			names[name] = true
		}
	}
	fieldCache.Store(t, names)
	return names
}
