package wire

import (
	"encoding/json"
	"maps"
	"slices"

	"github.com/amqpretry/watermill-retry/internal/header"
)

// Opt returns the x-opt-* headers of a message as text: those that it has, and those that
// [header.Opt] keeps. Nil if there are none. It trusts header.Opt of any queue: whoever forges it
// could have set these headers as well.
func Opt(headers map[string]any, text func(any) string) map[string]string {
	found := decodeOpt(headers[header.Opt])
	for key, value := range headers {
		if !header.IsOpt(key) {
			continue
		}
		if found == nil {
			found = map[string]string{}
		}
		found[key] = text(value)
	}

	return found
}

// EncodeOpt spells x-opt-* headers for [header.Opt]. It leaves out those that do not fit into
// MaxOptBytes.
func EncodeOpt(opt map[string]string) string {
	if len(opt) == 0 {
		return ""
	}
	kept, room := map[string]string{}, MaxOptBytes-len("{}")
	for _, key := range slices.Sorted(maps.Keys(opt)) {
		if len(key)+len(opt[key]) > room { // spelled, it is longer still
			continue
		}
		if size := len(jsonText(key)) + len(jsonText(opt[key])) + len(":,"); size <= room {
			kept[key] = opt[key]
			room -= size
		}
	}
	if len(kept) == 0 {
		return ""
	}

	return jsonText(kept)
}

func decodeOpt(value any) map[string]string {
	text, _ := value.(string)
	if text == "" || len(text) > MaxOptBytes {
		return nil
	}

	var opt map[string]string
	if json.Unmarshal([]byte(text), &opt) != nil {
		return nil
	}
	maps.DeleteFunc(opt, func(key, _ string) bool { return !header.IsOpt(key) })

	return opt
}

// jsonText spells a string or a map of them, which cannot fail.
func jsonText(value any) string {
	text, _ := json.Marshal(value)
	return string(text)
}
