package browser_test

import (
	"bufio"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// built is the command, which is built once.
var built = sync.OnceValues(func() (program string, err error) {
	folder, err := os.MkdirTemp("", "millrace-")
	if err == nil {
		closing = append(closing, func() { _ = os.RemoveAll(folder) })
		program, err = rig.Build(folder, "github.com/millrace-go/millrace/cmd/millrace")
	}
	return program, err
})

// ui serves the service's database with millrace ui, and returns where that is.
func (s *service) ui(token string, args ...string) string {
	s.Helper()
	program, err := built()
	require.NoError(s, err)
	cmd := exec.CommandContext(s.Context(), program, append([]string{"ui", "--listen", "127.0.0.1:0"}, args...)...)
	cmd.Env = append(os.Environ(), "MILLRACE_DSN="+s.DB.DSN, "MILLRACE_UI_TOKEN="+token)
	cmd.WaitDelay = 10 * time.Second
	told, err := cmd.StderrPipe()
	require.NoError(s, err)
	require.NoError(s, cmd.Start())
	s.Cleanup(func() {
		_ = cmd.Process.Kill() // it may be gone
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(told)
	require.True(s, lines.Scan(), "it says where it is")
	_, address, found := strings.Cut(lines.Text(), "http://")
	require.True(s, found, lines.Text())
	return "http://" + strings.TrimSpace(address)
}

// signIn fills in the form of the door, and returns the status of what follows.
func (b *browser) signIn(name, token string) int64 {
	b.Helper()
	b.do(chromedp.SendKeys(`//input[@name="name"]`, name), chromedp.SendKeys(`//input[@name="token"]`, token))
	return b.press(`//button[.="Sign in"]`)
}

const doorToken = "0123456789abcdef"

// TestTheCommandWithAToken: nothing is seen or done without it, and what is done bears the
// name that was given at the door.
func TestTheCommandWithAToken(t *testing.T) {
	testdb.Turn(t, 3, longest)
	on(t, func(t *testing.T, b *browser) {
		s := newService(t)
		s.fail(2)
		home := s.ui(doorToken)
		for _, page := range []string{"", "inbox", "message?key=order-0001"} {
			b.visit(home + page)
			b.reads("Your name, for the audit log")
			b.lacks("billing", "owner")
		}
		assert.EqualValues(t, http.StatusUnauthorized, b.signIn("grace", doorToken+"x"))
		b.reads("That is not the token.")
		assert.EqualValues(t, http.StatusOK, b.signIn("grace", doorToken))
		b.reads("Wait for an operator", "billing", "grace")

		b.visit(home + "message?key=order-0001")
		b.act("Discard", "a test order")
		b.reads("The message was discarded.")
		b.follow("Audit")
		b.reads("grace", "a test order")
		assert.Equal(t, 1, s.Count(`SELECT COUNT(*) FROM millrace_audit WHERE actor = ? AND action = ?`, []byte("grace"), []byte("discard")))

		other := open(t, bare) // another profile, which has not signed in
		other.visit(home + "audit")
		other.lacks("a test order")
	})
}

// TestTheCommandAtThisMachine: no token, and the name that was given to the command.
func TestTheCommandAtThisMachine(t *testing.T) {
	s := newService(t)
	s.fail(1)
	b := open(t, desk)
	home := s.ui("", "--by", "ann")
	b.visit(home)
	b.reads("Wait for an operator", "ann")
	b.visit(home + "message?key=order-0001")
	s.Mended.Store(true)
	b.act("Retry", "the owner was added")
	b.reads("The message will be handled again.")
	s.handled()
	assert.Equal(t, 1, s.Count(`SELECT COUNT(*) FROM millrace_audit WHERE actor = ? AND action = ?`, []byte("ann"), []byte("retry")))

	watching := s.ui("", "--by", "ann", "--read-only")
	b.visit(watching + "message?key=order-0001")
	b.reads("completed")
	assert.False(t, b.shown("<form method=\"post\""))
}
