package ssd

import (
	"context"
	"iter"
	"os"
	"slices"

	"github.com/pkg/errors"
)

// Found is a record that verifies, head and data, and where it lies.
type Found struct {
	Loc  Loc
	Head Head
}

// FindOrphans calls fn for each record on disk that verifies and that live does not name, before Recover takes its space.
// It reads all containers, and the data of what it finds. unreadable counts heads whose data does not verify.
//
// A record of an object that was removed, or replaced, stays on disk until its space is given back: the caller can't tell it
// from one that the catalogue has lost.
func (t *Tier) FindOrphans(ctx context.Context, live iter.Seq2[Loc, RecordSize], fn func(*Found) error) (unreadable int, err error) {
	if err := t.enter(); err != nil {
		return 0, errors.Wrap(err, "find orphans")
	}
	defer t.running.Done()
	records, _, err := t.collect(live)
	if err == nil {
		records, err = sortRecords(records)
	}
	if err != nil {
		return 0, errors.WithMessage(err, "find orphans")
	}
	names, err := t.fs.ReadDir(t.dir)
	if err != nil {
		return 0, ioError(err, "list %s", t.dir)
	}
	slices.Sort(names)
	for _, name := range names {
		id, own, ok := parseName(name)
		if !ok || own || id >= t.firstFile {
			continue
		}
		mine := records[:0:0]
		for _, r := range records {
			if r.file == id {
				mine = append(mine, r)
			}
		}
		s := orphanScan{t: t, ctx: ctx, file: id, live: mine, fn: fn}
		if err := s.run(); err != nil {
			return unreadable + s.unreadable, errors.WithMessagef(err, "find orphans in %s", name)
		}
		unreadable += s.unreadable
	}
	return unreadable, nil
}

// orphanScan walks one container.
type orphanScan struct {
	t          *Tier
	ctx        context.Context
	file       uint32
	live       []liveRecord
	fn         func(*Found) error
	unreadable int
}

func (s *orphanScan) run() error {
	h, err := s.t.containers.get(s.file)
	if err != nil {
		return nil // what can't be opened can't be adopted
	}
	defer s.t.containers.release(h)
	info, err := s.t.fs.Stat(s.t.path(containerName(s.file)))
	if err != nil {
		return ioError(err, "stat")
	}
	whole, err := s.t.read.get(s.ctx)
	if err != nil {
		return err
	}
	defer s.t.read.put(whole)
	buf := whole[:readBytes]
	for at := int64(BlockBytes); at < info.Size; {
		if err := s.ctx.Err(); err != nil {
			return err
		}
		from := at &^ (BlockBytes - 1)
		n, err := h.ReadAt(buf, from)
		if n == 0 {
			if err == nil || int64(n)+from >= info.Size {
				return nil
			}
			at = from + readBytes // a part of the disk that can't be read
			continue
		}
		if at, err = s.window(buf[:n], from, at); err != nil {
			return err
		}
	}
	return nil
}

// window looks for heads in a part of the container that begins at from. It returns where to go on, behind the window.
func (s *orphanScan) window(p []byte, from, at int64) (int64, error) {
	for at < from+int64(len(p)) {
		b := p[at-from:]
		if len(b) < headFixed || le.Uint32(b) != magicHead {
			at += granule
			continue
		}
		end, err := s.record(Loc{File: s.file, Off: uint32(at / granule), Own: le.Uint32(b[12:])})
		if err != nil {
			return 0, err
		}
		at = max(end, at+granule)
	}
	return max(at, from+int64(len(p))), nil
}

// record reports the record at loc if it is an orphan that verifies. It returns the record's end, 0 if there is none.
func (s *orphanScan) record(loc Loc) (end int64, err error) {
	head, err := s.t.peekHead(s.ctx, loc)
	if err != nil {
		return 0, s.ctx.Err()
	}
	span := loc.place(len(head.Key), head.Size)
	if slices.ContainsFunc(s.live, func(r liveRecord) bool { return r.off < span.end && span.off < r.end }) {
		return span.end, nil
	}
	if err := s.t.verifyData(s.ctx, loc, &head); err != nil {
		s.unreadable++
		return 0, s.ctx.Err()
	}
	return span.end, s.fn(&Found{loc, head})
}

// verifyData reads all bytes of an object.
func (t *Tier) verifyData(ctx context.Context, loc Loc, h *Head) error {
	buf := make([]byte, min(h.Size, 4<<20))
	for off := int64(0); off < h.Size; off += int64(len(buf)) {
		if err := t.Read(ctx, loc, h, off, buf[:min(int64(len(buf)), h.Size-off)]); err != nil {
			return err
		}
	}
	return nil
}

// StoreID is the id of the store that the files in dir belong to, from TIER or, if that is damaged, from a container. It
// is for a repair whose catalogue has lost it.
func StoreID(fsys FS, dir string) (id [16]byte, found bool) {
	names, err := fsys.ReadDir(dir)
	if err != nil {
		return id, false
	}
	slices.Sort(names) // TIER is behind the digits of the containers
	slices.Reverse(names)
	t := &Tier{fs: fsys, dir: dir}
	bufs, err := newBuffers(1, BlockBytes)
	if err != nil {
		return id, false
	}
	defer bufs.close()
	buf := bufs.take()
	defer bufs.put(buf)
	for _, name := range names {
		_, own, ok := parseName(name)
		magic := uint32(magicContainer)
		if name == tierName {
			magic = magicTier
		} else if !ok || own {
			continue
		}
		f, err := fsys.OpenFile(t.path(name), os.O_RDONLY, 0)
		if err != nil {
			continue
		}
		err = readFull(f, buf, 0, BlockBytes)
		_ = f.Close()
		if err != nil {
			continue
		}
		if b, err := parseBlock(buf, magic); err == nil {
			return b.storeID, true
		}
	}
	return id, false
}
