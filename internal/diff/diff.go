// Package diff compares texts.
package diff

import (
	"slices"
	"strings"
)

// Line is a line of a diff.
type Line struct {
	Sign string // "+", "-", or " "
	Text string
}

// mostDiff is how many lines each text may have to be compared line by line.
const mostDiff = 2000

// Lines compares two texts line by line.
func Lines(before, after string) []Line {
	a, b := strings.Split(before, "\n"), strings.Split(after, "\n")
	var lines []Line
	add := func(sign string, all []string) {
		for _, text := range all {
			lines = append(lines, Line{sign, text})
		}
	}
	begin := 0
	for begin < min(len(a), len(b)) && a[begin] == b[begin] {
		begin++
	}
	end := 0
	for end < min(len(a), len(b))-begin && a[len(a)-1-end] == b[len(b)-1-end] {
		end++
	}
	add(" ", a[:begin])
	a, b, rest := a[begin:len(a)-end], b[begin:len(b)-end], a[len(a)-end:]
	if len(a) > mostDiff || len(b) > mostDiff {
		add("-", a)
		add("+", b)
	} else {
		lines = append(lines, longestCommon(a, b)...)
	}
	add(" ", rest)

	return lines
}

// longestCommon keeps the longest common subsequence.
func longestCommon(a, b []string) []Line {
	length := make([][]int, len(a)+1) // of what is common to a[i:] and b[j:]
	for i := range length {
		length[i] = make([]int, len(b)+1)
	}
	for i, x := range slices.Backward(a) {
		for j, y := range slices.Backward(b) {
			if x == y {
				length[i][j] = length[i+1][j+1] + 1
			} else {
				length[i][j] = max(length[i+1][j], length[i][j+1])
			}
		}
	}
	var lines []Line
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			lines = append(lines, Line{" ", a[i]})
			i, j = i+1, j+1
		case i < len(a) && (j == len(b) || length[i+1][j] >= length[i][j+1]):
			lines = append(lines, Line{"-", a[i]})
			i++
		default:
			lines = append(lines, Line{"+", b[j]})
			j++
		}
	}

	return lines
}
