package skeleton

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// ErrNotEmpty is about a folder that has files.
var ErrNotEmpty = errors.New("the folder is not empty")

// Write writes files into the folder dir, which it makes if it is not there. It overwrites none, and follows no link out
// of dir. Unless beside is set, dir must be empty but for .git. After an error, or when ctx ends, it removes what it has
// written; a killed process leaves a folder without the last file.
func Write(ctx context.Context, dir string, files []File, beside bool) (err error) {
	if err := free(dir, files, beside); err != nil {
		return err
	}
	w := &writing{}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.undo())
		}
	}()
	if err := w.makeFolders(dir); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	for _, f := range files {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := w.write(root, dir, f); err != nil {
			return err
		}
	}
	return nil
}

// free returns an error unless files can be written into dir.
func free(dir string, files []File, beside bool) error {
	entries, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, syscall.ENOTDIR):
		return fmt.Errorf("%s is not a folder", dir)
	case err != nil:
		return err
	}
	var there []string
	for _, e := range entries {
		if e.Name() != ".git" {
			there = append(there, e.Name())
		}
	}
	if len(there) > 0 && !beside {
		return fmt.Errorf("%w: %s has %s; --beside writes beside them", ErrNotEmpty, dir, some(there))
	}
	there = nil
	for _, f := range files {
		if _, err := os.Lstat(filepath.Join(dir, filepath.FromSlash(f.Name))); err == nil {
			there = append(there, f.Name)
		}
	}
	if len(there) > 0 {
		return fmt.Errorf("%s has %s, and nothing is overwritten: move it away", dir, some(there))
	}
	return nil
}

// some lists names, the first few of many.
func some(names []string) string {
	const few = 5
	if len(names) <= few {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), len(names)-few)
}

// writing is what was made so far, in the order in which it was made.
type writing struct{ made []string }

// undo removes it. A folder that has got other files meanwhile stays.
func (w *writing) undo() error {
	var failed []error
	for _, name := range slices.Backward(w.made) {
		err := os.Remove(name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTEMPTY) && !errors.Is(err, syscall.EEXIST) {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// makeFolders makes dir and those above it.
func (w *writing) makeFolders(dir string) error {
	if info, err := os.Stat(dir); err == nil && info.IsDir() {
		return nil
	}
	if above := filepath.Dir(dir); above != dir {
		if err := w.makeFolders(above); err != nil {
			return err
		}
	}
	return w.noted(dir, os.Mkdir(dir, 0o755)) //nolint:gosec // as mkdir does
}

// noted remembers what was made.
func (w *writing) noted(name string, err error) error {
	if err == nil {
		w.made = append(w.made, name)
	}
	return err
}

// write writes a file, and makes the folders above it.
func (w *writing) write(root *os.Root, dir string, f File) (err error) {
	for i, c := range f.Name {
		if c != '/' {
			continue
		}
		folder := f.Name[:i]
		err := w.noted(filepath.Join(dir, folder), root.Mkdir(folder, 0o755))
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	file, err := root.OpenFile(path.Clean(f.Name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err := w.noted(filepath.Join(dir, f.Name), err); err != nil {
		return err
	}
	_, err = file.Write(f.Text)
	return errors.Join(err, file.Close())
}
