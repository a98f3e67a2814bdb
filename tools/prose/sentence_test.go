package main

import (
	"reflect"
	"testing"
)

func TestSentences(t *testing.T) {
	page := "# What a title is does not count\n\nA [reader](a.md) stops here. `a. b! c?` is one word, so\nthis is\nthe " +
		"second sentence.\n\n```go\nthis is no sentence at all.\n```\n\n- What is told in an item counts.\n- What " +
		"does a question cost? The queue was deleted by an operator.\n\n| a | What a cell says is counted |\n|---|---|\n"
	type short struct {
		Line, Words      int
		Opening, Passive bool
	}
	var got []short
	for _, s := range Sentences("page.md", page) {
		got = append(got, short{s.Line, s.Words, s.Opening, s.Passive})
	}
	want := []short{
		{3, 4, false, false}, {3, 10, false, false}, {11, 7, true, true}, {12, 5, false, false}, {12, 7, false, true},
		{14, 6, true, true},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}
