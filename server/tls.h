/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tls: TLS 1.2 and 1.3 between the receive backend and a connection, by OpenSSL over memory BIOs: ciphertext slices go
 * in, plaintext slices come out, and the other way round for answers. Every payload byte is copied here (reason tls),
 * which is why only `socket` listeners may have it.
 *
 * It owns the plaintext buffers of a worker, each connection's OpenSSL state and the ciphertext that is being sent. It
 * never calls back into the protocol. A stream that ends without close_notify is not complete: that is reported as
 * truncation, because FIN alone can be forged.
 */
#ifndef SERVER_TLS_H
#define SERVER_TLS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include <openssl/ssl.h>

#include "base/err.h"
#include "base/pool.h"
#include "base/slice.h"

#define TLS_BUFFER_SIZE 16384U /* the largest record's plaintext */
#define TLS_BUFFERS 1024U      /* per worker */
#define TLS_QUEUE 8U           /* ciphertext blocks of one connection that wait or are being sent */

/* Reads certificate chain and key (PEM). The context is reference counted by OpenSSL. */
int tls_context_open(const char *certificate, const char *key, SSL_CTX **out, struct err *err);

/* ---- plaintext buffers of one worker --------------------------------------------------------------------------- */

struct tls_buffers {
    struct slice_owner owner;
    struct pool pool;
    uint32_t refs[TLS_BUFFERS];
};
int tls_buffers_open(struct tls_buffers *buffers);
void tls_buffers_close(struct tls_buffers *buffers);

/* ---- one connection -------------------------------------------------------------------------------------------- */

enum tls_status {
    TLS_MORE,   /* everything was used; ciphertext is needed */
    TLS_DATA,   /* *out is a plaintext slice that the caller owns */
    TLS_BUSY,   /* no buffer is free: try again when one was released */
    TLS_CLOSED, /* the peer said close_notify */
    TLS_FAILED  /* handshake or record failed; an alert may be waiting to be sent */
};

struct tls_block {
    BIO *bio;
    uint64_t cookie;
};

struct tls {
    SSL *ssl;
    BIO *in;
    bool is_established;
    bool is_closed; /* close_notify came */
    bool is_failed;
    bool is_end_queued;                /* our close_notify */
    struct tls_block queue[TLS_QUEUE]; /* oldest first */
    uint32_t queued;
    uint32_t sending; /* of these, the first that were handed to the backend */
};

/* Cookie of blocks that nobody but TLS waits for. */
#define TLS_COOKIE UINT64_MAX

/* 0 or -ENOMEM. */
int tls_open(struct tls *tls, SSL_CTX *context);
void tls_close(struct tls *tls);

/* Feeds ciphertext; the caller keeps its slice. */
void tls_feed(struct tls *tls, const struct slice *slice);
/* Handshakes and decrypts as far as possible; call again after TLS_DATA. */
enum tls_status tls_read(struct tls *tls, struct tls_buffers *buffers, struct slice *out);
/* Encrypts an answer's bytes into one block with this cookie. False when the queue is full or TLS has failed. */
bool tls_write(struct tls *tls, const struct iovec *iov, uint32_t iov_count, uint64_t cookie);
/* Queues close_notify, once. */
void tls_end(struct tls *tls);

/* The next block to be sent: false when there is none. Its memory stays until tls_sent. */
bool tls_next(struct tls *tls, struct iovec *iov);
/* The oldest block was sent; returns its cookie. */
uint64_t tls_sent(struct tls *tls);

#endif
