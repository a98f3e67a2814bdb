package dlqweb

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
)

// problem is an error of an answer, as RFC 9457 has it.
type problem struct {
	Status int    `json:"status"`
	Title  string `json:"title"`
	Detail string `json:"detail,omitempty"`
	// Do is what to do about it.
	Do string `json:"do,omitempty"`
	// Run is the run that is in the way.
	Run string `json:"run,omitempty"`

	// retry is when to try again what was refused with 429 or 503; 0 means retryAfter.
	retry time.Duration
	// needs is the role that somebody lacks, and about the run that it is about, if it is known.
	needs *Role
	about Run
	// cause is for the log.
	cause error
}

// retryAfter is when to try again where nothing better is known.
const retryAfter = 5 * time.Second

// announce sets the headers that belong to the status.
func (p *problem) announce(h http.Header) {
	if p.Status == http.StatusTooManyRequests || p.Status == http.StatusServiceUnavailable {
		after := max(cmp.Or(p.retry, retryAfter), time.Second)
		h.Set("Retry-After", strconv.Itoa(int((after+time.Second-1)/time.Second)))
	}
}

func (p *problem) Error() string { return p.Title + ": " + p.Detail }

// problemOf makes one of any error. Nothing of an error that is not known is told: it may name
// addresses.
func problemOf(err error) *problem {
	var known *problem
	var noQueue *dlq.NoQueueError
	var notFound *dlq.NotFoundError
	var unsafe *dlq.UnsafeError
	var busy *dlq.BusyError
	var hidden *dlq.HiddenError
	var access *dlq.AccessError
	var incomplete *dlq.IncompleteError
	var field *config.FieldError
	var api *httpapi.Error
	switch {
	case errors.As(err, &known):
		return known
	case errors.As(err, &noQueue):
		return &problem{Status: http.StatusNotFound, Title: "There is no such queue", Detail: noQueue.Error(),
			Do: "Check its name. A dead-letter queue exists once its service has subscribed."}
	case errors.As(err, &notFound):
		return &problem{Status: http.StatusNotFound, Title: "This dead letter no longer exists",
			Detail: notFound.Error(), Do: "It may have been replayed or deleted. Reload the queue."}
	case errors.As(err, &unsafe):
		return &problem{Status: http.StatusConflict, Title: "Cannot browse this queue: messages could be lost",
			Detail: withoutAddresses(unsafe.Found), Do: unsafe.Do}
	case errors.As(err, &busy):
		return &problem{Status: http.StatusConflict, Title: "Another client is working on this queue",
			Detail: busy.Error(), Do: "Wait for it to end."}
	case errors.As(err, &hidden):
		return &problem{Status: http.StatusConflict, Title: "The queue may hold messages that AMQP does not show",
			Detail: withoutAddresses(hidden.Why), Do: hidden.Do}
	case errors.As(err, &access):
		return &problem{Status: http.StatusBadGateway, Title: "The broker refused",
			Detail: withoutAddresses(access.Error()), Do: "Grant this permission to the console's user."}
	case errors.As(err, &incomplete):
		return &problem{Status: http.StatusConflict, Title: "Cannot see all messages",
			Detail: incomplete.Error(), Do: "Try again when no other consumer takes messages from the queue."}
	case errors.As(err, &field):
		return &problem{Status: http.StatusBadRequest, Title: "The request is invalid",
			Detail: inRequest.Replace(err.Error())}
	case errors.As(err, &api):
		return ofManagement(api)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return &problem{Status: http.StatusGatewayTimeout, Title: "That took too long",
			Do: "Try again. A large queue takes longer."}
	default:
		return &problem{Status: http.StatusBadGateway, Title: "The broker cannot be reached",
			Detail: "The console's log says why.", Do: "Try again in some seconds."}
	}
}

// inRequest has the names that options have in a form, a query or a JSON object.
var inRequest = strings.NewReplacer("Plan.Canary.Messages", "canary", "Plan.Canary.Tolerate", "tolerate", "Plan.Limit",
	"limit", "Plan.Rate", "rate", "Plan.To", "to", "Plan.Note", "note", "Plan.Until", "until", "Plan.Change", "edit",
	"Change.Set", "edit.set_headers", "Change.Remove", "edit.remove_headers", "Canary.Messages", "canary")

func notFound(what string) *problem {
	return &problem{Status: http.StatusNotFound, Title: what + " does not exist"}
}

// badRequest is what is wrong with a value of a form, a query or a JSON object.
func badRequest(field, wanted, found string) *problem {
	return &problem{Status: http.StatusBadRequest, Title: "The request is invalid",
		Detail: (&config.FieldError{Path: field, Wanted: wanted, Found: found}).Error()}
}

// badForm is what is wrong with a form that cannot be read.
func badForm(err error) error {
	var tooLarge *http.MaxBytesError
	var known *problem
	if errors.As(err, &tooLarge) || errors.As(err, &known) {
		return err
	}

	return &problem{Status: http.StatusBadRequest, Title: "The form cannot be read", Detail: err.Error()}
}

func (p *problem) writeJSON(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.Status)
	type document struct {
		Type string `json:"type"`
		*problem
	}
	_ = json.NewEncoder(w).Encode(document{"about:blank", p})
}
