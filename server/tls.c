/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tls: files, checks and the OpenSSL context.
 *
 * Invariants
 *  1. `ssl_ctx` always holds a context whose certificate and key were checked. `lock` guards the pointer only; it is taken
 *     once per connection and never while another lock is held.
 *  2. Ticket keys are made once per process and stay over reloads, so that a new certificate does not cost every client
 *     its session; they are never written anywhere.
 */
#include "server/tls.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/check.h"

#define TLS_TICKET_KEYS_SIZE 80U /* what OpenSSL 3 takes: name, HMAC key, AES key */

struct tls_context {
    const struct conf_listener *conf;
    pthread_mutex_t lock;
    SSL_CTX *ssl_ctx;
};

static uint8_t tls_ticket_keys[TLS_TICKET_KEYS_SIZE];
static int tls_ticket_status;
static pthread_once_t tls_ticket_once = PTHREAD_ONCE_INIT;

static void tls_ticket_make(void)
{
    tls_ticket_status = RAND_priv_bytes(tls_ticket_keys, sizeof(tls_ticket_keys));
}

/* ---- the files ------------------------------------------------------------------------------------------------ */

/* The innermost reason of OpenSSL, and its queue emptied. */
static const char *tls_reason(void)
{
    unsigned long code = ERR_peek_last_error();
    const char *text = code == 0 ? NULL : ERR_reason_error_string(code);
    ERR_clear_error();
    return text == NULL ? "unknown reason" : text;
}

static int tls_file_check(const char *path, bool is_secret, struct err *err)
{
    struct stat info;
    if (stat(path, &info) != 0 || access(path, R_OK) != 0) {
        return err_set(err, -errno, "%s: %s", path, err_text(-errno));
    }
    if (!S_ISREG(info.st_mode)) {
        return err_set(err, ERR_INVALID_CONFIG, "%s is no regular file", path);
    }
    if (is_secret && (info.st_mode & 077) != 0) {
        return err_set(err, ERR_INVALID_CONFIG, "%s may be read by others; chmod 600 it", path);
    }
    return 0;
}

/* A daemon has nobody to ask: an encrypted key is refused instead of waiting for a password on the terminal. */
static int tls_no_password(char *buf, int size, int is_writing, void *user)
{
    (void)buf;
    (void)size;
    (void)is_writing;
    *(bool *)user = true;
    return -1;
}

static int tls_load_pair(SSL_CTX *ssl_ctx, const struct conf_tls *files, struct err *err)
{
    bool was_asked = false;
    SSL_CTX_set_default_passwd_cb(ssl_ctx, tls_no_password);
    SSL_CTX_set_default_passwd_cb_userdata(ssl_ctx, &was_asked);
    if (SSL_CTX_use_certificate_chain_file(ssl_ctx, files->certificate) != 1) {
        return err_set(err, ERR_INVALID_CONFIG, "%s: no usable certificate in PEM form: %s",
                       files->certificate, tls_reason());
    }
    int rc = SSL_CTX_use_PrivateKey_file(ssl_ctx, files->key, SSL_FILETYPE_PEM);
    if (rc != 1) {
        /* A key of another kind than the certificate's is a mismatch that OpenSSL finds while loading. */
        bool is_mismatch = ERR_GET_REASON(ERR_peek_last_error()) == X509_R_KEY_VALUES_MISMATCH ||
                           ERR_GET_REASON(ERR_peek_last_error()) == X509_R_KEY_TYPE_MISMATCH;
        const char *reason = tls_reason();
        return was_asked
                   ? err_set(err, ERR_INVALID_CONFIG,
                             "%s is encrypted and a daemon has nobody to ask; store it without a password",
                             files->key)
               : is_mismatch ? err_set(err, ERR_INVALID_CONFIG, "%s is not the key of %s: %s", files->key,
                                       files->certificate, reason)
                             : err_set(err, ERR_INVALID_CONFIG, "%s: no usable private key in PEM form: %s",
                                       files->key, reason);
    }
    SSL_CTX_set_default_passwd_cb_userdata(ssl_ctx, NULL);
    if (SSL_CTX_check_private_key(ssl_ctx) != 1) {
        return err_set(err, ERR_INVALID_CONFIG, "%s is not the key of %s: %s", files->key, files->certificate,
                       tls_reason());
    }
    return 0;
}

static void tls_time_text(const ASN1_TIME *when, char *to, size_t size)
{
    struct tm tm;
    to[0] = '\0';
    if (ASN1_TIME_to_tm(when, &tm) == 1) {
        (void)strftime(to, size, "%Y-%m-%dT%H:%M:%SZ", &tm); /* Too small a buffer leaves "". */
    }
}

static int tls_certificate_look(const SSL_CTX *ssl_ctx, const char *path, struct tls_certificate *out,
                                struct err *err)
{
    X509 *x509 = SSL_CTX_get0_certificate(ssl_ctx);
    struct tls_certificate about = {.days_left = 0};
    int days = 0;
    int seconds = 0;
    char since[32];
    CHECK(x509 != NULL);
    (void)X509_NAME_oneline(X509_get_subject_name(x509), about.subject, sizeof(about.subject));
    tls_time_text(X509_get0_notAfter(x509), about.not_after, sizeof(about.not_after));
    tls_time_text(X509_get0_notBefore(x509), since, sizeof(since));
    if (X509_cmp_current_time(X509_get0_notAfter(x509)) < 0) {
        return err_set(err, ERR_INVALID_CONFIG, "%s: the certificate of %s expired at %s; renew it", path,
                       about.subject, about.not_after);
    }
    if (X509_cmp_current_time(X509_get0_notBefore(x509)) > 0) {
        return err_set(err, ERR_INVALID_CONFIG,
                       "%s: the certificate of %s is not valid before %s; is the clock right?", path,
                       about.subject, since);
    }
    if (ASN1_TIME_diff(&days, &seconds, NULL, X509_get0_notAfter(x509)) == 1) {
        about.days_left = days;
    }
    if (out != NULL) {
        *out = about;
    }
    return 0;
}

/* ---- the context ---------------------------------------------------------------------------------------------- */

/* We speak HTTP/1.1 and nothing else: a client that offers only other protocols is told so by an alert. */
static int tls_alpn_select(SSL *ssl, const unsigned char **out, unsigned char *out_len,
                           const unsigned char *in, unsigned in_len, void *arg)
{
    static const unsigned char ours[] = "\x08http/1.1";
    unsigned char *chosen = NULL;
    (void)ssl;
    (void)arg;
    if (SSL_select_next_proto(&chosen, out_len, ours, sizeof(ours) - 1, in, in_len) !=
        OPENSSL_NPN_NEGOTIATED) {
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    }
    *out = chosen;
    return SSL_TLSEXT_ERR_OK;
}

static int tls_configure(SSL_CTX *ssl_ctx, const struct conf_listener *conf)
{
    SSL_CTX_set_options(ssl_ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                     SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_PRIORITIZE_CHACHA);
    /* Idle connections give their record buffers back; sends are cut where a record fits. */
    SSL_CTX_set_mode(ssl_ctx, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE |
                                  SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    /* Tickets carry the session, so no table of sessions is kept: memory stays what connections_max says. */
    SSL_CTX_set_session_cache_mode(ssl_ctx, SSL_SESS_CACHE_OFF);
    if (conf->protocol == CONF_PROTOCOL_S3) {
        SSL_CTX_set_alpn_select_cb(ssl_ctx, tls_alpn_select, NULL);
    }
    int rc = pthread_once(&tls_ticket_once, tls_ticket_make);
    CHECK(rc == 0);
    size_t name_len = strnlen(conf->name, SSL_MAX_SID_CTX_LENGTH);
    bool works =
        tls_ticket_status == 1 && SSL_CTX_set_min_proto_version(ssl_ctx, TLS1_2_VERSION) == 1 &&
        SSL_CTX_set_max_proto_version(ssl_ctx, TLS1_3_VERSION) == 1 &&
        SSL_CTX_set_cipher_list(ssl_ctx, "ECDHE+AESGCM:ECDHE+CHACHA20") == 1 &&
        SSL_CTX_set_tlsext_ticket_keys(ssl_ctx, tls_ticket_keys, sizeof(tls_ticket_keys)) == 1 &&
        SSL_CTX_set_session_id_context(ssl_ctx, (const unsigned char *)conf->name, (unsigned)name_len) == 1;
    return works ? 0 : -ENOTSUP;
}

static int tls_ssl_ctx_open(const struct conf_listener *conf, SSL_CTX **out, struct tls_certificate *about,
                            struct err *err)
{
    int rc = tls_file_check(conf->tls.certificate, false, err);
    if (rc == 0) {
        rc = tls_file_check(conf->tls.key, true, err);
    }
    if (rc < 0) {
        return rc;
    }
    ERR_clear_error();
    SSL_CTX *ssl_ctx = SSL_CTX_new(TLS_server_method());
    if (ssl_ctx == NULL) {
        return err_set(err, -ENOMEM, "OpenSSL makes no context: %s", tls_reason());
    }
    rc = tls_configure(ssl_ctx, conf);
    if (rc < 0) {
        (void)err_set(err, rc, "OpenSSL refuses TLS 1.2 and 1.3 as we need them: %s", tls_reason());
    } else {
        rc = tls_load_pair(ssl_ctx, &conf->tls, err);
    }
    if (rc == 0) {
        rc = tls_certificate_look(ssl_ctx, conf->tls.certificate, about, err);
    }
    if (rc < 0) {
        SSL_CTX_free(ssl_ctx);
        return rc;
    }
    *out = ssl_ctx;
    return 0;
}

int tls_files_check(const struct conf_listener *conf, struct tls_certificate *out, struct err *err)
{
    SSL_CTX *ssl_ctx = NULL;
    int rc = tls_ssl_ctx_open(conf, &ssl_ctx, out, err);
    SSL_CTX_free(ssl_ctx);
    return rc;
}

int tls_context_open(const struct conf_listener *conf, struct tls_context **out,
                     struct tls_certificate *about, struct err *err)
{
    struct tls_context *context = calloc(1, sizeof(*context));
    if (context == NULL) {
        return err_set(err, -ENOMEM, "out of memory");
    }
    context->conf = conf;
    int rc = tls_ssl_ctx_open(conf, &context->ssl_ctx, about, err);
    if (rc < 0) {
        free(context);
        return rc;
    }
    rc = pthread_mutex_init(&context->lock, NULL);
    CHECK(rc == 0);
    *out = context;
    return 0;
}

static void tls_lock(struct tls_context *context)
{
    int rc = pthread_mutex_lock(&context->lock);
    CHECK(rc == 0);
}

static void tls_unlock(struct tls_context *context)
{
    int rc = pthread_mutex_unlock(&context->lock);
    CHECK(rc == 0);
}

int tls_context_reload(struct tls_context *context, struct tls_certificate *about, struct err *err)
{
    SSL_CTX *fresh = NULL;
    int rc = tls_ssl_ctx_open(context->conf, &fresh, about, err);
    if (rc < 0) {
        return rc;
    }
    tls_lock(context);
    SSL_CTX *old = context->ssl_ctx;
    context->ssl_ctx = fresh;
    tls_unlock(context);
    SSL_CTX_free(old); /* Each connection holds a reference of its own. */
    return 0;
}

void tls_context_close(struct tls_context *context)
{
    if (context == NULL) {
        return;
    }
    SSL_CTX_free(context->ssl_ctx);
    (void)pthread_mutex_destroy(&context->lock); /* Nobody waits on it any more. */
    free(context);
}

SSL *tls_context_ssl(struct tls_context *context)
{
    tls_lock(context);
    SSL *ssl = SSL_new(context->ssl_ctx); /* Takes a reference to the context. */
    tls_unlock(context);
    if (ssl != NULL) {
        SSL_set_accept_state(ssl);
    }
    return ssl;
}
