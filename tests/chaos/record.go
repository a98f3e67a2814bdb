package chaos

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
)

// Kind of a record.
type Kind string

// What a handler did, beside the kinds of retry.Event, which are recorded as they are.
const (
	Called   Kind = "called"
	Returned Kind = "returned" // with success, which makes a message processed
	Started  Kind = "started"
	Closing  Kind = "closing"
	Closed   Kind = "closed"
)

// Record is one line of the ledger.
type Record struct {
	At      time.Time     `json:"at"` // by the clock of the host before any step
	Process string        `json:"p"`
	Kind    Kind          `json:"k"`
	Topic   string        `json:"t,omitempty"`
	ID      string        `json:"id,omitempty"`
	Attempt int           `json:"n,omitempty"`
	Wait    time.Duration `json:"w,omitempty"` // failed: how long it is to wait
	Delay   time.Duration `json:"d,omitempty"` // failed: in which retry queue
	Reason  string        `json:"r,omitempty"`
	// ByBroker tells that the broker brings the message itself back, and no copy waits.
	ByBroker bool   `json:"b,omitempty"`
	Digest   string `json:"h,omitempty"` // called: of the message as the handler has it
	Detail   string `json:"x,omitempty"`
}

// waiting is for a story.
func (r Record) waiting() string {
	if r.ByBroker {
		return r.Wait.String() + " by the broker"
	}

	return r.Wait.String()
}

// Book writes the records of one process. What it has written outlives a SIGKILL.
type Book struct {
	process string
	file    *os.File
}

// OpenBook appends to a file.
func OpenBook(path, process string) (*Book, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot keep a ledger: %w", err)
	}

	return &Book{process, file}, nil
}

// Write writes one record, in one write: lines of several goroutines do not mix. A ledger with a
// gap proves nothing, so a process that cannot write must not go on.
func (b *Book) Write(r Record) {
	r.Process = b.process
	if r.At.IsZero() {
		r.At = Now()
	}
	line, err := json.Marshal(r)
	if err == nil {
		_, err = b.file.Write(append(line, '\n'))
	}
	if err != nil {
		panic(fmt.Sprintf("cannot write to the ledger: %v", err))
	}
}

// Reader reads what was added to a ledger since it read last.
type Reader struct {
	Path   string
	offset int64
}

// Read gives the new records. A line that is not complete yet, or never will be, since its process
// was killed, is left.
func (r *Reader) Read() ([]Record, error) {
	file, err := os.Open(r.Path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	if _, err := file.Seek(r.offset, io.SeekStart); err != nil {
		return nil, err
	}
	all, err := io.ReadAll(file)
	if err != nil {
		return nil, err
	}

	var records []Record
	for {
		line, rest, complete := bytes.Cut(all, []byte("\n"))
		if !complete {
			return records, nil
		}
		var record Record
		if err := json.Unmarshal(line, &record); err != nil {
			return nil, fmt.Errorf("%s at %d: %w", r.Path, r.offset, err)
		}
		records = append(records, record)
		r.offset += int64(len(line)) + 1
		all = rest
	}
}

// TypedPrefix begins the keys of headers that are not text. A handler gets them spelled out, which
// is not what this is about.
const TypedPrefix = "typed-"

// redelivered is what watermill-amqp v3 adds to the metadata of a message that was delivered
// before.
const redelivered = "_watermill_amqp_redelivered"

// Digest of a message as a handler has it.
func Digest(payload []byte, metadata map[string]string) string {
	h := sha256.New()
	_, _ = h.Write(payload)
	for _, k := range slices.Sorted(maps.Keys(metadata)) {
		if strings.HasPrefix(k, TypedPrefix) || k == redelivered {
			continue
		}
		_, _ = fmt.Fprintf(h, "\n%q: %q", k, metadata[k])
	}

	return base64.RawStdEncoding.EncodeToString(h.Sum(nil)[:12])
}
