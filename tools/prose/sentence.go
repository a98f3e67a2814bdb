package main

import (
	"regexp"
	"strconv"
	"strings"
)

// longest is how many words a sentence may have before it counts as long.
const longest = 25

// Sentence is one sentence of a page, without markup.
type Sentence struct {
	File string
	Line int // of the paragraph, list item or row of a table that it is in
	Text string

	Words   int
	Opening bool // it says "what is done is …" instead of who does it
	Passive bool
}

// Weight is larger for sentences that are harder to read.
func (s Sentence) Weight() int {
	weight := s.Words
	if s.Opening {
		weight += 10
	}
	if s.Passive {
		weight += 5
	}

	return weight
}

var (
	fence   = regexp.MustCompile("^\\s*(```|~~~)")
	rule    = regexp.MustCompile(`^[\s|:=-]*$`)
	item    = regexp.MustCompile(`^\s*([-*+]|\d+\.)\s+`)
	image   = regexp.MustCompile(`!\[[^\]]*\]\([^)]*\)`)
	link    = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	code    = regexp.MustCompile("`[^`]*`")
	tag     = regexp.MustCompile(`<[^>]*>`)
	end     = regexp.MustCompile(`[.!?][)"*_]*(\s+|$)`)
	opening = regexp.MustCompile(`^(What|Who|Whoever|Whatever|That which)\b`)
	passive = regexp.MustCompile(`(?i)\b(is|are|was|were|be|been|being)\s+(not\s+|never\s+|only\s+)?` +
		`(\w+ed|told|given|taken|sent|seen|held|kept|made|done|found|lost|known|written|read|put|set|said|shown)\b`)
)

// Sentences are those of a page: of its paragraphs, list items and cells, not of its code and
// headings.
func Sentences(file, page string) []Sentence {
	var found []Sentence
	var block []string
	start, inCode := 0, false
	flush := func() {
		found = append(found, split(file, start, strings.Join(block, " "))...)
		block = nil
	}
	for i, line := range strings.Split(page, "\n") {
		switch {
		case fence.MatchString(line):
			flush()
			inCode = !inCode
		case inCode:
		case rule.MatchString(line), strings.HasPrefix(line, "#"), strings.HasPrefix(line, "[!["):
			flush()
		case strings.HasPrefix(strings.TrimSpace(line), "|"):
			flush()
			for cell := range strings.SplitSeq(strings.ReplaceAll(line, `\|`, " "), "|") {
				found = append(found, split(file, i+1, strings.TrimSpace(cell))...)
			}
		default:
			if item.MatchString(line) {
				flush()
				line = item.ReplaceAllString(line, "")
			}
			if len(block) == 0 {
				start = i + 1
			}
			block = append(block, strings.TrimSpace(line))
		}
	}
	flush()

	return found
}

// split takes a block apart. What has no verb to speak of, such as a cell of one or two words, is
// none.
func split(file string, line int, block string) []Sentence {
	plain := image.ReplaceAllString(block, "")
	plain = link.ReplaceAllString(plain, "$1")
	plain = tag.ReplaceAllString(plain, "")
	plain = code.ReplaceAllStringFunc(plain, func(s string) string { // one word, in which nothing ends
		return strings.NewReplacer(" ", "\u00a0", ".", "\u2024", "!", "\u01c3", "?", "\ufe16").Replace(s)
	})
	var sentences []Sentence
	for plain != "" {
		text := plain
		if at := end.FindStringIndex(plain); at != nil {
			text, plain = plain[:at[1]], plain[at[1]:]
		} else {
			plain = ""
		}
		text = strings.Trim(text, " ")
		words := len(strings.FieldsFunc(text, func(r rune) bool { return r == ' ' || r == '\n' }))
		if words < 4 {
			continue
		}
		sentences = append(sentences, Sentence{
			File: file, Line: line, Text: text, Words: words,
			Opening: opening.MatchString(text) && !strings.HasSuffix(text, "?"),
			Passive: passive.MatchString(text),
		})
	}

	return sentences
}

func lines(text string) string { return strconv.Itoa(strings.Count(text, "\n")) }
