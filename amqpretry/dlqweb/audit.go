package dlqweb

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

// action is what an audit record is about.
type action string

const (
	actionPlan     action = "plan"     // somebody wants to know what a run would do
	actionConfirm  action = "confirm"  // a run begins
	actionStop     action = "stop"     // a run ends, or is discarded
	actionDownload action = "download" // a body or a file leaves
	actionPark     action = "park"     // a cause is told at the end, with a note
	actionUnpark   action = "unpark"   // and no more
)

// audit writes that something is about to be done. What cannot be written is not done.
func (c *Console) audit(ctx context.Context, who visitor, what action, r Run) error {
	record := slog.NewRecord(time.Now(), slog.LevelInfo, "dead letters: "+string(what), 0)
	record.AddAttrs(slog.String("action", string(what)), slog.String("user", string(who.User)),
		slog.String("role", who.Role.String()), slog.String("kind", string(r.Kind)), slog.String("queue", r.Queue))
	if r.ID != "" {
		record.AddAttrs(slog.String("run", r.ID))
	}
	record.AddAttrs(slog.String("selection", r.FilterText()))
	if to := r.Where(); to != "" {
		record.AddAttrs(slog.String("to", to))
	}
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

// auditDownload writes that somebody is about to get a file with messages.
func (c *Console) auditDownload(ctx context.Context, who visitor, t target, what string) error {
	record := slog.NewRecord(time.Now(), slog.LevelInfo, "dead letters: "+string(actionDownload), 0)
	record.AddAttrs(slog.String("action", string(actionDownload)), slog.String("user", string(who.User)),
		slog.String("role", who.Role.String()), slog.String("queue", t.Queue), slog.String("file", what))

	return c.writeAudit(ctx, record)
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
