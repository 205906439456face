// Storebench measures an embedded store beside what the machine itself can do with the same pattern. Both take turns in
// one run, and the ratio is that of their medians, so that a busy machine slows both. It judges nothing: a missed goal
// is printed, the exit code is 0.
//
// Shared memory of the store has the pages that the kernel gives to tmpfs; what it is compared with is mapped the same
// way. Rows that need more memory than there is are skipped and say so.
package main

import "github.com/kvcache-ai/mooncake-go/examples/contest"

func main() {
	contest.Main("storebench", []contest.Row{
		{Name: "copy", About: "GetInto, Put and PutFrom of 1 to 64 MiB", Memory: 4 << 30, Run: runCopy},
		{Name: "view", About: "View of 4 KiB to 64 MiB", Memory: 1 << 30, Run: runView},
		{Name: "small", About: "Get of 4 KiB out of 2 GiB, ExistsBatch with few keys", Memory: 5 << 30, Run: runSmall},
		{Name: "churn", About: "tiny put and remove on two threads", Memory: 1 << 30, Run: runChurn},
		{Name: "keys", About: "10 M objects: metadata, GC, Get of 4 KiB, ExistsBatch", Memory: 9 << 30, Run: runKeys},
		{Name: "ssd", About: "durable put and read of 4 MiB", Memory: 2 << 30, Run: runSSD},
		{Name: "open", About: "a new segment of 8 GiB", Memory: 9 << 30, Run: runOpen},
		{Name: "reopen", About: "a directory with 1 M objects on SSD", Memory: 2 << 30, Run: runReopen},
		{Name: "rocksdb", About: "4 KiB, 64 KiB and 4 MiB in RocksDB", Memory: 3 << 30, Run: runRocksDB},
	})
}
