/* SPDX-License-Identifier: Apache-2.0 */
/* peer: see peer.h. TLS runs over memory BIOs, so that a full socket never leaves half a record inside OpenSSL. */
#include "tests/contract/peer.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <openssl/ssl.h>
#include <stdint.h>
#include <sys/socket.h>
#include <unistd.h>

struct peer {
    SSL *ssl; /* NULL: plain */
    bool is_notified;
    bool is_eof;
    int error; /* of the socket */
};

static struct peer peers[PEER_FDS_MAX];

static void peer_out(int fd)
{
    BIO *out = SSL_get_wbio(peers[fd].ssl);
    char *bytes = NULL;
    long len;
    while ((len = BIO_get_mem_data(out, &bytes)) > 0) {
        ssize_t sent = send(fd, bytes, (size_t)len, MSG_NOSIGNAL);
        if (sent <= 0) {
            return;
        }
        static char drop[65536];
        for (ssize_t left = sent; left > 0;) {
            int n = BIO_read(out, drop, left < (ssize_t)sizeof(drop) ? (int)left : (int)sizeof(drop));
            cr_assert(n > 0);
            left -= n;
        }
    }
}

static void peer_in(int fd)
{
    static uint8_t bytes[65536];
    if (peers[fd].error != 0 || peers[fd].is_eof) {
        return; /* A socket tells its error once. */
    }
    ssize_t got = recv(fd, bytes, sizeof(bytes), 0);
    if (got > 0) {
        cr_assert(BIO_write(SSL_get_rbio(peers[fd].ssl), bytes, (int)got) == got);
    } else if (got == 0) {
        peers[fd].is_eof = true;
    } else if (errno != EAGAIN) {
        peers[fd].error = errno;
    }
}

void peer_tls_begin(int fd)
{
    static SSL_CTX *ctx;
    if (ctx == NULL) {
        ctx = SSL_CTX_new(TLS_client_method());
        cr_assert(ctx != NULL);
    }
    BIO *in = BIO_new(BIO_s_mem());
    BIO *out = BIO_new(BIO_s_mem());
    cr_assert(fd < PEER_FDS_MAX && in != NULL && out != NULL);
    BIO_set_mem_eof_return(in, -1);
    BIO_set_mem_eof_return(out, -1);
    peers[fd] = (struct peer){.ssl = SSL_new(ctx)};
    SSL_set_bio(peers[fd].ssl, in, out);
    SSL_set_connect_state(peers[fd].ssl);
}

bool peer_tls_is_ready(int fd)
{
    peer_in(fd);
    int rc = SSL_do_handshake(peers[fd].ssl);
    cr_assert(rc == 1 || SSL_get_error(peers[fd].ssl, rc) == SSL_ERROR_WANT_READ);
    peer_out(fd);
    return rc == 1;
}

ssize_t peer_send(int fd, const void *bytes, size_t len)
{
    if (peers[fd].ssl == NULL) {
        return send(fd, bytes, len, MSG_NOSIGNAL);
    }
    peer_out(fd);
    if (BIO_pending(SSL_get_wbio(peers[fd].ssl)) > 0) {
        errno = EAGAIN;
        return -1;
    }
    cr_assert(SSL_write(peers[fd].ssl, bytes, (int)len) == (int)len);
    peer_out(fd);
    return (ssize_t)len;
}

ssize_t peer_recv(int fd, void *to, size_t len)
{
    struct peer *peer = &peers[fd];
    if (peer->ssl == NULL) {
        return recv(fd, to, len, 0);
    }
    peer_in(fd);
    int rc = SSL_read(peer->ssl, to, (int)len);
    if (rc > 0) {
        return rc;
    }
    int error = SSL_get_error(peer->ssl, rc);
    if (error == SSL_ERROR_ZERO_RETURN) {
        return 0;
    }
    cr_assert(error == SSL_ERROR_WANT_READ, "TLS error %d", error);
    cr_assert(!peer->is_eof, "FIN without close_notify");
    errno = peer->error != 0 ? peer->error : EAGAIN;
    return -1;
}

bool peer_shutdown(int fd)
{
    struct peer *peer = &peers[fd];
    if (peer->ssl != NULL) {
        if (!peer->is_notified) {
            peer->is_notified = true;
            cr_assert(SSL_shutdown(peer->ssl) >= 0);
        }
        peer_out(fd);
        if (BIO_pending(SSL_get_wbio(peer->ssl)) > 0) {
            return false;
        }
    }
    return shutdown(fd, SHUT_WR) == 0;
}

void peer_flush_all(void)
{
    for (int fd = 0; fd < PEER_FDS_MAX; fd++) {
        if (peers[fd].ssl != NULL) {
            peer_out(fd);
        }
    }
}

int peer_close(int fd)
{
    SSL_free(peers[fd].ssl);
    peers[fd] = (struct peer){.ssl = NULL};
    return close(fd);
}
