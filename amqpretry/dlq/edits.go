package dlq

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/internal/wire"
)

// maxEditsBytes is how long the history of edits may get, which travels in a header.
const maxEditsBytes = wire.MaxEditsBytes

// givenUp stands for the value of a header that there was no room for.
const givenUp = "…"

// changes tells what was changed, as far as a copy carries it; false if nothing was.
func changes(before, after amqp091.Publishing, at time.Time, by string) (Edit, bool) {
	e := Edit{
		At: at.UTC().Truncate(time.Millisecond), By: by,
		Headers: changedHeaders(before.Headers, after.Headers), Properties: changedProperties(before, after),
	}
	body := !bytes.Equal(before.Body, after.Body)
	if body {
		sum := sha256.Sum256(before.Body)
		e.Size, e.SHA256 = len(before.Body), hex.EncodeToString(sum[:])
		if len(before.Body) <= maxEditsBytes && utf8.Valid(before.Body) {
			e.Body = string(before.Body)
		}
	}

	return e, body || len(e.Headers) > 0 || len(e.Properties) > 0
}

func changedHeaders(before, after amqp091.Table) map[string]*string {
	changed := map[string]*string{}
	for key, value := range before {
		if now, there := after[key]; !there || !sameValue(value, now) {
			text := fit(codec.HeaderText(value))
			changed[fit(key)] = &text
		}
	}
	for key := range after {
		if _, there := before[key]; !there {
			changed[fit(key)] = nil
		}
	}
	if len(changed) == 0 {
		return nil
	}

	return changed
}

// sameValue compares AMQP values with their types, bit by bit.
func sameValue(a, b any) bool {
	var inA, inB encoder

	return inA.value(a) == nil && inB.value(b) == nil && bytes.Equal(inA.out, inB.out)
}

func changedProperties(before, after amqp091.Publishing) map[string]string {
	changed := map[string]string{}
	now := properties(&after)
	for i, property := range properties(&before) {
		if was := property.text(); was != now[i].text() {
			changed[property.name] = fit(was)
		}
	}
	if len(changed) == 0 {
		return nil
	}

	return changed
}

// text returns a property as text; empty if the message has none.
func (p property) text() string {
	switch value := p.value.(type) {
	case *string:
		return *value
	case *uint8:
		return strings.TrimPrefix(strconv.Itoa(int(*value)), "0")
	case *time.Time:
		if !value.IsZero() {
			return codec.HeaderText(*value)
		}
	}

	return ""
}

// fit makes a text one that the history has room for.
func fit(s string) string { return wire.Text(s, wire.MaxNameBytes) }

// readEdits reads a history, which whoever can publish can write: nonsense is none.
func readEdits(text string) []Edit {
	if text == "" || len(text) > maxEditsBytes {
		return nil
	}
	var edits []Edit
	if json.Unmarshal([]byte(text), &edits) != nil {
		return nil
	}
	for i := range edits {
		edits[i].At = sane(edits[i].At.UTC())
	}

	edits = slices.DeleteFunc(edits, func(e Edit) bool { return e.At.IsZero() || e.Size < 0 })

	return append([]Edit(nil), edits...)
}

// appendEdit appends an edit to a history, and gives up as much as is needed for both to fit. The
// undo file of the replay has all.
func appendEdit(history string, e Edit) string {
	e.By = fit(e.By)
	edits := append(readEdits(history), e)

	text := encodeEdits(edits)
	for len(text) > maxEditsBytes {
		edits = giveUp(edits)
		text = encodeEdits(edits)
	}

	return text
}

// giveUp takes away what is least valuable, and the oldest of it first: a body, the values of
// headers, a whole edit; of the last one half of its headers, its properties, itself.
func giveUp(edits []Edit) []Edit {
	for i := range edits {
		if edits[i].Body != "" {
			edits[i].Body = ""
			return edits
		}
	}
	for i := range edits {
		if headers, had := withoutValues(edits[i].Headers); had {
			edits[i].Headers = headers
			return edits
		}
	}

	switch last := &edits[0]; {
	case len(edits) > 1:
		return edits[1:]
	case len(last.Headers) > 0:
		last.Headers = firstHalf(last.Headers)
		return edits
	case len(last.Properties) > 0:
		last.Properties = nil
		return edits
	}

	return nil
}

func withoutValues(headers map[string]*string) (without map[string]*string, had bool) {
	without = make(map[string]*string, len(headers))
	for key, value := range headers {
		if without[key] = value; value != nil && *value != givenUp {
			mark := givenUp
			without[key], had = &mark, true
		}
	}

	return without, had
}

func firstHalf(headers map[string]*string) map[string]*string {
	keys := slices.Sorted(maps.Keys(headers))
	out := map[string]*string{}
	for _, key := range keys[:len(keys)/2] {
		out[key] = headers[key]
	}

	return out
}

func encodeEdits(edits []Edit) string {
	var text strings.Builder
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false) // it would take six bytes of the little room for each < of a body
	if encoder.Encode(append([]Edit{}, edits...)) != nil {
		return "" // cannot happen: texts, and a time that RFC 3339 can tell
	}

	return strings.TrimSuffix(text.String(), "\n")
}
