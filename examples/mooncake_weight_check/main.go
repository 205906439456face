// Command mooncake_weight_check is "mooncake_weight check" under the name that the RFC gives it.
package main

import (
	"os"

	"github.com/kvcache-ai/mooncake-go/examples/mooncake_weight/cli"
)

func main() {
	os.Exit(cli.Main(os.Args[0], append([]string{"check"}, os.Args[1:]...), os.Stdout, os.Stderr))
}
