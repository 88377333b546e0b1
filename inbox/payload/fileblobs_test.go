package payload_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox/payload"
)

func files(t *testing.T) (*payload.FileBlobs, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "made", "for it")
	blobs, err := payload.NewFileBlobs(dir)
	require.NoError(t, err)
	return blobs, dir
}

// blobName is one made at a time, in microseconds.
func blobName(micros, n int) string { return fmt.Sprintf("%016x%016x", micros, n) }

func TestFileBlobsKeepWhatTheyAreGiven(t *testing.T) {
	blobs, dir := files(t)
	name := blobName(1<<40, 1)
	for _, body := range []string{"", "a\x00b", strings.Repeat("x", 1<<20)} {
		require.NoError(t, blobs.Put(t.Context(), name, []byte(body)))
		got, err := blobs.Get(t.Context(), name)
		require.NoError(t, err)
		assert.Equal(t, body, string(got))
	}
	require.NoError(t, blobs.Delete(t.Context(), name))
	require.NoError(t, blobs.Delete(t.Context(), name), "there is none")
	_, err := blobs.Get(t.Context(), name)
	require.ErrorIs(t, err, os.ErrNotExist)

	for _, bad := range []string{"", "../../etc/passwd", strings.Repeat("A", 32), strings.Repeat("/", 32), name + "0"} {
		require.Error(t, blobs.Put(t.Context(), bad, nil), bad)
		require.Error(t, blobs.Delete(t.Context(), bad), bad)
		_, err := blobs.Get(t.Context(), bad)
		require.Error(t, err, bad)
	}
	_, err = payload.NewFileBlobs("")
	require.Error(t, err)
	_, err = os.Stat(dir)
	require.NoError(t, err)
}

func TestFileBlobsListInOrder(t *testing.T) {
	blobs, dir := files(t)
	var want []string
	for _, micros := range []int{5, 1 << 24, 1<<24 + 1, 3 << 30, 1 << 33, 1 << 50} {
		for n := range 3 {
			name := blobName(micros, n)
			want = append(want, name)
			require.NoError(t, blobs.Put(t.Context(), name, []byte("x")))
		}
	}
	all := strings.Repeat("f", 16)
	for from := range want {
		after := ""
		if from > 0 {
			after = want[from-1]
		}
		for _, limit := range []int{1, 4, 100} {
			got, err := blobs.List(t.Context(), after, all, limit)
			require.NoError(t, err)
			assert.Equal(t, want[from:min(from+limit, len(want))], got)
		}
		got, err := blobs.List(t.Context(), "", want[from], 100)
		require.NoError(t, err)
		assert.Equal(t, want[:from], append([]string{}, got...))
	}
	got, err := blobs.List(t.Context(), "", fmt.Sprintf("%016x", 1<<33), 100)
	require.NoError(t, err)
	assert.Equal(t, want[:12], got, "before may be the beginning of a name")

	require.NoError(t, os.WriteFile(filepath.Join(dir, "README"), nil, 0o600))
	for _, name := range want[:15] {
		require.NoError(t, blobs.Delete(t.Context(), name))
	}
	got, err = blobs.List(t.Context(), "", all, 100)
	require.NoError(t, err)
	assert.Equal(t, want[15:], got)
	for range 2 { // what is below goes first
		_, err = blobs.List(t.Context(), "", all, 100)
		require.NoError(t, err)
	}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Len(t, entries, 2, "directories that are empty and old are gone")
}

func TestFileBlobsForgetWhatACrashCutOff(t *testing.T) {
	blobs, dir := files(t)
	name := blobName(1<<40, 1)
	require.NoError(t, blobs.Put(t.Context(), name, []byte("x")))
	path := filepath.Join(dir, name[:8], name[8:10], name[10:])
	require.NoError(t, os.Rename(path, path+".part"))
	_, err := blobs.Get(t.Context(), name)
	require.ErrorIs(t, err, os.ErrNotExist)
	got, err := blobs.List(t.Context(), "", "ff", 10)
	require.NoError(t, err)
	assert.Equal(t, []string{name}, got)
	require.NoError(t, blobs.Put(t.Context(), name, []byte("y")), "a second try")
	require.NoError(t, os.WriteFile(path+".part", nil, 0o600))
	got, err = blobs.List(t.Context(), "", "ff", 10)
	require.NoError(t, err)
	assert.Equal(t, []string{name}, got)
	require.NoError(t, blobs.Delete(t.Context(), name))
	got, err = blobs.List(t.Context(), "", "ff", 10)
	require.NoError(t, err)
	assert.Empty(t, got)
}

// A cleaner leaves alone what is too young for it.
func TestFileBlobsPutWhileDirectoriesAreRemoved(t *testing.T) {
	blobs, _ := files(t)
	ctx, cancel := context.WithCancel(t.Context())
	var cleaner sync.WaitGroup
	cleaner.Go(func() {
		for ctx.Err() == nil {
			_, _ = blobs.List(ctx, "", blobName(1<<40, 0), 100)
		}
	})
	for n := range 100 {
		name := blobName(1<<40+n<<24, n)
		require.NoError(t, blobs.Put(t.Context(), name, []byte("x")))
		require.NoError(t, blobs.Delete(t.Context(), name))
	}
	cancel()
	cleaner.Wait()
}
