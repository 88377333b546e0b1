package servers

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// Prometheus runs a Prometheus of t's own that scrapes a target every second and evaluates rules
// twice as often. The job is payments, unless the target gives another one as a label.
// MILLRACE_TEST_PROMETHEUS names the program; without it, it is found like the others.
func Prometheus(t testing.TB, target, rules string) *Server {
	t.Helper()
	prometheus := os.Getenv("MILLRACE_TEST_PROMETHEUS")
	if prometheus == "" || testing.Short() {
		prometheus = program(t, "prometheus", "/usr/bin")
	}
	h := newHome(t, "")
	addr := local(freePort(t))
	h.write("rules.yml", rules)
	h.write("prometheus.yml", fmt.Sprintf(`
global: {scrape_interval: 1s, evaluation_interval: 500ms}
rule_files: [rules.yml]
scrape_configs: [{job_name: payments, honor_labels: true, static_configs: [{targets: [%q]}]}]
`, target))
	return launch(&Server{
		t: t, name: "Prometheus", addr: addr, dsn: "http://" + addr, home: h,
		command: func() *exec.Cmd {
			return h.cmd(prometheus, "--config.file="+h.path("prometheus.yml"), "--storage.tsdb.path="+h.path("data"),
				"--web.listen-address="+addr)
		},
		ready: func(ctx context.Context) error { return ready(ctx, "http://"+addr+"/-/ready") },
		term:  syscall.SIGTERM,
	})
}

func ready(ctx context.Context, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close() //nolint:errcheck // the body is not read
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, response.Status)
	}
	return nil
}
