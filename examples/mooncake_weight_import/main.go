// Command mooncake_weight_import is "mooncake_weight import" under the name that the RFC gives it.
package main

import (
	"os"

	"github.com/kvcache-ai/mooncake-go/examples/mooncake_weight/cli"
)

func main() {
	os.Exit(cli.Main(os.Args[0], append([]string{"import"}, os.Args[1:]...), os.Stdout, os.Stderr))
}
