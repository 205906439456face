package source

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"

	"github.com/pkg/errors"
)

// The layout of the Hugging Face cache, https://huggingface.co/docs/huggingface_hub/guides/manage-cache:
//
//	models--org--name/blobs/<hash>                    the bytes
//	models--org--name/snapshots/<commit>/config.json  -> ../../blobs/<hash>
//	models--org--name/snapshots/<commit>/sub/x.json   -> ../../../blobs/<hash>
//
// The hash is the file's SHA-256 for what git LFS holds, and git's blob id (SHA-1) for the rest.
var (
	repoFolder = regexp.MustCompile(`^(models|datasets|spaces)--.+$`)
	blobName   = regexp.MustCompile(`^[0-9A-Za-z_-]{1,255}$`)
	hexName    = regexp.MustCompile(`^[0-9a-f]+$`)
)

const snapshotsFolder = "snapshots"

// onlySnapshot returns the name of the one snapshot of a repository folder, and "" for any other directory. dir is free of links.
// Which of several is meant, only the caller can say.
func onlySnapshot(dir string) (string, error) {
	if !repoFolder.MatchString(filepath.Base(dir)) {
		return "", nil
	}
	entries, err := os.ReadDir(filepath.Join(dir, snapshotsFolder))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	switch len(names) {
	case 1:
		return names[0], nil
	case 0:
		return "", errors.Wrapf(ErrNotFound, "a folder of the Hugging Face cache without a snapshot in %q", snapshotsFolder)
	}
	var paths []string
	for _, n := range names[:min(len(names), maxNamedSnapshots)] {
		paths = append(paths, strconv.Quote(filepath.Join(dir, snapshotsFolder, n))+refsOf(dir, n))
	}
	return "", errors.Wrapf(ErrBadLocation, "a folder of the Hugging Face cache with %d snapshots, name one of these: %s", len(names),
		strings.Join(paths, ", "))
}

// maxNamedSnapshots bounds the message.
const maxNamedSnapshots = 20

// refsOf names main in brackets if it is the snapshot that it points to.
func refsOf(dir, snapshot string) string {
	f, err := os.OpenFile(filepath.Join(dir, "refs", "main"), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	var commit [256]byte
	n, _ := f.Read(commit[:])
	if strings.TrimSpace(string(commit[:n])) == snapshot {
		return " (main)"
	}
	return ""
}

// cacheBlobs returns the blobs folder that the links of a directory may lead to: that of the repository folder whose
// snapshot the directory is, or is part of. Empty when it is neither. dir is absolute and free of links.
func cacheBlobs(dir string) string {
	for child, d := "", dir; ; child, d = d, filepath.Dir(d) {
		if child != "" && filepath.Base(d) == snapshotsFolder && repoFolder.MatchString(filepath.Base(filepath.Dir(d))) {
			return filepath.Join(filepath.Dir(d), "blobs")
		}
		if d == filepath.Dir(d) {
			return ""
		}
	}
}

// blobOf returns the blob that a link of the root leads to, or "" when it leads elsewhere.
func (s *localSource) blobOf(name, target string) string {
	if filepath.IsAbs(target) || !strings.HasPrefix(target, "../") {
		return ""
	}
	p := filepath.Join(s.dir, filepath.Dir(filepath.FromSlash(name)), target)
	if filepath.Dir(p) != s.blobsDir || !blobName.MatchString(filepath.Base(p)) {
		return ""
	}
	return filepath.Base(p)
}

// blobDigest is what the name of a blob says about its bytes.
func blobDigest(file string) Digest {
	dir, hash := filepath.Split(file)
	dir = filepath.Clean(dir)
	if filepath.Base(dir) != "blobs" || !repoFolder.MatchString(filepath.Base(filepath.Dir(dir))) || !hexName.MatchString(hash) {
		return Digest{}
	}
	switch len(hash) {
	case 64:
		return Digest{Algorithm: "sha256", Hex: hash}
	case 40:
		return Digest{Algorithm: "git-sha1", Hex: hash}
	}
	return Digest{}
}
