// Command hello is what "bench jobs" builds.
package main

import (
	"fmt"
	"os"
	"strings"
)

func main() { fmt.Println(strings.Join(os.Args, " ")) }
