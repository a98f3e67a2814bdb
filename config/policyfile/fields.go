package policyfile

import (
	"reflect"
	"regexp"
	"strconv"
	"strings"
)

// The fields of the structs, with the names in their tags, are the one table of what a file can
// say: the decoder, the environment and the schema go by it.

// field of a struct.
type field struct {
	name  string // in files
	index int    // in the struct
}

// fieldsOf lists the fields of a struct, in its order.
func fieldsOf(t reflect.Type) []field {
	fields := make([]field, t.NumField())
	for i := range fields {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("yaml"), ",")
		fields[i] = field{name, i}
	}
	return fields
}

func names(fields []field) []string {
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.name
	}
	return names
}

var bareName = regexp.MustCompile(`^[\w$<-]{1,64}$`)

func inStruct(path, name string) string {
	switch {
	case !bareName.MatchString(name): // of a key that is unknown, and must not make the error a mess
		return path + "[" + shortened(strconv.Quote(name)) + "]"
	case path == "":
		return name
	}
	return path + "." + name
}

// ignored keys at the root: x- is for anchors and notes, $schema tells an editor what a JSON file
// is checked against.
func ignored(key string) bool { return strings.HasPrefix(key, "x-") || key == "$schema" }

// nearest of the names to one that is none of them, or empty: what somebody may have meant.
func nearest(name string, names []string) string {
	found, least := "", 1+max(1, (len(name)+1)/3)
	for _, n := range names {
		if d := distance(bare(name), bare(n)); d < least {
			found, least = n, d
		}
	}
	return found
}

// bare is a name as it is in every style: maxAge, Max-Age and MAX_AGE are max_age.
func bare(name string) string {
	return strings.ToLower(strings.NewReplacer("_", "", "-", "", " ", "").Replace(name))
}

// distance of Levenshtein: how many bytes are added, removed or replaced. Long texts are far from
// everything.
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return len(a) + len(b)
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
