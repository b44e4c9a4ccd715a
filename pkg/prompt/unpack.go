package prompt

import (
	"bytes"
	"errors"
	"io"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// packed holds a compressed body until it can be decompressed: at its end, or at MaxInspectBytes of it.
// Only the key sees what comes out.
type packed struct {
	allowed bool // the body may be compressed
	unknown bool // the body is said to be compressed in a way that is not known
	begun   bool // the first byte was seen
	hold    bool // it may begin a compressed body
	held    []byte
	source  bytes.Reader
	gzip    *gzip.Reader
	zstd    *zstd.Decoder
	buf     []byte
}

const (
	gzipMagic = "\x1f\x8b"
	zstdMagic = "\x28\xb5\x2f\xfd"
	// maxWindow bounds what zstd may ask to remember; servers need not support more (RFC 8878, 3.1.1.1.2).
	maxWindow = 8 << 20
)

func (k *packed) reset(contentEncoding string, d Dialect) {
	k.begun, k.hold, k.unknown, k.held = false, false, false, k.held[:0]
	switch e := strings.TrimSpace(contentEncoding); {
	case e == "" || strings.EqualFold(e, "identity"):
		// Clients compress without saying so; but a raw body may be anything, so its bytes are the key.
		k.allowed = d != Raw
	case strings.EqualFold(e, "gzip"), strings.EqualFold(e, "x-gzip"), strings.EqualFold(e, "zstd"):
		k.allowed = true
	default:
		k.allowed, k.unknown = false, true
	}
}

// holds says whether the body, whose next byte is c, is held because it may be compressed. JSON begins
// with neither magic number's first byte.
func (k *packed) holds(c byte) bool {
	if !k.begun {
		k.begun = true
		k.hold = k.allowed && (c == gzipMagic[0] || c == zstdMagic[0])
	}
	return k.hold
}

// open begins to decompress what is held; nil if it is not compressed.
func (k *packed) open() (io.Reader, error) {
	k.source.Reset(k.held)
	var err error
	switch {
	case bytes.HasPrefix(k.held, []byte(gzipMagic)):
		if k.gzip == nil {
			k.gzip = new(gzip.Reader)
		}
		return k.gzip, k.gzip.Reset(&k.source)
	case bytes.HasPrefix(k.held, []byte(zstdMagic)):
		if k.zstd == nil {
			k.zstd, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
				zstd.WithDecoderMaxWindow(maxWindow))
			if err != nil {
				return nil, err
			}
		}
		return k.zstd, k.zstd.Reset(&k.source)
	}
	return nil, nil
}

// unpack reads what is held; whole says that it is the whole body.
func (r *Reader) unpack(whole bool) {
	k := &r.packed
	k.hold = false
	plain, err := k.open()
	if plain == nil && err == nil {
		r.read(k.held)
		return
	}
	if k.buf == nil {
		k.buf = make([]byte, 32<<10)
	}
	for err == nil && !r.done {
		var n int
		n, err = plain.Read(k.buf)
		r.read(k.buf[:n])
	}
	switch {
	case r.done:
	case errors.Is(err, io.EOF) && whole:
		r.end()
	case !whole: // as at the hard bound, the key is made of what is there
		r.finish()
	default: // damaged: the key is the compressed bytes
		r.reason, r.head = RawEncoding, append(r.head[:0], k.held[:min(len(k.held), r.options.PrefixLength)]...)
		r.finish()
	}
}
