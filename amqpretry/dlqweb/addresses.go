package dlqweb

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"syscall"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/amqpretry/watermill-retry/internal/httpapi"
)

// addresses are those of machines in the errors of Go's net packages and of the clients. Pages and
// the API tell none: the log has them.
var addresses = []struct {
	found   *regexp.Regexp
	instead string
}{
	{regexp.MustCompile(`\b(?:https?|amqps?)://[^\s"'<>]*[^\s"'<>:;,.]`), "(address)"},
	{regexp.MustCompile(`\b(dial|read|write) (tcp|udp)[46]? \S*[^\s:]`), "$1 $2 (address)"},
	{regexp.MustCompile(`\blookup \S*[^\s:](?: on \S*[^\s:])?`), "lookup (address)"},
	{regexp.MustCompile(`\bcertificate is valid for [^;]*, not [^\s;]+`), "certificate is valid for other names"},
	{regexp.MustCompile(`(?:\b\d{1,3}(?:\.\d{1,3}){3}|\[[0-9A-Fa-f:.]+\]):\d+\b`), "(address)"},
}

func withoutAddresses(text string) string {
	for _, a := range addresses {
		text = a.found.ReplaceAllString(text, a.instead)
	}

	return text
}

// explain tells of an error on the page of a run, without addresses and the place of the folder.
func (k *runs) explain(err error) string {
	text := strings.ReplaceAll(err.Error(), k.journal.folder+"/", "")

	return cut(withoutAddresses(text), 2000)
}

// log has the whole error.
func (k *runs) log(r *running, err error) {
	if err != nil && !isStop(err) {
		k.console.config.Logger.Error("A run has failed", err, watermill.LogFields{"run": r.snapshot().ID})
	}
}

// ofManagement is what an error of the management API is on a page.
func ofManagement(err *httpapi.Error) *problem {
	p := &problem{Status: http.StatusBadGateway, Title: "The management API does not answer",
		Detail: "The console's log says why.",
		Do:     "Try again in some seconds. Check the address that the console was given."}
	switch {
	case err.Status == http.StatusUnauthorized, err.Status == http.StatusForbidden:
		p.Title = "The management API refused the console's user"
		p.Do = "Check its password, its tag monitoring and its access to the virtual host."
	case err.Status != 0:
		p.Title = fmt.Sprintf("The management API answered %d", err.Status)
		p.Do = "Check that the address that the console was given is the API's."
	}

	return p
}

// noFolder is what keeps a run from being stored.
func noFolder(err error) *problem {
	p := &problem{Status: http.StatusInsufficientStorage, Title: "Cannot store the run, so it was not started",
		Detail: "The console's log says why.", Do: "Make room in the console's folder.", cause: err}
	if number := syscall.Errno(0); errors.As(err, &number) {
		p.Detail = number.Error()
	}

	return p
}
