package dlqweb_test

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A run is recorded before it begins and when it is over, with who, from where, and what came of
// it.
func TestAuditOfARun(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.fill(0, 3)
	r := f.plan(`{"kind":"purge","queue":"` + f.dead + `","filter":{"uuid":["uuid-0","uuid-1"]}}`)
	f.confirm(r.ID)
	f.await(r.ID, "done")
	slow := f.plan(`{"kind":"move","to":"` + f.main + `","rate":0.01,"queue":"` + f.dead + `"}`)
	f.confirm(slow.ID)
	f.await(slow.ID, "running")
	f.send(http.MethodDelete, "/api/v1/runs/"+slow.ID, "", "")
	f.await(slow.ID, "stopped")
	discarded := f.plan(`{"kind":"purge","queue":"` + f.dead + `"}`)
	f.send(http.MethodDelete, "/api/v1/runs/"+discarded.ID, "", "")

	common := map[string]any{"level": "INFO", "user": "ada", "address": "127.0.0.1", "role": "delete", "queue": f.dead}
	records := f.auditLog.records(t)
	for _, record := range records {
		for name, value := range common {
			assert.Equal(t, value, record[name], "%s: %v", name, record)
			delete(record, name)
		}
	}
	purge := map[string]any{"kind": "purge", "selection": "uuid uuid-0 or uuid-1"}
	move := map[string]any{"kind": "move", "selection": "all messages", "to": f.main}
	all := map[string]any{"kind": "purge", "selection": "all messages"}
	undo := func(id string) string { return filepath.Join(f.config.Folder, id, "undo.jsonl") }
	with := func(what string, of map[string]any, more map[string]any) map[string]any {
		record := map[string]any{"msg": "dead letters: " + what, "action": what}
		for _, values := range []map[string]any{of, more} {
			for name, value := range values {
				record[name] = value
			}
		}
		return record
	}
	type m = map[string]any
	done := records[len(records)-1]["done"]
	assert.Equal(t, []map[string]any{
		with("plan", purge, nil),
		with("confirm", purge, m{"run": r.ID, "messages": 2.0, "undo_file": undo(r.ID)}),
		with("end", purge, m{"run": r.ID, "messages": 2.0, "done": 2.0, "outcome": "done"}),
		with("plan", move, nil),
		with("confirm", move, m{"run": slow.ID, "messages": 1.0, "undo_file": undo(slow.ID)}),
		with("stop", move, m{"run": slow.ID}),
		with("end", move, m{"run": slow.ID, "messages": 1.0, "done": records[6]["done"], "outcome": "stopped",
			"stopped_by": "ada"}),
		with("plan", all, nil),
		with("stop", all, m{"run": discarded.ID}),
		with("end", all, m{"run": discarded.ID, "messages": records[9]["messages"], "done": done,
			"outcome": "discarded", "stopped_by": "ada"}),
	}, records)
}

// A run that a crash has interrupted is recorded when the console is back.
func TestAuditOfACrash(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.fill(0, 2)
	r := f.plan(`{"kind":"purge","queue":"` + f.dead + `"}`)
	f.confirm(r.ID)
	f.await(r.ID, "done")
	require.NoError(t, f.console.Close())
	path := filepath.Join(f.config.Folder, r.ID, "run.json")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	text = []byte(replaceOnce(t, string(text), `"state": "done"`, `"state": "running"`))
	require.NoError(t, os.WriteFile(path, text, 0o600))
	before := len(f.auditLog.records(t))
	f.open()
	records := f.auditLog.records(t)[before:]
	require.Len(t, records, 1)
	assert.Equal(t, map[string]any{"level": "INFO", "msg": "dead letters: end", "action": "end", "user": "ada",
		"kind": "purge", "queue": f.dead, "run": r.ID, "selection": "all messages", "outcome": "interrupted",
		"messages": 2.0, "done": 2.0}, records[0])
}
