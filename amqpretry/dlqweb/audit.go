package dlqweb

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"path"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"golang.org/x/time/rate"
)

// action is what an audit record is about.
type action string

const (
	actionPlan     action = "plan"     // somebody wants to know what a run would do
	actionConfirm  action = "confirm"  // a run begins
	actionStop     action = "stop"     // somebody ends a run, or discards it
	actionEnd      action = "end"      // a run is over
	actionDownload action = "download" // a body or a file leaves
	actionView     action = "view"     // something is shown
)

// recordOf begins an audit record. The role is left out where it is not known.
func recordOf(what action, who visitor) slog.Record {
	record := slog.NewRecord(time.Now(), slog.LevelInfo, "dead letters: "+string(what), 0)
	record.AddAttrs(slog.String("action", string(what)), slog.String("user", string(who.User)))
	if who.Address != "" {
		record.AddAttrs(slog.String("address", who.Address), slog.String("role", who.Role.String()))
	}

	return record
}

func addRun(record *slog.Record, r Run) {
	record.AddAttrs(slog.String("kind", string(r.Kind)), slog.String("queue", r.Queue))
	if r.ID != "" {
		record.AddAttrs(slog.String("run", r.ID))
	}
	record.AddAttrs(slog.String("selection", r.FilterText()))
	for name, text := range map[string]string{"to": r.Where(), "note": r.Note} {
		if text != "" {
			record.AddAttrs(slog.String(name, text))
		}
	}
}

// audit writes that something is about to be done. What cannot be written is not done.
func (c *Console) audit(ctx context.Context, who visitor, what action, r Run) error {
	record := recordOf(what, who)
	addRun(&record, r)
	if what == actionConfirm {
		record.AddAttrs(slog.Int("messages", r.Most()))
		if r.takes() {
			record.AddAttrs(slog.String("undo_file", c.runs.journal.path(r.ID, fileUndo)))
		}
		if r.Change != nil {
			record.AddAttrs(slog.Bool("edited", true))
		}
	}

	return c.writeAudit(ctx, record)
}

// auditEnd writes how a run has ended. who has confirmed it, or has planned what nobody has
// confirmed.
func (c *Console) auditEnd(who visitor, r Run) {
	record := recordOf(actionEnd, who)
	addRun(&record, r)
	record.AddAttrs(slog.String("outcome", string(r.State)), slog.Int("messages", r.Most()),
		slog.Int("done", r.Done))
	for name, n := range map[string]int{"unsettled": r.Unsettled, "refused": r.Refused, "dropped": r.Dropped} {
		if n > 0 {
			record.AddAttrs(slog.Int(name, n))
		}
	}
	if r.StoppedBy != "" {
		record.AddAttrs(slog.String("stopped_by", string(r.StoppedBy)))
	}
	if r.Error != "" {
		record.AddAttrs(slog.String("error", r.Error))
	}
	_ = c.writeAudit(context.WithoutCancel(c.ctx), record) // the log has what cannot be written: the run is over
}

// auditDownload writes that somebody is about to get a file with messages.
func (c *Console) auditDownload(ctx context.Context, who visitor, t target, what string) error {
	record := recordOf(actionDownload, who)
	record.AddAttrs(slog.String("queue", t.Queue), slog.String("file", what))

	return c.writeAudit(ctx, record)
}

// refusals bounds how many refusals are recorded: somebody with a low role cannot fill the audit
// log.
type refusals struct {
	limit *rate.Limiter

	mu      sync.Mutex
	skipped int
}

func newRefusals() refusals {
	const burst = 30
	return refusals{limit: rate.NewLimiter(1, burst)}
}

// auditRefusal writes that somebody has tried what his role does not allow. Other errors are no
// refusals.
func (c *Console) auditRefusal(r *http.Request, who visitor, err error) {
	var p *problem
	if !errors.As(err, &p) || p.needs == nil {
		return
	}
	c.refusals.mu.Lock()
	defer c.refusals.mu.Unlock()
	if !c.refusals.limit.Allow() {
		c.refusals.skipped++
		return
	}
	record := recordOf(attempted(r), who)
	record.AddAttrs(slog.String("outcome", "refused"), slog.String("needs", p.needs.String()),
		slog.String("path", cut(r.URL.Path, mostSummary)))
	for name, value := range map[string]string{"kind": string(p.about.Kind), "run": p.about.ID,
		"queue": cmp.Or(p.about.Queue, r.PathValue("queue"), r.URL.Query().Get("queue"))} {
		if value != "" {
			record.AddAttrs(slog.String(name, cut(value, maxName)))
		}
	}
	if c.refusals.skipped > 0 {
		record.AddAttrs(slog.Int("not_recorded", c.refusals.skipped))
		c.refusals.skipped = 0
	}
	_ = c.writeAudit(r.Context(), record) // it is refused anyway
}

// attempted is what a request is about.
func attempted(r *http.Request) action {
	last := path.Base(r.URL.Path)
	switch {
	case r.Method == http.MethodDelete, last == "stop":
		return actionStop
	case last == "confirm":
		return actionConfirm
	case r.Method == http.MethodPost:
		return actionPlan
	case last == "file", last == "body":
		return actionDownload
	default:
		return actionView
	}
}

func (c *Console) writeAudit(ctx context.Context, record slog.Record) error {
	if c.config.Audit == nil {
		return nil // it only shows
	}
	if err := c.config.Audit.Handle(ctx, record); err != nil {
		c.config.Logger.Error("Cannot write to the audit log", err, watermill.LogFields{"action": record.Message})
		return &problem{Status: http.StatusServiceUnavailable,
			Title: "Cannot write the audit log, so nothing was done",
			Do:    "Make room for the audit log. The console's log says more."}
	}

	return nil
}

// addressOf is the address of the client, or of the reverse proxy before it.
func addressOf(r *http.Request) string {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}

	return peer.Addr().Unmap().String()
}
