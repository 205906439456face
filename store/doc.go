// Package store is one store for KV cache and model weights that a program embeds: typed objects in DRAM and on SSD,
// pins, leases and groups, and bytes that are either the ones that were put or an error.
//
// Open starts a store in this process with nothing beside it. With Options.Dir set, what is on the SSD tier, and
// what survived in shared memory, comes back at the next Open.
package store
