// SPDX-License-Identifier: Apache-2.0
//
// Transfer-Encoding: chunked (RFC 9112 section 7.1): finds the payload runs in a chunked stream.
//
// Owns the framing of one request body. Must not copy payload, allocate or keep pointers: payload is handed on as runs
// that point into the caller's input, so a receive buffer can travel on as a slice.
//
// Typical use, for each input piece:
//	while (len > 0 || status == HTTP_CHUNKED_RUN) {
//		status = http_chunked_step(&chunked, in, len, &span);
//		deliver(in + span.skip, span.run);            // run may be 0
//		in += span.skip + span.run; len -= span.skip + span.run;
//		if (status != HTTP_CHUNKED_RUN) break;
//	}
//
// The same bytes give the same payload and the same verdict however they are split. HTTP trailers are checked for
// syntax and size and otherwise ignored: S3 checksums in trailers travel inside the aws-chunked layer (auth_chunked.h).

#ifndef SERVER_HTTP_CHUNKED_H
#define SERVER_HTTP_CHUNKED_H

#include <stddef.h>
#include <stdint.h>

#define HTTP_CHUNKED_LINE_MAX 1024u        // one size line, extensions included
#define HTTP_CHUNKED_EXTENSIONS_MAX 16384u // extension bytes over the whole body
#define HTTP_CHUNKED_TRAILER_MAX 8192u     // all trailer lines together

enum http_chunked_status {
    HTTP_CHUNKED_MORE, // the whole input is consumed and the body goes on
    HTTP_CHUNKED_RUN,  // a run was found; call again with what follows it (even if that is nothing)
    HTTP_CHUNKED_DONE, // the body has ended; bytes behind skip belong to the next request
    HTTP_CHUNKED_BAD,  // broken framing: 400, then close; nothing of the upload may become visible
};

struct http_chunked_span {
    size_t skip; // framing bytes at the front of the input
    size_t run;  // payload bytes right behind them; 0 unless status is HTTP_CHUNKED_RUN
};

struct http_chunked {
    uint64_t remaining;     // payload bytes left in the current chunk
    uint64_t payload_bytes; // payload bytes handed out so far
    uint32_t line_len;
    uint32_t extension_bytes;
    uint32_t trailer_bytes;
    uint8_t state;
    uint8_t digits;
};

void http_chunked_begin(struct http_chunked *chunked);

// Looks at in[0, len). Always makes progress when len > 0 (skip + run > 0, or DONE/BAD). On BAD, skip is the offset of
// the offending byte and the decoder stays BAD. After DONE further calls return DONE with skip = run = 0.
enum http_chunked_status http_chunked_step(struct http_chunked *chunked, const void *in, size_t len,
                                           struct http_chunked_span *span);

#endif
