package dlqweb

import (
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/rabbitmq/amqp091-go"
)

const (
	// mostBody is how much of a text a page shows, mostHex how much of what is no text.
	mostBody = 64 << 10
	mostHex  = 4 << 10
	// mostUnpacked is how much of a packed body is unpacked.
	mostUnpacked = 4 << 20
)

// bodyShown is a body as a page shows it.
type bodyShown struct {
	Kind  string   // JSON, text, hex, empty
	Kinds []string // in which it can be shown
	Text  string
	Cut   bool
	Size  int
	// Unpacked is the size of what gzip has packed; 0 if nothing is.
	Unpacked int
}

// showBody shows a body as what is asked for, else as the first of these that it is: JSON,
// indented; text; a dump. What gzip has packed is unpacked.
func showBody(m *amqp091.Publishing, as string) bodyShown {
	body := m.Body
	shown := bodyShown{Size: len(body)}
	if len(body) == 0 {
		shown.Kind = "empty"
		return shown
	}
	packed := bytes.HasPrefix(body, []byte{0x1f, 0x8b})
	if packed && as != "packed" {
		if unpacked, ok := unpack(body); ok {
			body, shown.Unpacked = unpacked, len(unpacked)
		}
	}
	indented, isJSON := indent(body)
	if isJSON {
		shown.Kinds = append(shown.Kinds, "JSON")
	}
	if utf8.Valid(body) && !bytes.ContainsRune(body, 0) {
		shown.Kinds = append(shown.Kinds, "text")
	}
	shown.Kinds = append(shown.Kinds, "hex")
	shown.Kind = shown.Kinds[0]
	if i := slices.IndexFunc(shown.Kinds, func(kind string) bool { return strings.EqualFold(kind, as) }); i >= 0 {
		shown.Kind = shown.Kinds[i]
	}
	switch shown.Kind {
	case "JSON":
		shown.Text = indented
	case "text":
		shown.Text, shown.Cut = cut(string(body), mostBody), len(body) > mostBody
	default:
		shown.Text, shown.Cut = hex.Dump(body[:min(len(body), mostHex)]), len(body) > mostHex
	}

	return shown
}

func unpack(body []byte) ([]byte, bool) {
	reader, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		return nil, false
	}
	unpacked, err := io.ReadAll(io.LimitReader(reader, mostUnpacked))
	for len(unpacked) > mostUnpacked-utf8.UTFMax { // the limit may be within a character
		if r, size := utf8.DecodeLastRune(unpacked); r != utf8.RuneError || size != 1 {
			break
		}
		unpacked = unpacked[:len(unpacked)-1]
	}

	return unpacked, err == nil
}

// indent fails where the text is too long, and where the indentation is most of it, as of JSON that
// is nested for that.
func indent(body []byte) (string, bool) {
	const most = 4 * mostBody
	if len(body) > mostBody || !json.Valid(body) {
		return "", false
	}
	depth, deepest := 0, 0
	for _, c := range body {
		switch c {
		case '{', '[':
			depth++
			deepest = max(deepest, depth)
		case '}', ']':
			depth--
		}
	}
	if deepest > 100 {
		return "", false
	}
	var out bytes.Buffer
	if err := json.Indent(&out, body, "", "  "); err != nil || out.Len() > most {
		return "", false
	}

	return out.String(), true
}
