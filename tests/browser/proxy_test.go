package browser

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/await"
)

// Behind nginx, at the root, below a path that nginx cuts off, and below one that it passes on:
// pages have their style, and a run is planned, confirmed and seen to its end.
func TestBehindAProxy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	address := nginx(t, map[string]string{
		"/":             w.console("").URL,
		"/ops/dead/":    w.console("").URL + "/",
		"/team/a/dead/": w.console("/team/a/dead").URL,
	})
	for i, root := range []string{"/", "/ops/dead/", "/team/a/dead/"} {
		t.Run(root, func(t *testing.T) {
			w.healthy.Store(false)
			id := fmt.Sprintf("order-%d", i)
			w.die(id)
			b := newTab(t)
			by := mouse{b}
			b.open(address + root)
			b.sees("1 dead letter in 1 of 1 queue")
			styled := value(b, chromedp.Evaluate[bool](`getComputedStyle(document.querySelector(".top")).display === "flex"`))
			assert.True(t, styled, "without its style")
			by.press(w.queue + ".dlq")
			b.sees("Causes")
			assert.Equal(t, root+"queue", b.path())
			by.press("Replay…")
			b.sees("would be replayed")
			w.healthy.Store(true)
			by.press("Replay 1 message to " + w.queue)
			b.sees("1 of 1 replayed")
			assert.Equal(t, root+"run", b.path())
			w.Has(w.queue+".dlq", 0)
			b.clean()
		})
	}
}

// nginx starts a reverse proxy from paths to servers.
func nginx(t *testing.T, routes map[string]string) string {
	t.Helper()
	folder := t.TempDir()
	out, err := exec.Command("../../scripts/nginx", filepath.Join(folder, "debian")).Output()
	require.NoError(t, err, "no nginx: scripts/nginx says why")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := listener.Addr().String()
	require.NoError(t, listener.Close())

	var locations strings.Builder
	for path, to := range routes {
		fmt.Fprintf(&locations, "location %s { proxy_pass %s; proxy_set_header Host $http_host; }\n", path, to)
	}
	var temporary strings.Builder
	for _, name := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		fmt.Fprintf(&temporary, "%s_temp_path %s/%s;\n", name, folder, name)
	}
	file := filepath.Join(folder, "nginx.conf")
	require.NoError(t, os.WriteFile(file, []byte(fmt.Sprintf(`daemon off; pid %s/pid; error_log %[1]s/error.log;
events {}
http {
access_log off;
%s
server {
listen %s;
%s}
}
`, folder, &temporary, address, &locations)), 0o600))

	command := exec.Command(strings.TrimSpace(string(out)), "-p", folder, "-c", file)
	command.Stderr = os.Stderr
	require.NoError(t, command.Start())
	t.Cleanup(func() {
		_ = command.Process.Signal(syscall.SIGTERM)
		_ = command.Wait()
	})
	await.Until(t, func() bool {
		response, err := http.Get("http://" + address + "/")
		if err == nil {
			_ = response.Body.Close()
		}
		return err == nil && response.StatusCode == http.StatusOK
	}, "the proxy answers")

	return "http://" + address
}
