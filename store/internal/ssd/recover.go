package ssd

import (
	"cmp"
	"iter"
	"math"
	"slices"

	"github.com/pkg/errors"
)

// liveRecord is where a record that Recover keeps lies.
type liveRecord struct {
	file uint32
	off  int64
	end  int64
}

// Recover makes the directory hold the live records and no others: files that none lies in are removed, blocks between
// them are punched out. It runs once, after Open and before anything else; records appended since Open are not touched.
// The same Loc may come twice, as two keys that share an object do. A live record whose file is missing or short is no
// error here: reading it is one. Nothing is changed when two records overlap (ErrCorrupt), or a container of theirs
// belongs to another store or a newer version (ErrForeign, ErrNewerFormat). Recovered containers are not appended to.
func (t *Tier) Recover(live iter.Seq2[Loc, RecordSize]) error {
	if err := t.enter(); err != nil {
		return errors.Wrap(err, "recover")
	}
	defer t.running.Done()
	return errors.WithMessage(t.recover(live), "recover")
}

func (t *Tier) recover(live iter.Seq2[Loc, RecordSize]) error {
	records, owns, err := t.collect(live)
	if err != nil {
		return err
	}
	if records, err = sortRecords(records); err != nil {
		return err
	}
	names, err := t.fs.ReadDir(t.dir)
	if err != nil {
		return ioError(err, "list %s", t.dir)
	}
	here, orphans := t.sortNames(names, records, owns)
	for _, id := range here {
		if err := t.checkContainer(id); err != nil {
			return err
		}
	}
	for _, name := range orphans {
		if err := t.removeFile(t.path(name)); err != nil {
			return ioError(err, "remove orphan %s", name)
		}
	}
	t.addOwns(owns)
	for len(records) > 0 {
		n := 1
		for n < len(records) && records[n].file == records[0].file {
			n++
		}
		if _, ok := slices.BinarySearch(here, records[0].file); ok {
			if err := t.recoverContainer(records[:n]); err != nil {
				return err
			}
		}
		records = records[n:]
	}
	return nil
}

// collect checks the live records and takes those of files that were there at Open.
func (t *Tier) collect(live iter.Seq2[Loc, RecordSize]) (records []liveRecord, owns map[uint32]int64, err error) {
	owns = make(map[uint32]int64)
	for loc, size := range live {
		if err := checkSizes(size.KeyLen, size.Size); err != nil {
			return nil, nil, recordError(err, "live", loc)
		}
		if loc.File == 0 || loc.offset() < BlockBytes {
			return nil, nil, recordError(errors.Wrap(ErrInvalid, "no such place"), "live", loc)
		}
		if loc.File >= t.firstFile {
			continue
		}
		s := loc.place(size.KeyLen, size.Size)
		records = append(records, liveRecord{loc.File, s.off, s.end})
		if loc.Own != 0 {
			owns[loc.Own] = size.Size
		}
	}
	return records, owns, nil
}

// sortRecords orders by place, drops what came twice and refuses overlaps.
func sortRecords(records []liveRecord) ([]liveRecord, error) {
	slices.SortFunc(records, func(a, b liveRecord) int {
		return cmp.Or(cmp.Compare(a.file, b.file), cmp.Compare(a.off, b.off), cmp.Compare(a.end, b.end))
	})
	records = slices.Compact(records)
	for i := 1; i < len(records); i++ {
		if a, b := records[i-1], records[i]; a.file == b.file && a.end > b.off {
			return nil, errors.Wrapf(ErrCorrupt, "records overlap in %s at offset %d", containerName(a.file), b.off)
		}
	}
	return records, nil
}

// sortNames splits the files that were there at Open into containers with live records, by id, and orphans.
func (t *Tier) sortNames(names []string, records []liveRecord, owns map[uint32]int64) (here []uint32, orphans []string) {
	for _, name := range names {
		id, own, ok := parseName(name)
		switch {
		case name == tierTemp:
			orphans = append(orphans, name)
		case !ok || id >= t.firstFile:
		case own:
			if _, live := owns[id]; !live {
				orphans = append(orphans, name)
			}
		default:
			i, _ := slices.BinarySearchFunc(records, id, func(r liveRecord, id uint32) int { return cmp.Compare(r.file, id) })
			if i < len(records) && records[i].file == id {
				here = append(here, id)
			} else {
				orphans = append(orphans, name)
			}
		}
	}
	slices.Sort(here)
	return here, orphans
}

// checkContainer refuses a container that verifies as somebody else's. One that does not verify, or cannot be read,
// costs nothing: the heads in it verify on their own or do not.
func (t *Tier) checkContainer(id uint32) error {
	h, err := t.containers.get(id)
	if err != nil {
		return nil
	}
	defer t.containers.release(h)
	_, err = t.readBlock(h, magicContainer)
	if errors.Is(err, ErrForeign) || errors.Is(err, ErrNewerFormat) {
		return errors.WithMessage(err, containerName(id))
	}
	return nil
}

func (t *Tier) addOwns(owns map[uint32]int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, size := range owns {
		t.mu.owns[id] = size
		t.mu.live += size
		t.mu.disk += alignUp(size, BlockBytes)
	}
}

// hole is a run of blocks to punch.
type hole struct{ start, end int64 }

// recoverContainer takes over a container with its live records in order and frees the rest of it.
func (t *Tier) recoverContainer(records []liveRecord) error {
	id := records[0].file
	c := newContainer(id, nil)
	c.sealed = true
	c.synced, c.mark = math.MaxInt64, math.MaxInt64 // Recover heard of it from the catalogue, so it was synced
	end := alignUp(records[len(records)-1].end, BlockBytes)
	c.pos, c.disk = end, end
	var holes []hole
	free := func(from, to int64) {
		if from == to {
			return
		}
		if start, end := c.release(from, to); start < end {
			holes = append(holes, hole{start, end})
			c.disk -= end - start
		}
	}
	at := int64(BlockBytes)
	for _, r := range records {
		free(at, r.off)
		at = r.end
		c.live += r.end - r.off
	}
	free(at, end)
	if err := t.trim(c, holes); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.files[id] = c
	t.mu.live += c.live
	t.mu.disk += c.disk
	return nil
}

// trim cuts the file behind its last live block and punches the holes, unless the file already takes no more blocks
// than it should. A file system that does not punch keeps the blocks.
func (t *Tier) trim(c *container, holes []hole) error {
	name := containerName(c.id)
	info, err := t.fs.Stat(t.path(name))
	if err != nil {
		return ioError(err, "stat %s", name)
	}
	const slack = 16 // 512-byte blocks that the file system may add for its own tree
	if info.Size <= c.pos && info.Blocks <= c.disk/512+slack {
		return nil
	}
	h, err := t.containers.get(c.id)
	if err != nil {
		return ioError(err, "open %s", name)
	}
	defer t.containers.release(h)
	if info.Size >= c.pos {
		if err := h.Truncate(c.pos); err != nil {
			return ioError(err, "truncate %s to %d", name, c.pos)
		}
	}
	for _, x := range holes {
		if h.PunchHole(x.start, x.end-x.start) != nil {
			c.disk += x.end - x.start
		}
	}
	return nil
}
