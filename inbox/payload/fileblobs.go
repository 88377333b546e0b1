package payload

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// FileBlobs are [Blobs] in a directory that all processes that share the tables must see. Each blob
// is a file two directories deep: the outer directory holds the blobs of some 70 minutes, the inner
// one those of some 17 seconds. FileBlobs are safe for concurrent use.
type FileBlobs struct{ dir string }

// NewFileBlobs returns blobs in dir, which it creates if needed.
func NewFileBlobs(dir string) (*FileBlobs, error) {
	if dir == "" {
		return nil, errors.New("payload: NewFileBlobs needs a directory")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("payload: blobs: %w", err)
	}
	return &FileBlobs{dir: dir}, nil
}

const (
	nameSize  = 32 // digits of a name
	outerName = 8  // digits of a name that are its outer directory
	innerName = 2
	fileName  = nameSize - outerName - innerName

	partial = ".part" // ends the name of a file that is being written
)

var hexDigits = regexp.MustCompile(`^[0-9a-f]+$`)

// path returns where a blob is. No name leads out of the directory.
func (f *FileBlobs) path(name string) (string, error) {
	if len(name) != nameSize || !hexDigits.MatchString(name) {
		return "", fmt.Errorf("%q is no name of a blob", name)
	}
	return filepath.Join(f.dir, name[:outerName], name[outerName:outerName+innerName], name[outerName+innerName:]), nil
}

// Put writes a file that is there whole or not at all, also after a crash.
func (f *FileBlobs) Put(_ context.Context, name string, body []byte) error {
	path, err := f.path(name)
	if err != nil {
		return err
	}
	for range 3 { // a directory that is empty and old may be removed meanwhile
		if err = f.put(path, body); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return err
}

func (f *FileBlobs) put(path string, body []byte) error {
	inner := filepath.Dir(path)
	for _, dir := range []string{filepath.Dir(inner), inner} {
		if err := makeDir(dir); err != nil {
			return err
		}
	}
	if err := writeFile(path+partial, body); err != nil {
		return errors.Join(err, ignoreMissing(os.Remove(path+partial)))
	}
	if err := os.Rename(path+partial, path); err != nil {
		return err
	}
	return syncDir(inner)
}

// makeDir makes a directory that a crash does not lose.
func makeDir(dir string) error {
	err := os.Mkdir(dir, 0o700)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return syncDir(filepath.Dir(dir))
}

func writeFile(path string, body []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(body)
	if err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Get reads a file.
func (f *FileBlobs) Get(_ context.Context, name string) ([]byte, error) {
	path, err := f.path(name)
	if err != nil {
		return nil, err
	}
	return os.ReadFile(path)
}

// Delete removes a file, and what a crash left of it.
func (f *FileBlobs) Delete(_ context.Context, name string) error {
	path, err := f.path(name)
	if err != nil {
		return err
	}
	return errors.Join(ignoreMissing(os.Remove(path)), ignoreMissing(os.Remove(path+partial)))
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// List reads the directories in question, and removes those that are empty and whose time
// is over.
func (f *FileBlobs) List(ctx context.Context, after, before string, limit int) ([]string, error) {
	l := listing{after: after, before: before, limit: limit}
	err := l.walk(ctx, f.dir, "", outerName, innerName, fileName)
	return l.names, err
}

type listing struct {
	after, before string
	limit         int
	names         []string
}

// walk goes through a directory whose entries have so many digits, and those below it.
func (l *listing) walk(ctx context.Context, dir, prefix string, digits int, below ...int) error {
	entries, err := os.ReadDir(dir) // sorted
	if err != nil {
		return ignoreMissing(err)
	}
	if len(entries) == 0 && prefix != "" && prefix < l.before[:min(len(prefix), len(l.before))] {
		_ = os.Remove(dir) // fails where something was put meanwhile
	}
	for _, entry := range entries {
		if err := ctx.Err(); err != nil || len(l.names) >= l.limit {
			return err
		}
		part := strings.TrimSuffix(entry.Name(), partial)
		if len(part) != digits || !hexDigits.MatchString(part) {
			continue // somebody else's
		}
		name := prefix + part
		if len(below) > 0 {
			if asLong(l.after, name) > name || asLong(l.before, name) < name || !entry.IsDir() {
				continue
			}
			if err := l.walk(ctx, filepath.Join(dir, part), name, below[0], below[1:]...); err != nil {
				return err
			}
			continue
		}
		twice := len(l.names) > 0 && l.names[len(l.names)-1] == name // a file and its part
		if name > l.after && name < l.before && !twice {
			l.names = append(l.names, name)
		}
	}
	return nil
}

// asLong returns the beginning of bound that is as long as name.
func asLong(bound, name string) string { return bound[:min(len(bound), len(name))] }
