package snapshot

import (
	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/retry"
)

// mostTexts is how many bytes of different texts a snapshot keeps in memory. Further ones are in
// the file only.
const mostTexts = 64 << 20

// kind is what many dead letters have in common.
type kind struct {
	reason                    retry.Reason
	handler, topic, errorType string
	fingerprint               uint32 // its index
}

// cause is what a fingerprint is computed from.
type cause struct {
	reason             retry.Reason
	errorType, handler string
	error              uint32 // its index
}

// texts keeps each text once. Index 0 stands for what there was no room for.
type texts struct {
	most, bytes  int
	kinds        []kind
	fingerprints []dlq.Fingerprint
	errors       []string
	runs         []string
	parkings     []dlq.Parking

	byKind        map[kind]uint32
	byCause       map[cause]uint32
	byFingerprint map[string]uint32
	byError       map[string]uint32
	byRun         map[string]uint32
	byParking     map[dlq.Parking]uint32
}

func newTexts() texts {
	return texts{most: mostTexts, kinds: make([]kind, 1), fingerprints: make([]dlq.Fingerprint, 1),
		errors: make([]string, 1), runs: make([]string, 1), byKind: map[kind]uint32{}, byCause: map[cause]uint32{},
		byFingerprint: map[string]uint32{}, byError: map[string]uint32{}, byRun: map[string]uint32{},
		parkings: make([]dlq.Parking, 1), byParking: map[dlq.Parking]uint32{}}
}

// overhead of an entry beside its text.
const overhead = 100

// keep gives the index of a value, which is a new one if there is room for so many bytes.
func keep[K comparable, V any](t *texts, index map[K]uint32, all *[]V, key K, value V, bytes int) uint32 {
	i, known := index[key]
	if known || t.bytes+bytes+overhead > t.most {
		return i
	}
	t.bytes += bytes + overhead
	i = uint32(len(*all)) //nolint:gosec // bounded by mostTexts
	*all, index[key] = append(*all, value), i

	return i
}

// add gives the indices of the kind and of the error text of a dead letter.
func (t *texts) add(l *dlq.DeadLetter) (kindOf, errorOf uint32) {
	errorOf = keep(t, t.byError, &t.errors, l.Error, l.Error, len(l.Error))
	why := cause{l.Reason, l.ErrorType, l.Handler, errorOf}
	fingerprint := uint32(0)
	if errorOf != 0 {
		fingerprint = t.byCause[why]
	}
	if fingerprint == 0 {
		f := l.Fingerprint()
		fingerprint = keep(t, t.byFingerprint, &t.fingerprints, f.ID, f, len(f.ErrorType)+len(f.Handler)+len(f.Pattern))
		if fingerprint != 0 && errorOf != 0 && t.bytes < t.most {
			t.byCause[why] = fingerprint
			t.bytes += overhead
		}
	}
	if fingerprint == 0 {
		return 0, errorOf
	}
	k := kind{l.Reason, l.Handler, l.Topic, l.ErrorType, fingerprint}

	return keep(t, t.byKind, &t.kinds, k, k, len(k.handler)+len(k.topic)+len(k.errorType)), errorOf
}

// end forgets what only adding needs.
func (t *texts) end() {
	t.byKind, t.byCause, t.byFingerprint, t.byError, t.byRun, t.byParking = nil, nil, nil, nil, nil, nil
}
