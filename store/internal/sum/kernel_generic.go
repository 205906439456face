//go:build !amd64

package sum

// quadBytes is never reached: there is no kernel for several chunks at a time.
const quadBytes = 4 * ChunkBytes

func haveQuad() bool { return false }

func hashQuad(*[4]uint64, []byte) { panic("sum: BUG: no kernel for four chunks") }

func copyStream(dst, src []byte) { copy(dst, src) }

func hashBlocks(v *lanes, p []byte, _ int) { stripesGo(v, p) }

func copyHashBlocks(v *lanes, dst, src []byte, _ int) { copyHashBlocksGo(v, dst, src) }
