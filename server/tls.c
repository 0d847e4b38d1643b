/* SPDX-License-Identifier: Apache-2.0 */
/* tls: see tls.h. Each block of ciphertext is a memory BIO of its own, so that what is being sent never moves. */
#include "server/tls.h"

#include <errno.h>
#include <string.h>

#include <openssl/err.h>

#include "base/check.h"
#include "base/list.h"

/* ---- context --------------------------------------------------------------------------------------------------- */

static int tls_refused(SSL_CTX *context, struct err *err, const char *what, const char *path)
{
    char reason[256];
    ERR_error_string_n(ERR_get_error(), reason, sizeof(reason));
    ERR_clear_error();
    SSL_CTX_free(context);
    return err_set(err, -EINVAL, "tls: %s %s: %s", what, path, reason);
}

int tls_context_open(const char *certificate, const char *key, SSL_CTX **out, struct err *err)
{
    SSL_CTX *context = SSL_CTX_new(TLS_server_method());
    if (context == NULL) {
        return err_set(err, -ENOMEM, "tls: OpenSSL gave no context");
    }
    if (SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) != 1) {
        return tls_refused(context, err, "minimum version", "TLS 1.2");
    }
    if (SSL_CTX_use_certificate_chain_file(context, certificate) != 1) {
        return tls_refused(context, err, "certificate", certificate);
    }
    if (SSL_CTX_use_PrivateKey_file(context, key, SSL_FILETYPE_PEM) != 1 ||
        SSL_CTX_check_private_key(context) != 1) {
        return tls_refused(context, err, "key", key);
    }
    SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE);
    SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_AUTO_RETRY);
    *out = context;
    return 0;
}

/* ---- buffers --------------------------------------------------------------------------------------------------- */

static void tls_retain(struct slice_owner *owner, const struct slice *slice)
{
    struct tls_buffers *buffers = CONTAINER_OF(owner, struct tls_buffers, owner);
    CHECK(buffers->refs[slice->token] > 0);
    buffers->refs[slice->token]++;
}

static void tls_release(struct slice_owner *owner, const struct slice *slice)
{
    struct tls_buffers *buffers = CONTAINER_OF(owner, struct tls_buffers, owner);
    CHECK(buffers->refs[slice->token] > 0);
    buffers->refs[slice->token]--;
    if (buffers->refs[slice->token] == 0) {
        pool_give(&buffers->pool, pool_item(&buffers->pool, (uint32_t)slice->token));
    }
}

int tls_buffers_open(struct tls_buffers *buffers)
{
    memset(buffers, 0, sizeof(*buffers));
    buffers->owner = (struct slice_owner){.retain = tls_retain, .release = tls_release};
    return pool_open(&buffers->pool, TLS_BUFFER_SIZE, TLS_BUFFERS);
}

void tls_buffers_close(struct tls_buffers *buffers)
{
    if (buffers->pool.memory != NULL) {
        pool_close(&buffers->pool);
    }
}

/* ---- a connection ---------------------------------------------------------------------------------------------- */

int tls_open(struct tls *tls, SSL_CTX *context)
{
    memset(tls, 0, sizeof(*tls));
    BIO *in = BIO_new(BIO_s_mem());
    SSL *ssl = SSL_new(context);
    if (in == NULL || ssl == NULL) {
        BIO_free(in);
        SSL_free(ssl);
        return -ENOMEM;
    }
    BIO_set_mem_eof_return(in, -1); /* Empty means "later", not the end. */
    SSL_set0_rbio(ssl, in);
    SSL_set_accept_state(ssl);
    tls->ssl = ssl;
    tls->in = in;
    return 0;
}

void tls_close(struct tls *tls)
{
    if (tls->ssl == NULL) {
        return;
    }
    for (uint32_t i = 0; i < tls->queued; i++) {
        BIO_free(tls->queue[i].bio);
    }
    SSL_free(tls->ssl); /* With its BIOs. */
    memset(tls, 0, sizeof(*tls));
}

void tls_feed(struct tls *tls, const struct slice *slice)
{
    int written = BIO_write(tls->in, slice->addr, (int)slice->len);
    tls->is_failed |= written != (int)slice->len; /* Only without memory. */
}

/* Gives OpenSSL a fresh block to write into. */
static bool tls_block_begin(struct tls *tls)
{
    BIO *bio = tls->queued < TLS_QUEUE ? BIO_new(BIO_s_mem()) : NULL;
    if (bio == NULL) {
        tls->is_failed = true;
        return false;
    }
    SSL_set0_wbio(tls->ssl, bio);
    return true;
}

/* Queues what was written, if anything. The block's BIO is kept by a reference of ours. */
static void tls_block_end(struct tls *tls, uint64_t cookie)
{
    BIO *bio = SSL_get_wbio(tls->ssl);
    if (BIO_pending(bio) > 0) {
        int rc = BIO_up_ref(bio);
        CHECK(rc == 1);
        tls->queue[tls->queued++] = (struct tls_block){.bio = bio, .cookie = cookie};
    }
    SSL_set0_wbio(tls->ssl, NULL);
}

static enum tls_status tls_result(struct tls *tls, int rc)
{
    int reason = SSL_get_error(tls->ssl, rc);
    ERR_clear_error();
    if (reason == SSL_ERROR_WANT_READ) {
        return TLS_MORE;
    }
    if (reason == SSL_ERROR_ZERO_RETURN) {
        tls->is_closed = true;
        return TLS_CLOSED;
    }
    tls->is_failed = true;
    return TLS_FAILED;
}

enum tls_status tls_read(struct tls *tls, struct tls_buffers *buffers, struct slice *out)
{
    if (tls->is_failed || tls->is_closed) {
        return tls->is_failed ? TLS_FAILED : TLS_CLOSED;
    }
    uint8_t *buffer = pool_take(&buffers->pool);
    if (buffer == NULL) {
        return TLS_BUSY;
    }
    if (!tls_block_begin(tls)) {
        pool_give(&buffers->pool, buffer);
        return TLS_FAILED;
    }
    int len = SSL_read(tls->ssl, buffer, TLS_BUFFER_SIZE);
    enum tls_status status = len > 0 ? TLS_DATA : tls_result(tls, len);
    tls_block_end(tls, TLS_COOKIE); /* Handshake messages, alerts, session tickets. */
    tls->is_established = SSL_is_init_finished(tls->ssl) == 1;
    if (status != TLS_DATA) {
        pool_give(&buffers->pool, buffer);
        return status;
    }
    uint32_t index = pool_index(&buffers->pool, buffer);
    buffers->refs[index] = 1;
    *out = (struct slice){
        .addr = buffer, .len = (uint32_t)len, .buf_index = -1, .owner = &buffers->owner, .token = index};
    return TLS_DATA;
}

bool tls_write(struct tls *tls, const struct iovec *iov, uint32_t iov_count, uint64_t cookie)
{
    if (tls->is_failed || tls->is_end_queued || !tls_block_begin(tls)) {
        return false;
    }
    bool is_good = true;
    for (uint32_t i = 0; i < iov_count && is_good; i++) {
        is_good = SSL_write(tls->ssl, iov[i].iov_base, (int)iov[i].iov_len) == (int)iov[i].iov_len;
    }
    tls_block_end(tls, cookie);
    ERR_clear_error();
    tls->is_failed |= !is_good;
    return is_good;
}

void tls_end(struct tls *tls)
{
    if (tls->is_failed || tls->is_end_queued || !tls->is_established || !tls_block_begin(tls)) {
        return;
    }
    (void)SSL_shutdown(tls->ssl); /* 0: ours is written, the peer's is not awaited. */
    tls_block_end(tls, TLS_COOKIE);
    ERR_clear_error();
    tls->is_end_queued = true;
}

bool tls_next(struct tls *tls, struct iovec *iov)
{
    if (tls->sending == tls->queued) {
        return false;
    }
    char *bytes = NULL;
    long len = BIO_get_mem_data(tls->queue[tls->sending].bio, &bytes);
    CHECK(len > 0);
    *iov = (struct iovec){.iov_base = bytes, .iov_len = (size_t)len};
    tls->sending++;
    return true;
}

uint64_t tls_sent(struct tls *tls)
{
    CHECK(tls->sending > 0);
    uint64_t cookie = tls->queue[0].cookie;
    BIO_free(tls->queue[0].bio);
    tls->queued--;
    tls->sending--;
    memmove(&tls->queue[0], &tls->queue[1], tls->queued * sizeof(tls->queue[0]));
    return cookie;
}
