// Command mooncake_weight keeps model revisions in a store: it imports, checks, lists, loads and deletes them.
package main

import (
	"os"

	"github.com/kvcache-ai/mooncake-go/examples/mooncake_weight/cli"
)

func main() { os.Exit(cli.Main(os.Args[0], os.Args[1:], os.Stdout, os.Stderr)) }
