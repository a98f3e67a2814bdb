// Package hostile makes messages as the worst publishers could send them: from the bytes of a
// fuzzer (Choices), or drawn by rapid.
package hostile
