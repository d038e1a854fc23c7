// SPDX-License-Identifier: Apache-2.0

package mountmap_test

import (
	"fmt"
	"strings"

	"github.com/thenforce/thenforce/pkg/mountmap"
)

func ExampleParse() {
	table, err := mountmap.Parse(strings.NewReader(
		`27 1 254:0 / / rw - ext4 /dev/vda rw
40 27 0:30 / /srv/my\040data rw shared:7 - tmpfs tmpfs rw
41 40 0:31 / /srv/my\040data rw - tmpfs second rw
`))
	if err != nil {
		fmt.Println(err)
		return
	}
	top, _ := table.At("/srv/my data")
	fmt.Println(top.Source, top.Dev, top.Propagation)
	on, _ := table.Lookup("/srv/other")
	fmt.Println(on.Point, on.FSType)

	_, err = mountmap.Parse(strings.NewReader("27 1 254 / / rw - ext4 /dev/vda rw\n"))
	fmt.Println(err)
	// Output:
	// second 0:31 private
	// / ext4
	// parse mount table: line 1: bad device "254": "27 1 254 / / rw - ext4 /dev/vda rw"
}
