package doctor

import (
	_ "embed"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/amqpretry/watermill-retry/internal/shell"
)

// rulesText has all texts of findings; its first lines say how.
//
//go:embed rules.txt
var rulesText string

// rules are the findings by the names of their rules, and fine what is so when a check finds
// nothing. order has the names of both in the order of the file.
var rules, fine, order = readRules(rulesText)

func readRules(text string) (rules map[string]Finding, fine map[string]string, order []string) {
	rules, fine = map[string]Finding{}, map[string]string{}
	check, name, as := "", "", map[string]string{}
	_, text, _ = strings.Cut(text, "\n\n")
	for line := range strings.Lines(text) {
		kind, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		r := rules[name]
		switch kind {
		case "":
			continue
		case "ok":
			fine[check] = rest
			continue
		case "found":
			r.Found = joined(r.Found, " ", rest)
		case "means":
			r.Means = joined(r.Means, " ", rest)
		case "all":
			r.meansOfAll = joined(r.meansOfAll, " ", rest)
		case "fix":
			r.Fix = joined(r.Fix, "\n", rest)
		case "as":
			as[name] = rest
		default:
			order = append(order, kind)
			if strings.HasPrefix(kind, "[") {
				check = strings.Trim(kind, "[]")
				continue
			}
			name, r = kind, Finding{Check: check, Severity: Severity(rest)}
		}
		rules[name] = r
	}
	for name := range as {
		for other := as[name]; other != ""; other = as[other] {
			rules[name] = rules[name].or(rules[other])
		}
	}
	return rules, fine, order
}

func joined(text, by, more string) string {
	if text == "" {
		return more
	}
	return text + by + more
}

// or takes what a rule leaves out from another one.
func (f Finding) or(other Finding) Finding {
	for _, text := range []struct{ own, others *string }{{&f.Found, &other.Found}, {&f.Means, &other.Means},
		{&f.Fix, &other.Fix}, {&f.meansOfAll, &other.meansOfAll}} {
		if *text.own == "" {
			*text.own = *text.others
		}
	}
	return f
}

// word is what is filled into a text: {x}, {'x} as a word for a shell, {"x} in quotation marks, or
// {ctl x}, the beginning of a command of rabbitmqctl.
var word = regexp.MustCompile(`\{(?:ctl ([a-z_]+)|(['"]?)([a-z]+))\}`)

// says is the finding of a rule. words are names with their values.
func (f Facts) says(rule string, words ...any) Finding {
	values := map[string]string{"version": f.Version, "vhost": f.VHost, "user": f.User}
	for i := 0; i+1 < len(words); i += 2 {
		values[words[i].(string)] = fmt.Sprint(words[i+1])
	}
	fill := func(template string) string {
		return word.ReplaceAllStringFunc(template, func(found string) string {
			m := word.FindStringSubmatch(found)
			switch {
			case m[1] != "":
				return f.Ctl(m[1])
			case m[2] == "'":
				return shell.Quote(values[m[3]])
			case m[2] == `"`:
				return strconv.Quote(values[m[3]])
			default:
				return values[m[3]]
			}
		})
	}
	r := rules[rule]
	r.Found, r.Means, r.Fix, r.meansOfAll = fill(r.Found), fill(r.Means), fill(r.Fix), fill(r.meansOfAll)
	return r
}
