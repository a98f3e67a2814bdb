package shell

import (
	"crypto/sha256"
	"fmt"
	"regexp"
)

var (
	plain   = regexp.MustCompile(`^[a-z0-9._-]{1,100}$`)
	special = regexp.MustCompile(`[^A-Za-z0-9._-]`)
)

// File returns a name for the file of a queue: kind-queue.jsonl. It needs no quotes. Distinct
// queues have distinct files, also on file systems that ignore case.
func File(kind, queue string) string {
	if plain.MatchString(queue) {
		return kind + "-" + queue + ".jsonl"
	}
	readable := special.ReplaceAllString(queue, "_")
	sum := sha256.Sum256([]byte(queue))

	return fmt.Sprintf("%s-%s+%x.jsonl", kind, readable[:min(len(readable), 60)], sum[:8])
}
