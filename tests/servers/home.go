package servers

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// home is an instance's folder and the system user that owns it.
type home struct {
	t          testing.TB
	dir        string
	root       string              // its programs see only this folder; "" for everything
	credential *syscall.Credential // nil: our own user
}

const prefix = "millrace-servers-"

// disk is a folder that is not in memory. make test names one.
func disk() string { return cmp.Or(os.Getenv("MILLRACE_TEST_DISK_FOLDER"), os.TempDir()) }

// newHome makes a folder that is removed after t. If we are root, it belongs to the
// system user account, and [home.cmd] runs programs as that user; "" keeps root.
//
// It is not t.TempDir(), because other users may not enter the parents of that.
func newHome(t testing.TB, account string) *home {
	t.Helper()
	return newHomeIn(t, "", account)
}

// newHomeIn makes the folder inside base, which holds an installation of its own.
func newHomeIn(t testing.TB, base, account string) *home {
	t.Helper()
	where := disk()
	if base != "" {
		where = filepath.Join(base, "srv")
	}
	sweep(where)
	dir, err := os.MkdirTemp(where, fmt.Sprintf("%s%d-", prefix, os.Getpid()))
	require.NoError(t, err)
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove %s: %v", dir, err)
		}
	})
	h := &home{t: t, dir: dir, root: base}
	require.NoError(t, os.WriteFile(h.log(), nil, 0o644))
	if root() && account != "" {
		u, err := user.Lookup(account)
		require.NoError(t, err)
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		require.NoError(t, err)
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		require.NoError(t, err)
		h.credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		require.NoError(t, os.Chown(dir, int(uid), int(gid)))
		require.NoError(t, os.Chown(h.log(), int(uid), int(gid)))
	}
	return h
}

func (h *home) path(elem ...string) string {
	return filepath.Join(append([]string{h.dir}, elem...)...)
}

// inside is path as the instance's programs see it.
func (h *home) inside(elem ...string) string { return strings.TrimPrefix(h.path(elem...), h.root) }

func (h *home) log() string { return h.path("log") }

// tail returns the end of the log.
func (h *home) tail() string {
	text, err := os.ReadFile(h.log())
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-4000):])
}

// write makes a file that the instance can read.
func (h *home) write(name, text string) {
	h.t.Helper()
	require.NoError(h.t, os.WriteFile(h.path(name), []byte(text), 0o644))
}

// cmd prepares a program to run in the folder, as its owner, with the folder as HOME.
func (h *home) cmd(path string, args ...string) *exec.Cmd {
	cmd := exec.Command(path, args...)
	cmd.Dir = h.inside()
	cmd.Env = append(os.Environ(), "HOME="+h.inside(), "LC_ALL=C.UTF-8", "TZ=UTC")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: h.credential, Chroot: h.root}
	return cmd
}

// do runs a program and waits for its end.
func (h *home) do(path string, args ...string) {
	h.t.Helper()
	out, err := h.cmd(path, args...).CombinedOutput()
	require.NoError(h.t, err, "%s\n%s", path, out)
}

// install has a program make the folder of an instance's data, or copies what it made before on this machine: a copy
// takes a tenth of the time. The folder is data in the one that args is given.
func (h *home) install(program string, args func(dir string) []string) {
	h.t.Helper()
	info, err := os.Stat(program)
	require.NoError(h.t, err)
	sum := sha256.Sum256(fmt.Appendln(nil, program, info.ModTime(), os.Geteuid(), args("")))
	made := filepath.Join(os.TempDir(), fmt.Sprintf("%sdata-%x", prefix, sum[:8]))
	installing.Lock()
	defer installing.Unlock()
	if _, err := os.Stat(made); err == nil {
		h.copy(made, h.path("data"))
		return
	}
	h.do(program, args(h.dir)...)
	whole := fmt.Sprintf("%s-%d", made, os.Getpid()) // no other process sees a half of it
	h.copy(h.path("data"), whole)
	if err := os.Rename(whole, made); err != nil { // another process was here first
		require.NoError(h.t, os.RemoveAll(whole))
	}
}

// installing lets the tests that run in parallel make the data once.
var installing sync.Mutex

// copy copies a folder as it is, with its owner.
func (h *home) copy(from, to string) {
	h.t.Helper()
	out, err := exec.CommandContext(h.t.Context(), "cp", "-a", from, to).CombinedOutput()
	require.NoError(h.t, err, "%s", out)
}

// sweep removes the folders, in one, of processes that were killed.
func sweep(where string) {
	dirs, _ := filepath.Glob(filepath.Join(where, prefix+"*")) // the pattern is valid
	for _, dir := range dirs {
		owner, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), prefix), "-")
		pid, err := strconv.Atoi(owner)
		if err != nil {
			continue
		}
		if _, _, found := stat(pid); !found {
			_ = os.RemoveAll(dir) // the next run tries again
		}
	}
}

// freePort returns a port of 127.0.0.1 that nothing listens on. The port is below
// those of outgoing connections, so that none of them takes it while a server is
// down. Each port is given once in a process, and to one process at a time, since tests
// run in parallel.
func freePort(t testing.TB) int {
	t.Helper()
	for range 100 {
		port := 20000 + rand.IntN(10000)
		if _, given := givenPorts.LoadOrStore(port, true); given {
			continue
		}
		// A name that nobody else can have while this process lives. It is in no folder.
		claim, err := net.Listen("unix", fmt.Sprintf("@millrace-tests-port-%d", port))
		if err != nil {
			continue
		}
		givenPorts.Store(port, claim)
		l, err := net.Listen("tcp", local(port))
		if err == nil {
			require.NoError(t, l.Close())
			return port
		}
	}
	t.Fatal("no port is free between 20000 and 30000")
	return 0
}

// givenPorts holds every port that freePort has tried in this process, with the claim to it.
var givenPorts sync.Map

func local(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
