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

// prefix is the beginning of a file, up to the end of a line, of which nothing but the hash is kept.
type prefix struct {
	file  io.ReaderAt
	in    *bufio.Reader
	hash  hash.Hash
	lines int
	bytes int64
}

var errShorter = errors.New("it has fewer lines than were read of it before")

func prefixOf(file io.ReaderAt) *prefix {
	return &prefix{file: file, in: bufio.NewReader(from(file, 0)), hash: sha256.New()}
}

func from(file io.ReaderAt, at int64) io.Reader {
	return io.NewSectionReader(file, at, math.MaxInt64-at)
}

// to goes on until it has so many lines.
func (p *prefix) to(lines int) error {
	for ; p.lines < lines; p.lines++ {
		if err := p.line(); err != nil {
			return err
		}
	}

	return nil
}

// line reads one more. A last one without a line feed counts like one that has it, so that more lines can follow.
func (p *prefix) line() error {
	for begin := p.bytes; ; {
		part, err := p.in.ReadSlice('\n')
		p.bytes += int64(len(part))
		_, _ = p.hash.Write(part) // never fails
		switch {
		case err == nil:
			return nil
		case errors.Is(err, io.EOF) && p.bytes == begin:
			return errShorter
		case errors.Is(err, io.EOF):
			_, _ = p.hash.Write([]byte{'\n'})
			return nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return err
		}
	}
}

// sum is the SHA-256 of its lines.
func (p *prefix) sum() string { return hex.EncodeToString(p.hash.Sum(nil)) }

// more tells whether there is anything but blanks behind it.
func (p *prefix) more() (bool, error) {
	rest, buffer := from(p.file, p.bytes), make([]byte, 4<<10)
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
