package catalog

import (
	"encoding/binary"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/pkg/errors"
)

// The mark, a file named SYNCED in the directory, says how much of each log and manifest is on stable storage. Guard in
// guard.cc writes it after each sync; here it is read before RocksDB opens the directory. RocksDB takes any damage in a log
// for its torn end and drops what follows. With the mark the two are told apart: what was synced must be whole, only what
// lies behind it may be torn.
//
// The mark is written after the sync of what it tells of, so it never promises too much. It is not synced each time: after a
// power cut it may be older, and then it promises less. A file is taken out of it, and that synced, before the file goes.
//
// It has two slots of 2048 bytes, written in turns; the one with the higher sequence counts. Integers are little endian:
//
//	0   magic u64
//	8   sequence u64
//	16  number of the manifest that CURRENT names u64
//	24  count u64
//	32  per file: tag u64 (the file's number, with bit 63 for a manifest), synced bytes u64
//	then CRC-32C of all before, u64
const (
	markName      = "SYNCED"
	markMagic     = 0x314b52414d434d4d
	markSlotBytes = 2048
	markHead      = 32
	markEntry     = 16
	markMost      = 120
	markManifest  = 1 << 63
)

type mark struct {
	sequence uint64
	current  uint64 // manifest
	files    []markedFile
}

type markedFile struct {
	name   string
	synced int64
}

// checkSynced refuses a directory in which something is missing or damaged that was on stable storage. required says that
// there must be a mark. It changes nothing.
func checkSynced(dir string) (found bool, err error) {
	m, found, err := readMark(filepath.Join(dir, markName))
	if err != nil {
		return found, err
	}
	if err := checkCurrent(dir, m.current); err != nil {
		return found, err
	}
	for _, f := range m.files {
		if err := checkLog(filepath.Join(dir, f.name), f.synced); err != nil {
			return found, err
		}
	}
	return found, nil
}

// readMark returns the zero mark if there is none.
func readMark(path string) (m mark, found bool, err error) {
	p, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return m, false, nil
	}
	if err != nil {
		return m, false, errors.WithStack(err)
	}
	for _, at := range []int{0, markSlotBytes} {
		if len(p) >= at+markSlotBytes {
			if slot, ok := decodeMark(p[at : at+markSlotBytes]); ok && slot.sequence > m.sequence {
				m = slot
			}
		}
	}
	if m.sequence == 0 && strings.Trim(string(p), "\x00") != "" {
		return m, true, errors.Wrapf(ErrCorrupt, "%s: no slot verifies", path)
	}
	return m, m.sequence > 0, nil // a file that a crash left empty promises nothing
}

func decodeMark(p []byte) (m mark, ok bool) {
	le := binary.LittleEndian
	n := le.Uint64(p[24:])
	if le.Uint64(p) != markMagic || n > markMost {
		return m, false
	}
	end := markHead + markEntry*int(n)
	if le.Uint64(p[end:]) != uint64(crc32.Checksum(p[:end], castagnoli())) {
		return m, false
	}
	m.sequence, m.current = le.Uint64(p[8:]), le.Uint64(p[16:])
	for e := p[markHead:end]; len(e) > 0; e = e[markEntry:] {
		tag, synced := le.Uint64(e), le.Uint64(e[8:])
		name := logName(tag)
		if tag&markManifest != 0 {
			name = manifestName(tag &^ markManifest)
		}
		m.files = append(m.files, markedFile{name, int64(synced)})
	}
	return m, m.sequence > 0
}

func logName(number uint64) string { return pad6(number) + ".log" }

func manifestName(number uint64) string { return "MANIFEST-" + pad6(number) }

// pad6 is how RocksDB writes file numbers.
func pad6(n uint64) string {
	s := strconv.FormatUint(n, 10)
	return strings.Repeat("0", max(0, 6-len(s))) + s
}

// checkCurrent refuses a directory whose CURRENT is gone, does not parse, or names a manifest older than the one it once
// named. RocksDB would make a new, empty database if it is gone.
func checkCurrent(dir string, marked uint64) error {
	path := filepath.Join(dir, "CURRENT")
	p, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return checkEmpty(dir, marked)
	}
	if err != nil {
		return errors.WithStack(err)
	}
	digits, ok := strings.CutPrefix(strings.TrimSuffix(string(p), "\n"), "MANIFEST-")
	number, err := strconv.ParseUint(digits, 10, 63)
	if !ok || err != nil || string(p) != manifestName(number)+"\n" {
		return errors.Wrapf(ErrCorrupt, "%s: %.40q names no manifest", path, p)
	}
	if number < marked {
		return errors.Wrapf(ErrCorrupt, "%s names %s, but once named %s", path, manifestName(number), manifestName(marked))
	}
	if _, err := os.Stat(filepath.Join(dir, manifestName(number))); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return errors.Wrapf(ErrCorrupt, "%s names %s, which is missing", path, manifestName(number))
		}
		return errors.WithStack(err)
	}
	return nil
}

// checkEmpty refuses a directory without CURRENT that holds data. A crash in the first open leaves a manifest at most.
func checkEmpty(dir string, marked uint64) error {
	if marked > 0 {
		return errors.Wrapf(ErrCorrupt, "%s: CURRENT is missing", dir)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return errors.WithStack(err)
	}
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); ext == ".sst" || ext == ".log" {
			return errors.Wrapf(ErrCorrupt, "%s: CURRENT is missing, %s is there", dir, e.Name())
		}
	}
	return nil
}

// The format of logs and manifests, https://github.com/facebook/rocksdb/wiki/Write-Ahead-Log-File-Format: blocks of 32 KiB
// that hold records [masked CRC-32C u32][length u16][type u8][payload]. A record does not cross a block; what is too short
// for a header at the end of a block is zero. The checksum is of type and payload.
const (
	logBlock  = 32 << 10
	logHeader = 7
)

// checkLog reads the records in the first synced bytes of a log and checks that each is whole.
func checkLog(path string, synced int64) error {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return errors.Wrapf(ErrCorrupt, "%s is missing: %d bytes of it were synced", path, synced)
	}
	if err != nil {
		return errors.WithStack(err)
	}
	defer f.Close()
	block := make([]byte, logBlock)
	for at := int64(0); at < synced; at += logBlock {
		want := int(min(logBlock, synced-at))
		n, err := io.ReadFull(f, block[:want])
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return errors.WithStack(err)
		}
		bad := checkBlock(block[:n])
		if bad < 0 && n < want {
			bad = n
		}
		if bad >= 0 {
			return errors.Wrapf(ErrCorrupt, "%s: damaged at byte %d, %d bytes were synced", path, at+int64(bad), synced)
		}
	}
	return nil
}

// checkBlock returns where the first record begins that is not whole, or -1.
func checkBlock(p []byte) int {
	for at := 0; at < len(p); {
		if logBlock-at < logHeader { // the rest of a block
			for _, b := range p[at:] {
				if b != 0 {
					return at
				}
			}
			return -1
		}
		if len(p)-at < logHeader {
			return at
		}
		end := at + logHeader + int(binary.LittleEndian.Uint16(p[at+4:]))
		if kind := p[at+6]; kind == 0 || end > len(p) {
			return at
		}
		crc := crc32.Checksum(p[at+6:end], castagnoli())
		if binary.LittleEndian.Uint32(p[at:]) != (crc>>15|crc<<17)+0xa282ead8 {
			return at
		}
		at = end
	}
	return -1
}

// checkUnmarked is checkSynced for a directory without a mark, of format 1. There only the order tells: a whole record
// behind a damaged one means that the damage is not the torn end of the log. Damage of the last record can't be told
// from a torn end.
func checkUnmarked(dir string) error {
	logs, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil {
		return errors.WithStack(err)
	}
	for _, path := range logs {
		p, err := os.ReadFile(path) // at most maxWALBytes or so, once in the life of a directory
		if err != nil {
			return errors.WithStack(err)
		}
		damaged := -1
		for at := 0; at < len(p); at += logBlock {
			block := p[at:min(at+logBlock, len(p))]
			bad := checkBlock(block)
			if damaged >= 0 && bad != 0 || bad >= 0 && holdsRecord(block[bad+1:], bad+1) {
				return errors.Wrapf(ErrCorrupt, "%s: damaged at byte %d, whole records follow", path, max(damaged, at+max(bad, 0)))
			}
			if bad >= 0 && damaged < 0 {
				damaged = at + bad
			}
		}
	}
	return nil
}

// holdsRecord says whether a whole record with a payload begins anywhere in p, the end of a block from offset on.
func holdsRecord(p []byte, offset int) bool {
	for at := 0; at+logHeader < len(p) && offset+at+logHeader < logBlock; at++ {
		n := int(binary.LittleEndian.Uint16(p[at+4:]))
		end := at + logHeader + n
		if kind := p[at+6]; n == 0 || kind == 0 || kind > 4 || end > len(p) {
			continue
		}
		crc := crc32.Checksum(p[at+6:end], castagnoli())
		if binary.LittleEndian.Uint32(p[at:]) == (crc>>15|crc<<17)+0xa282ead8 {
			return true
		}
	}
	return false
}
