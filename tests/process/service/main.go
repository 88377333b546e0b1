// Command service is the service of package process as a program of its own, so that one
// built from another release can run beside this one.
package main

import (
	"fmt"
	"os"

	"github.com/millrace-go/millrace/tests/process"
)

func main() {
	process.Main()
	fmt.Fprintln(os.Stderr, "service: started by package process only")
	os.Exit(2)
}
