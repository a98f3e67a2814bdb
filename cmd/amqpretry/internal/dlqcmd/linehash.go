package dlqcmd

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"math"
)

// lineHash reads a file from its beginning, line by line, and keeps only the hash of what it has
// read.
type lineHash struct {
	file  io.ReaderAt
	in    *bufio.Reader
	hash  hash.Hash
	lines int
	bytes int64
}

var errShorter = errors.New("it has fewer lines than were read of it before")

func newLineHash(file io.ReaderAt) *lineHash {
	return &lineHash{file: file, in: bufio.NewReader(from(file, 0)), hash: sha256.New()}
}

func from(file io.ReaderAt, at int64) io.Reader {
	return io.NewSectionReader(file, at, math.MaxInt64-at)
}

// to goes on until it has so many lines.
func (h *lineHash) to(lines int) error {
	for ; h.lines < lines; h.lines++ {
		if err := h.line(); err != nil {
			return err
		}
	}

	return nil
}

// line reads one more. A last one without a line feed counts like one that has it, so that more
// lines can follow.
func (h *lineHash) line() error {
	for begin := h.bytes; ; {
		part, err := h.in.ReadSlice('\n')
		h.bytes += int64(len(part))
		_, _ = h.hash.Write(part) // never fails
		switch {
		case err == nil:
			return nil
		case errors.Is(err, io.EOF) && h.bytes == begin:
			return errShorter
		case errors.Is(err, io.EOF):
			_, _ = h.hash.Write([]byte{'\n'})
			return nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return err
		}
	}
}

// sum is the SHA-256 of its lines.
func (h *lineHash) sum() string { return hex.EncodeToString(h.hash.Sum(nil)) }

// more tells whether there is anything but blanks behind it.
func (h *lineHash) more() (bool, error) {
	rest, buffer := from(h.file, h.bytes), make([]byte, 4<<10)
	for {
		n, err := rest.Read(buffer)
		if len(bytes.TrimSpace(buffer[:n])) > 0 {
			return true, nil
		}
		if errors.Is(err, io.EOF) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
}
