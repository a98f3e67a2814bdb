// Command prose measures how hard Markdown pages are to read, and lists the worst sentences. It
// warns: its exit code is 0 whatever it finds.
//
//	go run ./prose ../README.md ../docs/*/*.md
package main

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"slices"
	"text/tabwriter"
)

func main() {
	worst := flag.Int("worst", 20, "how many of the worst sentences to list")
	flag.Parse()
	if err := run(flag.Args(), *worst); err != nil {
		fmt.Fprintln(os.Stderr, "prose:", err)
		os.Exit(1)
	}
}

func run(files []string, worst int) error {
	var all []Sentence
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprint(table, "page\tlines\tsentences\twords each\tover 25\topen with what\tpassive\t\n")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		sentences := Sentences(file, string(text))
		all = append(all, sentences...)
		_, _ = fmt.Fprint(table, row(file, lines(string(text)), sentences))
	}
	_, _ = fmt.Fprint(table, row("all", "", all))
	if err := table.Flush(); err != nil {
		return err
	}

	slices.SortStableFunc(all, func(a, b Sentence) int { return cmp.Compare(b.Weight(), a.Weight()) })
	fmt.Printf("\nThe worst:\n")
	for _, s := range all[:min(worst, len(all))] {
		fmt.Printf("%s:%d: %d words: %s\n", s.File, s.Line, s.Words, s.Text)
	}

	return nil
}

func row(name, lines string, sentences []Sentence) string {
	var words, long, openings, passive int
	for _, s := range sentences {
		words += s.Words
		if s.Words > longest {
			long++
		}
		if s.Opening {
			openings++
		}
		if s.Passive {
			passive++
		}
	}
	n := max(1, len(sentences))

	return fmt.Sprintf("%s\t%s\t%d\t%.1f\t%d %%\t%d %%\t%d %%\t\n", name, lines, len(sentences),
		float64(words)/float64(n), 100*long/n, 100*openings/n, 100*passive/n)
}
