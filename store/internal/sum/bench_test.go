//go:build unix

package sum_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"
	"github.com/kvcache-ai/mooncake-go/store/internal/sum"
	"github.com/kvcache-ai/mooncake-go/store/internal/sum/sumbench"
)

const turnBytes = 32 << 20

// contenders begins with the two that the others are measured against.
func contenders() []sumbench.Contender {
	return []sumbench.Contender{
		{Name: "go copy", Run: func(dst, src []byte) { copy(dst, src) }},
		{Name: "libc memcpy", Run: sumbench.Memcpy},
		{Name: "Copy", Run: sum.Copy},
		{Name: "CopyHash", Run: func(dst, src []byte) { sum.CopyHash(dst, src) }},
		{Name: "CopyHashChunks", Run: func(dst, src []byte) { sum.CopyHashChunks(dst, src, tableFor(src)) }},
		{Name: "copy+xxhash", Run: func(dst, src []byte) { copy(dst, src); xxhash.Sum64(dst) }},
		{Name: "xxhash", Run: func(_, src []byte) { xxhash.Sum64(src) }},
		{Name: "Hash", Run: func(_, src []byte) { sum.Hash(src) }},
		{Name: "HashChunks", Run: func(_, src []byte) { sum.HashChunks(src, tableFor(src)) }},
	}
}

func tableFor(p []byte) []uint64 { return make([]uint64, 0, sum.Chunks(int64(len(p)))) }

// BenchmarkCold moves blocks that no cache holds. Each figure is a median over rounds in which the contenders alternate,
// and its ratio is that to the faster of Go's copy and the C library's memcpy.
//
//	go test -run - -bench Cold -benchtime 30x ./store/internal/sum
func BenchmarkCold(b *testing.B) {
	m, err := sumbench.NewMemory(1 << 30)
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close()
	for _, block := range []int{4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 64 << 20} {
		for threads := 1; threads <= 2; threads++ {
			b.Run(fmt.Sprintf("%dKiB/threads=%d", block>>10, threads), func(b *testing.B) {
				race(b, m, block, threads)
			})
		}
	}
}

// BenchmarkHot moves one block again and again.
func BenchmarkHot(b *testing.B) {
	for _, block := range []int{1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20} {
		m, err := sumbench.NewMemory(block)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprintf("%dKiB", block>>10), func(b *testing.B) { race(b, m, block, 1) })
		m.Close()
	}
}

func race(b *testing.B, m *sumbench.Memory, block, threads int) {
	all := contenders()
	speeds := make([][]float64, len(all))
	for b.Loop() {
		m.Round(all, block, threads, turnBytes, speeds)
	}
	b.ReportMetric(0, "ns/op")
	best := max(sumbench.Median(speeds[0]), sumbench.Median(speeds[1]))
	for i, c := range all {
		speed := sumbench.Median(speeds[i])
		name := strings.ReplaceAll(c.Name, " ", "-")
		b.ReportMetric(speed, name+"-GB/s")
		b.ReportMetric(speed/best, name+"-ratio")
	}
}
