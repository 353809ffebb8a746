// runtime-limits: what the Go runtime took from its cgroup when it started.
package main

import (
	"fmt"
	"runtime"
)

func main() {
	fmt.Printf("GOMAXPROCS %d\n", runtime.GOMAXPROCS(0))
}
