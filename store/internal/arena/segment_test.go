package arena

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// shmDir returns a directory on tmpfs where there is one.
func shmDir(t testing.TB) string {
	dir, err := os.MkdirTemp("/dev/shm", "mooncake-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func testOptions(path string) SegmentOptions {
	return SegmentOptions{
		Path: path, DataBytes: 64 << 20, MetaBytes: 3 << 20, SlabBytes: 4 << 20,
		StoreID: [16]byte{1, 2, 3}, BootID: "boot", Limits: MemLimits{Headroom: -1},
		Owner: Owner{Dev: 1, Ino: 2, BornNs: 3, Epoch: [16]byte{4}}, Epochs: [][16]byte{{4}},
	}
}

func ranges(s *Segment, r Region) (rs []Extent) {
	for off, n := range s.Reserved(r) {
		rs = append(rs, Extent{off, n})
	}
	return rs
}

// residentBytes is what the file at path takes.
func residentBytes(t *testing.T, fd int) int64 {
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(fd, &st))
	return st.Blocks * 512
}

func TestSegmentReserveRelease(t *testing.T) {
	for _, path := range []string{"", filepath.Join(shmDir(t), "segment")} {
		t.Run(fmt.Sprintf("named=%v", path != ""), func(t *testing.T) {
			s, err := CreateSegment(testOptions(path))
			require.NoError(t, err)
			require.Len(t, s.Data(), 64<<20)
			require.Len(t, s.Meta(), 4<<20)
			require.Equal(t, int64(4<<20), s.SlabBytes())
			require.Equal(t, path, s.Path())
			require.Less(t, residentBytes(t, s.Fd()), int64(1<<20))

			require.NoError(t, s.Reserve(DataRegion, 4<<20, 4<<20))
			require.NoError(t, s.Reserve(DataRegion, 8<<20, 2<<20))
			require.NoError(t, s.Reserve(DataRegion, 62<<20, 2<<20))
			require.NoError(t, s.Reserve(MetaRegion, 0, 2<<20))
			require.Equal(t, []Extent{{4 << 20, 6 << 20}, {62 << 20, 2 << 20}}, ranges(s, DataRegion))
			require.Equal(t, []Extent{{0, 2 << 20}}, ranges(s, MetaRegion))
			require.Equal(t, int64(8<<20), s.ReservedBytes(DataRegion))
			require.GreaterOrEqual(t, residentBytes(t, s.Fd()), int64(10<<20))
			require.Less(t, residentBytes(t, s.Fd()), int64(11<<20))

			s.Data()[4<<20] = 7
			s.Data()[64<<20-1] = 8
			require.NoError(t, s.Release(DataRegion, 4<<20, 2<<20))
			require.Equal(t, []Extent{{6 << 20, 4 << 20}, {62 << 20, 2 << 20}}, ranges(s, DataRegion))
			require.Less(t, residentBytes(t, s.Fd()), int64(9<<20))
			require.NoError(t, s.Reserve(DataRegion, 4<<20, 2<<20))
			require.Zero(t, s.Data()[4<<20], "released bytes are gone")
			require.Equal(t, byte(8), s.Data()[64<<20-1])

			require.NoError(t, s.Close(true))
			require.ErrorIs(t, s.Close(true), os.ErrClosed)
			require.ErrorIs(t, s.Reserve(DataRegion, 0, StepBytes), os.ErrClosed)
			if path != "" {
				require.NoFileExists(t, path)
			}
		})
	}
}

// TestSegmentManySteps uses more steps than one word of the bitmap has, across the border of two words, and attaches.
func TestSegmentManySteps(t *testing.T) {
	o := testOptions(filepath.Join(shmDir(t), "segment"))
	o.DataBytes, o.MetaBytes = 1<<30, 130<<20
	s, err := CreateSegment(o)
	require.NoError(t, err)
	require.NoError(t, s.Reserve(DataRegion, 126<<20, 4<<20))
	require.NoError(t, s.Reserve(DataRegion, 1<<30-StepBytes, StepBytes))
	require.NoError(t, s.Reserve(MetaRegion, 128<<20, StepBytes))
	require.NoError(t, s.Close(false))
	s, err = AttachSegment(o)
	require.NoError(t, err)
	require.Equal(t, []Extent{{126 << 20, 4 << 20}, {1<<30 - StepBytes, StepBytes}}, ranges(s, DataRegion))
	require.Equal(t, []Extent{{128 << 20, StepBytes}}, ranges(s, MetaRegion))
	require.Zero(t, s.Offset(DataRegion)%StepBytes)
	for off := range s.Reserved(DataRegion) {
		require.Equal(t, int64(126<<20), off)
		break
	}
	require.NoError(t, s.Close(true))
}

func TestSegmentReserveRefuses(t *testing.T) {
	o := testOptions("")
	free := int64(1 << 30)
	o.Limits.FileSystemFree = func(int) (int64, bool, error) { return free, true, nil }
	s, err := CreateSegment(o)
	require.NoError(t, err)
	defer s.Close(true)
	for _, e := range []Extent{
		{1, StepBytes}, {0, 1}, {0, 0}, {-StepBytes, StepBytes}, {64 << 20, StepBytes}, {0, 66 << 20}, {0, 1<<63 - StepBytes},
	} {
		require.Error(t, s.Reserve(DataRegion, e.Off, e.Len), "%v", e)
		require.Error(t, s.Release(DataRegion, e.Off, e.Len), "%v", e)
	}
	require.NoError(t, s.Reserve(DataRegion, 4<<20, 4<<20))
	require.ErrorContains(t, s.Reserve(DataRegion, 0, 8<<20), "reserved already")
	require.Equal(t, []Extent{{4 << 20, 4 << 20}}, ranges(s, DataRegion))

	free = 1 << 20
	err = s.Reserve(DataRegion, 0, 4<<20)
	require.ErrorIs(t, err, ErrLimit)
	require.ErrorContains(t, err, "4194304")
	require.ErrorContains(t, err, "1048576")
	require.Equal(t, []Extent{{4 << 20, 4 << 20}}, ranges(s, DataRegion))

	o.Limits.FileSystemFree = func(int) (int64, bool, error) { return 0, false, os.ErrInvalid }
	_, err = CreateSegment(o)
	require.ErrorIs(t, err, os.ErrInvalid)
}

// TestSegmentReserveUndone lets the limit strike in the middle: nothing of the range stays.
func TestSegmentReserveUndone(t *testing.T) {
	o := testOptions("")
	o.DataBytes = 256 << 20
	calls := 0
	o.Limits.FileSystemFree = func(int) (int64, bool, error) {
		if calls++; calls == 3 { // after the header and the first part
			return 0, true, nil
		}
		return 1 << 40, true, nil
	}
	s, err := CreateSegment(o)
	require.NoError(t, err)
	defer s.Close(true)
	require.ErrorIs(t, s.Reserve(DataRegion, 0, 128<<20), ErrLimit)
	require.Empty(t, ranges(s, DataRegion))
	require.Less(t, residentBytes(t, s.Fd()), int64(1<<20))
	require.NoError(t, s.Reserve(DataRegion, 0, 4<<20))
}

// TestSegmentFileSystemFull fills a small tmpfs, which the limits were told has room: an error, no SIGBUS.
func TestSegmentFileSystemFull(t *testing.T) {
	for _, huge := range []string{"[never]", "always [advise] never"} {
		t.Run(huge, func(t *testing.T) { segmentFileSystemFull(t, huge) })
	}
}

func segmentFileSystemFull(t *testing.T, huge string) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=700,size=8m"); err != nil {
		t.Skipf("mount: %v", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	o := testOptions(filepath.Join(dir, "segment"))
	o.Limits.Root = t.TempDir()
	modeFile := filepath.Join(o.Limits.Root, "sys/kernel/mm/transparent_hugepage/shmem_enabled")
	require.NoError(t, os.MkdirAll(filepath.Dir(modeFile), 0o700))
	require.NoError(t, os.WriteFile(modeFile, []byte(huge), 0o600))
	o.Limits.FileSystemFree = func(int) (int64, bool, error) { return 1 << 40, true, nil }
	s, err := CreateSegment(o)
	require.NoError(t, err)
	defer s.Close(true)
	require.ErrorIs(t, s.Reserve(DataRegion, 0, 16<<20), unix.ENOSPC)
	require.Empty(t, ranges(s, DataRegion))
	require.NoError(t, s.Reserve(DataRegion, 0, 4<<20))

	f, err := OpenFileSet(dir, o.Limits)
	require.NoError(t, err)
	_, err = f.Create(16 << 20)
	require.ErrorIs(t, err, unix.ENOSPC)
	ids, err := f.List()
	require.NoError(t, err)
	require.Empty(t, ids, "a failed Create leaves no file")

	o.Limits.FileSystemFree = nil
	f, err = OpenFileSet(dir, o.Limits)
	require.NoError(t, err)
	_, err = f.Create(16 << 20)
	require.ErrorIs(t, err, ErrLimit)
	require.ErrorContains(t, err, "file system")
}

func TestSegmentReserveConcurrently(t *testing.T) {
	s, err := CreateSegment(testOptions(""))
	require.NoError(t, err)
	var wg sync.WaitGroup
	for off := int64(0); off < 64<<20; off += 8 << 20 {
		wg.Go(func() {
			for range 5 {
				if err := s.Reserve(DataRegion, off, 6<<20); err != nil {
					panic(err)
				}
				s.Data()[off] = byte(off >> 20)
				if err := s.Release(DataRegion, off, 4<<20); err != nil {
					panic(err)
				}
				if err := s.Release(DataRegion, off+4<<20, 2<<20); err != nil {
					panic(err)
				}
			}
		})
	}
	wg.Wait()
	require.Empty(t, ranges(s, DataRegion))
	require.NoError(t, s.Close(true))
}

const crashPath = "MOONCAKE_ARENA_TEST_CRASH" // set in the child that dies

// TestMain lets the test binary be the process that dies.
func TestMain(m *testing.M) {
	if path := os.Getenv(crashPath); path != "" {
		crash(path)
	}
	os.Exit(m.Run())
}

// crash makes a segment and a file with some content and kills the process that has them.
func crash(path string) {
	s, err := CreateSegment(testOptions(path))
	if err == nil {
		err = s.Reserve(DataRegion, 8<<20, 4<<20)
	}
	if err == nil {
		err = s.Reserve(MetaRegion, 2<<20, 2<<20)
	}
	var set *FileSet
	if err == nil {
		set, err = OpenFileSet(filepath.Dir(path)+"/files", MemLimits{})
	}
	for i := range 2 {
		var f *File
		if err == nil {
			f, err = set.Create(3<<20 + 5)
		}
		if err == nil {
			copy(f.Bytes()[3<<20:], "12345")
			if i == 0 {
				err = f.Seal()
			}
		}
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	copy(s.Data()[8<<20:], "data")
	copy(s.Meta()[4<<20-4:], "meta")
	s.Data()[16<<20] = 1 // memory that no one recorded, as when death comes in the middle of Reserve
	_ = unix.Kill(os.Getpid(), unix.SIGKILL)
	select {}
}

func TestAttachAfterKill(t *testing.T) {
	dir := shmDir(t)
	path := filepath.Join(dir, "segment")
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), crashPath+"="+path)
	out, err := cmd.CombinedOutput()
	require.ErrorContains(t, err, "killed", "%s", out)

	o := testOptions(path)
	o.DataBytes, o.MetaBytes, o.SlabBytes = 0, 0, 0 // the file's count
	s, err := AttachSegment(o)
	require.NoError(t, err)
	require.Equal(t, []Extent{{8 << 20, 4 << 20}}, ranges(s, DataRegion))
	require.Equal(t, []Extent{{2 << 20, 2 << 20}}, ranges(s, MetaRegion))
	require.Equal(t, "data", string(s.Data()[8<<20:8<<20+4]))
	require.Equal(t, "meta", string(s.Meta()[4<<20-4:]))
	require.Equal(t, int64(4<<20), s.SlabBytes())
	require.Len(t, s.Data(), 64<<20)
	require.Less(t, residentBytes(t, s.Fd()), int64(7<<20), "unrecorded memory was not given back")
	require.NoError(t, s.Reserve(DataRegion, 16<<20, 2<<20))
	require.Zero(t, s.Data()[16<<20])
	require.NoError(t, s.Close(true))
	require.NoFileExists(t, path)

	attachFilesAfterKill(t, dir+"/files")
}

func attachFilesAfterKill(t *testing.T, dir string) {
	set, err := OpenFileSet(dir, MemLimits{})
	require.NoError(t, err)
	ids, err := set.List()
	require.NoError(t, err)
	require.Equal(t, []uint64{1, 2}, ids)
	for _, id := range ids {
		_, err = set.Attach(id, 3<<20+4)
		require.ErrorIs(t, err, ErrCorrupt)
		f, err := set.Attach(id, 3<<20+5)
		require.NoError(t, err)
		mem, err := f.Pin()
		require.NoError(t, err)
		require.Equal(t, "12345", string(mem[3<<20:]))
		require.Equal(t, id == 1, f.Sealed())
		require.NoError(t, f.Close())
	}
	require.NoError(t, set.Remove(2))
	f, err := set.Create(1)
	require.NoError(t, err)
	require.Equal(t, uint64(3), f.ID())
	require.NoError(t, f.Close())
}

func TestAttachRefuses(t *testing.T) {
	dir := shmDir(t)
	path := filepath.Join(dir, "segment")
	_, err := AttachSegment(testOptions(path))
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = AttachSegment(SegmentOptions{})
	require.ErrorIs(t, err, fs.ErrNotExist)

	o := testOptions(path)
	o.DataBytes, o.MetaBytes = StepBytes, 0
	s, err := CreateSegment(o)
	require.NoError(t, err)
	require.NoError(t, s.Reserve(DataRegion, 0, StepBytes))
	require.NoError(t, s.Close(false))
	good, err := os.ReadFile(path)
	require.NoError(t, err)

	for name, c := range map[string]struct {
		options func(*SegmentOptions)
		file    func([]byte) []byte
		want    error
	}{
		"other store":  {options: func(o *SegmentOptions) { o.StoreID[0]++ }, want: ErrStale},
		"other boot":   {options: func(o *SegmentOptions) { o.BootID = "next boot" }, want: ErrStale},
		"real boot":    {options: func(o *SegmentOptions) { o.BootID = "" }, want: ErrStale},
		"other dir":    {options: func(o *SegmentOptions) { o.Owner.Ino++ }, want: ErrStale},
		"other birth":  {options: func(o *SegmentOptions) { o.Owner.BornNs++ }, want: ErrStale},
		"other epoch":  {options: func(o *SegmentOptions) { o.Epochs = [][16]byte{{5}, {6}} }, want: ErrStale},
		"no epoch":     {options: func(o *SegmentOptions) { o.Epochs = nil }, want: ErrStale},
		"no owner":     {file: func(p []byte) []byte { clear(p[120:4088]); return rehash(p, 8, 1) }, want: ErrStale},
		"empty":        {file: func([]byte) []byte { return nil }, want: ErrCorrupt},
		"half header":  {file: func(p []byte) []byte { return p[:2000] }, want: ErrCorrupt},
		"truncated":    {file: func(p []byte) []byte { return p[:len(p)-1] }, want: ErrCorrupt},
		"longer":       {file: func(p []byte) []byte { return append(p, 0) }, want: ErrCorrupt},
		"other file":   {file: func(p []byte) []byte { p[0]++; return p }, want: ErrCorrupt},
		"bit flip":     {file: func(p []byte) []byte { p[113]++; return p }, want: ErrCorrupt},
		"newer format": {file: func(p []byte) []byte { return rehash(p, 8, headerFormat+1) }, want: ErrNewerFormat},
		"format 0":     {file: func(p []byte) []byte { return rehash(p, 8, 0) }, want: ErrCorrupt},
	} {
		t.Run(name, func(t *testing.T) {
			content := bytes.Clone(good)
			if c.file != nil {
				content = c.file(content)
			}
			require.NoError(t, os.WriteFile(path, content, 0o600))
			o := testOptions(path)
			if c.options != nil {
				c.options(&o)
			}
			_, err := AttachSegment(o)
			require.ErrorIs(t, err, c.want)
			now, err := os.ReadFile(path)
			require.NoError(t, err)
			require.True(t, bytes.Equal(content, now), "a refused file is left as it is")
		})
	}
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.Symlink("/dev/zero", path))
	_, err = AttachSegment(testOptions(path))
	require.ErrorIs(t, err, unix.ELOOP)
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.Mkdir(path, 0o700))
	_, err = AttachSegment(testOptions(path))
	require.Error(t, err)
}

// TestCreateReplaces checks that an earlier segment goes in one step, and that its holder neither loses it nor removes
// the new one.
func TestCreateReplaces(t *testing.T) {
	path := filepath.Join(shmDir(t), "segment")
	require.NoError(t, os.WriteFile(path+".new", []byte("left by a crash"), 0o400))
	old, err := CreateSegment(testOptions(path))
	require.NoError(t, err)
	require.NoError(t, old.Reserve(DataRegion, 0, StepBytes))
	old.Data()[5] = 5
	s, err := CreateSegment(testOptions(path))
	require.NoError(t, err)
	require.Empty(t, ranges(s, DataRegion))
	require.Equal(t, byte(5), old.Data()[5])
	require.NoError(t, old.Close(true))
	require.FileExists(t, path)
	require.NoFileExists(t, path+".new")
	require.NoError(t, s.Close(true))
	require.NoFileExists(t, path)
}

func TestCreateRefuses(t *testing.T) {
	for name, change := range map[string]func(*SegmentOptions){
		"no data":      func(o *SegmentOptions) { o.DataBytes = 0 },
		"huge":         func(o *SegmentOptions) { o.DataBytes = 1<<63 - 1 },
		"odd slab":     func(o *SegmentOptions) { o.SlabBytes = 3 << 20 },
		"boot id":      func(o *SegmentOptions) { o.BootID = strings.Repeat("x", 65) },
		"no directory": func(o *SegmentOptions) { o.Path = "/no/such/directory/segment" },
	} {
		o := testOptions("")
		change(&o)
		_, err := CreateSegment(o)
		require.Error(t, err, name)
	}
}

// TestFlat opens and closes everything many times: no descriptor and no mapping stays.
func TestFlat(t *testing.T) {
	dir := shmDir(t)
	cycle := func() {
		for _, path := range []string{"", filepath.Join(dir, "segment")} {
			s, err := CreateSegment(testOptions(path))
			require.NoError(t, err)
			require.NoError(t, s.Reserve(DataRegion, 0, StepBytes))
			require.NoError(t, s.Close(false))
		}
		s, err := AttachSegment(testOptions(filepath.Join(dir, "segment")))
		require.NoError(t, err)
		require.NoError(t, s.Close(true))
		for _, path := range []string{"", dir} {
			f, err := OpenFileSet(path, MemLimits{})
			require.NoError(t, err)
			for _, size := range []int64{0, 1, StepBytes + 1} {
				file, err := f.Create(size)
				require.NoError(t, err)
				require.NoError(t, file.Seal())
				require.NoError(t, file.Remove())
			}
			require.NoError(t, f.Close())
		}
		_, err = AttachSegment(testOptions(filepath.Join(dir, "none")))
		require.Error(t, err)
	}
	count := func() (int, int) {
		fds, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		maps, err := os.ReadFile("/proc/self/maps")
		require.NoError(t, err)
		n := 0
		for line := range strings.Lines(string(maps)) {
			if strings.Contains(line, "mooncake") {
				n++
			}
		}
		return len(fds), n
	}
	cycle()
	fds, maps := count()
	for range 100 {
		cycle()
	}
	fdsNow, mapsNow := count()
	require.Equal(t, fds, fdsNow, "descriptors")
	require.Equal(t, maps, mapsNow, "mappings")
	require.Zero(t, mapsNow)
}

// BenchmarkReserve takes 1 GiB by Reserve, and by the system calls on a plain memfd, in turns.
func BenchmarkReserve(b *testing.B) {
	const size = 1 << 30
	var ours, raw time.Duration
	for b.Loop() {
		s, err := CreateSegment(SegmentOptions{DataBytes: size, BootID: "b"})
		require.NoError(b, err)
		start := time.Now()
		require.NoError(b, s.Reserve(DataRegion, 0, size))
		ours += time.Since(start)
		require.NoError(b, s.Close(true))

		fd, err := unix.MemfdCreate("mooncake-bench", unix.MFD_CLOEXEC)
		require.NoError(b, err)
		require.NoError(b, unix.Ftruncate(fd, size))
		mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		require.NoError(b, err)
		start = time.Now()
		require.NoError(b, retry(func() error { return unix.Fallocate(fd, 0, 0, size) }))
		require.NoError(b, unix.Madvise(mem, unix.MADV_POPULATE_WRITE))
		raw += time.Since(start)
		require.NoError(b, unix.Munmap(mem))
		require.NoError(b, unix.Close(fd))
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(ours.Seconds()/float64(b.N), "s/GiB")
	b.ReportMetric(raw.Seconds()/float64(b.N), "raw-s/GiB")
}
