// Package health answers the probes of Kubernetes, and of people, about a retrier or a processor.
//
//	http.Handle("/", health.Handler(retrier, router))
//
// It is a package of its own, as package amqpretry does not need net/http.
package health

import (
	"fmt"
	"net/http"
	"path"
	"regexp"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/retry"
)

// Source is a *amqpretry.Retrier or a *processor.Processor.
type Source interface {
	// Health tells whether it consumes, and what is wrong.
	Health() retry.Health
}

// kinds in the order in which they are shown.
var kinds = []retry.ProblemKind{
	retry.ProblemProgress, retry.ProblemRunning, retry.ProblemConsumer, retry.ProblemConnection,
	retry.ProblemCredentials, retry.ProblemAlarm, retry.ProblemLeader, retry.ProblemCopies, retry.ProblemHandlers,
	retry.ProblemMainQueue,
}

// mostLines is how many problems of a kind are shown.
const mostLines = 50

// Handler serves two probes, under any prefix:
//
//   - /livez is 200 while the process serves, whatever the broker does. It is 503 for a processor
//     that does nothing any more, which only a restart helps.
//   - /readyz is 200 while the source is ready and each of the routers runs, which it does once
//     all of its handlers are subscribed; else 503 with a line for each check.
//
// With ?verbose, the answer has these lines in any case: [+] for a check without problem, [-] for a
// problem that makes the answer 503, and [!] for one that is only reported. Lines name queues,
// hosts and users, and no passwords. A probe never waits for the broker.
func Handler(source Source, routers ...*message.Router) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := path.Base(r.URL.Path)
		if name != "livez" && name != "readyz" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Cache-Control", "no-store")
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "wanted GET or HEAD", http.StatusMethodNotAllowed)
			return
		}
		lines, well := check(name, source.Health(), routers)
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		result := "passed"
		if !well {
			w.WriteHeader(http.StatusServiceUnavailable)
			result = "failed"
		}
		if well && !r.URL.Query().Has("verbose") {
			_, _ = fmt.Fprintln(w, "ok")
			return
		}
		_, _ = fmt.Fprintf(w, "%s%s check %s\n", strings.Join(lines, ""), name, result)
	})
}

// check makes the lines of a probe, and says whether it passes.
func check(probe string, h retry.Health, routers []*message.Router) (lines []string, well bool) {
	asked := kinds
	if probe == "livez" {
		asked = kinds[:1] // the others get no better by a restart
	}
	well = true
	line := func(mark, name, text string) { lines = append(lines, mark+name+" "+text+"\n") }
	for _, router := range routers {
		switch {
		case probe == "livez":
		case router.IsRunning():
			line("[+]", "router", "ok")
		default:
			well = false
			line("[-]", "router", "failed: not all handlers are subscribed yet; see the other lines, or the log")
		}
	}
	for _, kind := range asked {
		found := 0
		for _, p := range h.Problems {
			if p.Kind != kind {
				continue
			}
			well = well && !p.NotReady
			switch found++; {
			case found > mostLines+1:
			case found > mostLines:
				line("[!]", string(kind), "has further problems: see the log")
			case p.NotReady:
				line("[-]", string(kind), "failed: "+text(p))
			default:
				line("[!]", string(kind), "warning: "+text(p))
			}
		}
		if found == 0 {
			line("[+]", string(kind), "ok")
		}
	}

	return lines, well
}

var userInfo = regexp.MustCompile(`://\S*@`)

// text is one line, without secrets that an error of somebody else may have.
func text(p retry.Problem) string {
	t := userInfo.ReplaceAllString(strings.Join(strings.Fields(p.Text), " "), "://")
	if !p.Since.IsZero() {
		t += fmt.Sprintf(" (since %s, for %s)", p.Since.UTC().Format(time.RFC3339),
			time.Since(p.Since).Round(time.Second))
	}

	return t
}
