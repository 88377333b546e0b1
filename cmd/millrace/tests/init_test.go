package tests_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/cmd/millrace/internal/skeleton"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

var inits = []struct {
	name string
	args []string
}{
	{"init-help", []string{"init", "--help"}},
	{"init-list", []string{"init", "--module", "example.com/billing", "--outbox", "--policy", "--dry-run", "billing"}},
	{"init-nothing", []string{"init"}},
	{"init-wrong", []string{"init", "--module", "example.com/bill\"ing", "--database", "oracle", "--broker", "pigeon"}},
	{"init-no-tables", []string{"init", "--module", "example.com/billing", "--database", "sqlite", "--broker", "sql"}},
	{"init-not-empty", []string{"init", "--module", "example.com/billing", "full"}},
	{"init-there", []string{"init", "--module", "example.com/billing", "--beside", "full"}},
	{"init-file", []string{"init", "--module", "example.com/billing", "full/go.mod"}},
	{"init", []string{"init", "--module", "example.com/billing", "--outbox", "billing"}},
	{"init-json", []string{"init", "--module", "example.com/billing", "--json", "a b/it's"}},
}

func TestInit(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(folder, "full"), 0o700))
	for _, name := range []string{"go.mod", "notes.txt"} {
		require.NoError(t, os.WriteFile(filepath.Join(folder, "full", name), []byte(name), 0o600))
	}
	for _, i := range inits {
		cmd := command(t.Context(), "", i.args...)
		cmd.Dir = folder
		golden(t, i.name, i.args, finish(t, cmd))
	}
	left, err := filepath.Glob(filepath.Join(folder, "full", "*"))
	require.NoError(t, err)
	assert.Len(t, left, 2, "nothing was written beside")
	text, err := os.ReadFile(filepath.Join(folder, "billing", "monitoring", "alerts.yml"))
	require.NoError(t, err)
	alerts, err := os.ReadFile("../../../metrics/alerts.yml")
	require.NoError(t, err)
	assert.Equal(t, string(alerts), string(text))
}

// TestInitQueue: where messages that fail hold up others, a service has the queue without being asked.
func TestInitQueue(t *testing.T) {
	t.Parallel()
	for args, queue := range map[string]bool{"--broker=rabbitmq": false, "--broker=redis": true, "--broker=redis --queue=false": false} {
		dir := t.TempDir()
		require.Zero(t, call(t, "", append([]string{"init", "--module", "example.com/billing", dir}, strings.Fields(args)...)...).code)
		text, err := os.ReadFile(filepath.Join(dir, "service.go"))
		require.NoError(t, err)
		assert.Equal(t, queue, strings.Contains(string(text), "pubsub.Durable"), args)
	}
}

// TestInitWithoutPermission: who may not write is told so, and nothing is left.
func TestInitWithoutPermission(t *testing.T) {
	t.Parallel()
	folder, err := os.MkdirTemp("/tmp", "millrace-init-") // a user without rights can reach it
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, os.Chmod(folder, 0o700)) //nolint:gosec // a folder
		assert.NoError(t, os.RemoveAll(folder))
	})
	require.NoError(t, os.Chmod(folder, 0o555)) //nolint:gosec // on purpose
	cmd := command(t.Context(), "", "init", "--module", "example.com/billing", filepath.Join(folder, "new", "billing"))
	if os.Getuid() == 0 {
		program := filepath.Join(folder, "millrace")
		// A process of its own copies it: what another test starts could inherit the file from this one, open for writing.
		require.NoError(t, exec.CommandContext(t.Context(), "cp", binary, program).Run()) //nolint:gosec // a program
		cmd.Path = program
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		cmd.Dir = folder
	}
	r := finish(t, cmd)
	assert.Equal(t, 1, r.code, r.out)
	assert.Contains(t, r.err, "permission denied")
	assert.NoFileExists(t, filepath.Join(folder, "new"))
}

// TestInitOnAFullDisk: what was written is taken back. A limit on the size of files stands for a full disk.
func TestInitOnAFullDisk(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "bash", "-c", `ulimit -f 8; exec "$0" init --module example.com/billing new/billing`, binary)
	cmd.Dir = folder
	r := finish(t, cmd)
	assert.Equal(t, 1, r.code, r.err)
	assert.Contains(t, r.err, "file too large")
	left, err := os.ReadDir(folder)
	require.NoError(t, err)
	assert.Empty(t, left)
}

// triedServices are those that this process has tried: make stress, which runs each test many times, tries each once.
var triedServices = map[string]bool{}

// TestInitRuns builds services, plays their own tests, and has each handle a message that comes twice.
func TestInitRuns(t *testing.T) {
	testdb.Turn(t, 1, long)
	t.Parallel()
	if testing.Short() {
		t.Skip("-short builds no services")
	}
	for _, s := range testdb.Sample(t, 1, skeleton.Pairs("example.com/none")) {
		name := fmt.Sprintf("%s %s outbox %t gate %t queue %t policy %t", s.Database, s.Broker, s.Outbox, s.Gate, s.Queue, s.Policy)
		if triedServices[name] {
			continue
		}
		triedServices[name] = true
		t.Run(name, func(t *testing.T) { newMade(t, s).try() })
	}
}

// made is a service that init has made.
type made struct {
	*testing.T
	skeleton.Service
	folder, name string
	env          []string
}

// newMade has init make a service, beside a go.work in which Millrace is what is checked out here.
func newMade(t *testing.T, s skeleton.Service) *made {
	t.Helper()
	m := &made{T: t, Service: s, name: fmt.Sprintf("try%d", time.Now().UnixNano()), folder: filepath.Join(t.TempDir(), "service")}
	args := []string{"init", "--module", "example.com/" + m.name, "--database", s.Database, "--broker", s.Broker}
	for flag, set := range map[string]bool{"--outbox": s.Outbox, "--gate": s.Gate, "--policy": s.Policy} {
		if set {
			args = append(args, flag)
		}
	}
	if s.Queue != s.HoldsUp() { // which is the default
		args = append(args, fmt.Sprintf("--queue=%t", s.Queue))
	}
	r := call(t, "", append(args, m.folder)...)
	require.Zero(t, r.code, r.err)

	root, err := filepath.Abs("../../..")
	require.NoError(t, err)
	work, err := os.ReadFile(filepath.Join(root, "go.work"))
	require.NoError(t, err)
	text := regexp.MustCompile(`(?m)^(\t|.* => )\.(/.*)?$`).ReplaceAllString(string(work), "${1}"+root+"$2") + "\nuse " + m.folder + "\n"
	file := filepath.Join(filepath.Dir(m.folder), "go.work")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	sums, err := os.ReadFile(filepath.Join(root, "go.work.sum"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file+".sum", sums, 0o600))
	// The versions are those of this repository, all of which are in the module cache.
	m.env = append(os.Environ(), "GOWORK="+file, "GOFLAGS=-mod=readonly", "GOPROXY=off", "GOSUMDB=off", "CGO_ENABLED=0", "CI=true")

	cleanup, err := os.ReadFile(filepath.Join("testdata", "init", s.Broker+".txt"))
	if s.Broker != "sql" {
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(m.folder, "cleanup_test.go"), cleanup, 0o600))
		m.env = append(m.env, "BROKER_URL="+m.broker())
	}
	return m
}

// broker is where the broker of the bed is.
func (m *made) broker() string {
	m.Helper()
	variable := "MILLRACE_TEST_" + strings.ToUpper(m.Broker)
	at := os.Getenv(variable)
	if at == "" {
		testdb.Missing(m, variable, `eval "$(tests/services.sh)"`)
	}
	return at
}

// run runs a program in the folder of the service.
func (m *made) run(program string, args ...string) string {
	m.Helper()
	cmd := exec.CommandContext(m.Context(), program, args...)
	cmd.Dir, cmd.Env = m.folder, m.env
	said, err := cmd.CombinedOutput()
	require.NoError(m, err, "%s %v: %s", program, args, said)
	return string(said)
}

// database returns an empty database, with the settings that the service has by itself.
func (m *made) database() string {
	m.Helper()
	if m.Database == "sqlite" {
		return m.DatabaseURL(m.TempDir(), "test")
	}
	_, settings, _ := strings.Cut(m.DatabaseURL("", ""), "?")
	settings = strings.ReplaceAll(settings, "transaction_isolation", "tx_isolation") // before MariaDB 11.1
	dsn := testdb.On(m, m.Database, testdb.Empty()).DSN
	if strings.Contains(dsn, "?") {
		return dsn + "&" + settings
	}
	return dsn + "?" + settings
}

func (m *made) try() {
	assert.Empty(m, m.run("gofmt", "-l", "."))
	m.run("go", "vet", ".")
	program, tests := filepath.Join(m.TempDir(), "service"), filepath.Join(m.TempDir(), "service.test")
	m.run("go", "build", "-o", program, ".")
	m.run("go", "test", "-c", "-o", tests, ".")
	urls := []string{m.database()}
	if testdb.Long() {
		urls = append(urls, m.database(), m.database(), m.database())
	}
	m.env = append(m.env, "TEST_DATABASE_URL="+strings.Join(urls, " "))
	args := []string{"-test.v", "-test.run", "TestEachPaymentCountsOnce"}
	if !testdb.Long() {
		args = append(args, "-test.short")
	}
	said := m.run(tests, args...)
	assert.Contains(m, said, "--- PASS: TestEachPaymentCountsOnce")
	if m.Policy {
		assert.Contains(m, m.run(binary, "policy", "check", "policy.yaml"), "nothing is wrong")
	}

	m.env = append(m.env, "DATABASE_URL="+m.database(), "LISTEN=127.0.0.1:0")
	if m.Broker != "sql" {
		defer m.run(tests, "-test.run", "TestCleanup")
	}
	first := m.launch(program)
	at := first.at
	payment := url.Values{"id": {m.name}, "account": {"ann"}, "amount": {"10"}, "version": {"1"}}
	for range 2 { // who got no answer sends it again
		assert.Equal(m, http.StatusAccepted, m.send(http.MethodPost, at+"/payments", payment).StatusCode)
	}
	rig.Eventually(m, "both are handled", func() bool {
		page := m.page(at + "/metrics")
		return strings.Contains(page, `millrace_inbox_completed_total{consumer="accounts"} 1`) && strings.Contains(page, `millrace_inbox_duplicates_total{consumer="accounts"`)
	})
	if m.Outbox {
		rig.Eventually(m, "the receipt is sent", func() bool {
			return strings.Contains(m.page(at+"/metrics"), fmt.Sprintf(`millrace_outbox_published_total{topic="%s-receipts"} 1`, m.name))
		})
	}
	assert.Equal(m, "10\n", m.page(at+"/accounts/ann"))
	assert.Equal(m, `{"status":"ok","problems":[]}`+"\n", m.page(at+"/healthz"))
	assert.Equal(m, http.StatusNotFound, m.send(http.MethodGet, at+"/accounts/bob", nil).StatusCode)
	assert.Equal(m, http.StatusBadRequest, m.send(http.MethodPost, at+"/payments", url.Values{"id": {"2"}}).StatusCode)

	// A deployment: the next process is there before this one ends, and goes on.
	second := m.launch(program)
	first.stop()
	foreign := m.Broker == "nats" || m.Broker == "redis"
	if foreign {
		m.run(tests, "-test.run", "TestForeign|TestMade")
	}
	if foreign && m.Durable() {
		m.run(tests, "-test.run", "TestPoison")
	}
	payment = url.Values{"id": {m.name + "-2"}, "account": {"ann"}, "amount": {"5"}, "version": {"2"}}
	assert.Equal(m, http.StatusAccepted, m.send(http.MethodPost, second.at+"/payments", payment).StatusCode)
	rig.Eventually(m, "the next process handles it", func() bool { return m.page(second.at+"/accounts/ann") == "15\n" })
	if foreign {
		rig.Eventually(m, "the foreign message is kept", func() bool {
			return strings.Contains(m.page(second.at+"/metrics"), `millrace_inbox_parked_total{consumer="accounts",reason="no key"} 1`)
		})
	}
	if m.Broker == "redis" { // the stream goes, and its group
		m.run(tests, "-test.run", "TestCleanup")
		require.NoError(m, rig.Within(m, second.ended, "it ends"))
		assert.Error(m, second.Wait())
		assert.Contains(m, second.log.String(), "a subscriber has ended")
		return
	}
	second.stop()
}

// running is a process of a service.
type running struct {
	*exec.Cmd
	made  *made
	at    string
	log   *bytes.Buffer
	ended <-chan error
}

func (m *made) launch(program string) *running {
	m.Helper()
	r := &running{Cmd: exec.CommandContext(m.Context(), program), made: m, log: new(bytes.Buffer)}
	r.Dir, r.Env = m.folder, m.env
	out, err := r.StderrPipe()
	require.NoError(m, err)
	require.NoError(m, r.Start())
	m.Cleanup(func() { _ = r.Process.Kill() }) // or it has ended
	lines := bufio.NewScanner(io.TeeReader(out, r.log))
	for subscribed := false; (r.at == "" || !subscribed) && lines.Scan(); {
		if _, address, serves := strings.Cut(lines.Text(), "serving address="); serves {
			r.at = "http://" + address
		}
		subscribed = subscribed || strings.Contains(lines.Text(), "Starting handler")
	}
	require.NotEmpty(m, r.at, "%s", r.log)
	r.ended = rig.Go(func() error { _, err := io.Copy(r.log, out); return err })
	return r
}

// stop ends the process in good order.
func (r *running) stop() {
	m := r.made
	m.Helper()
	require.NoError(m, r.Process.Signal(syscall.SIGTERM))
	require.NoError(m, rig.Within(m, r.ended, "it ends"))
	assert.NoError(m, r.Wait(), "%s", r.log)
	assert.NotContains(m, r.log.String(), "should be changed", "settings of the database")
	for line := range strings.Lines(r.log.String()) {
		closes := m.Broker == "sql" && strings.Contains(line, "context canceled") // watermill-sql says so when it is closed
		foreign := strings.Contains(line, "inbox: message parked for an operator") && strings.Contains(line, "no key")
		poison := strings.Contains(line, "invalid character 'p'")
		assert.True(m, closes || foreign || poison || !strings.Contains(line, " ERROR "), line)
	}
}

func (m *made) send(method, page string, form url.Values) *http.Response {
	m.Helper()
	request, err := http.NewRequestWithContext(m.Context(), method, page, strings.NewReader(form.Encode()))
	require.NoError(m, err)
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	response, err := http.DefaultClient.Do(request)
	require.NoError(m, err)
	body, err := io.ReadAll(response.Body)
	require.NoError(m, err)
	require.NoError(m, response.Body.Close())
	response.Body = io.NopCloser(bytes.NewReader(body))
	return response
}

func (m *made) page(at string) string {
	m.Helper()
	text, err := io.ReadAll(m.send(http.MethodGet, at, nil).Body)
	require.NoError(m, err)
	return string(text)
}
