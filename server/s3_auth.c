/* SPDX-License-Identifier: Apache-2.0 */
/*
 * s3_auth: decides whether a request may go on. On an anonymous listener everybody may do everything and credentials
 * are not looked at (clients send some even where none are needed). Secrets stay in auth_*.c; what is kept for chunk
 * signatures is wiped with the exchange.
 */
#include <string.h>

#include "server/auth_keys.h"
#include "server/s3_handlers.h"

static struct auth_keys *s3_keys(const struct exchange *x)
{
    return atomic_load_explicit(&x->worker->shared->keys[x->listener->index], memory_order_acquire);
}

/* The key is looked up anew each time: the store of keys may be replaced between two calls. */
static const struct auth_key *s3_key(const struct exchange *x)
{
    struct auth_keys *keys = s3_keys(x);
    return keys == NULL ? NULL : auth_keys_find(keys, text_of(x->access_key, x->access_key_len));
}

/* What a listing shows is what it must be allowed to see: no prefix means every key, not "the bucket itself". */
static struct text s3_auth_prefix(const struct exchange *x)
{
    struct text prefix = s3_target_param(&x->target, "prefix");
    return text_is_absent(prefix) ? TEXT("") : prefix;
}

static struct text s3_auth_subject(const struct exchange *x)
{
    switch (x->target.op) {
    case S3_OP_LIST_OBJECTS:
    case S3_OP_LIST_OBJECTS_V2:
    case S3_OP_LIST_OBJECT_VERSIONS:
    case S3_OP_LIST_MULTIPART_UPLOADS:
        return s3_auth_prefix(x);
    default:
        return x->target.key; /* Absent for operations on the bucket itself. */
    }
}

static enum s3_error s3_verify(struct exchange *x, const struct auth_sigv4 *auth, struct auth_keys *keys)
{
    const struct auth_key *key = auth_keys_find(keys, auth->access_key);
    if (key == NULL) {
        return S3_ERR_INVALID_ACCESS_KEY;
    }
    uint8_t signing_key[32];
    auth_sigv4_cache_key(&x->worker->key_cache, auth_keys_generation(keys), auth->access_key,
                         auth_key_secret(key), auth->scope_date, auth->region, signing_key);
    struct auth_sigv4_check check = {
        .now_s = (int64_t)(x->worker->wall_ns / NS_PER_S),
        .skew_s = AUTH_SKEW_DEFAULT_S,
        .signing_key = signing_key,
    };
    enum s3_error error = auth_sigv4_verify(auth, &x->head, x->head_bytes, &x->target, &check, &x->signing);
    explicit_bzero(signing_key, sizeof(signing_key));
    if (error != S3_OK) {
        return error;
    }
    x->is_authenticated = true;
    memcpy(x->access_key, auth->access_key.at, auth->access_key.len);
    x->access_key_len = (uint32_t)auth->access_key.len;
    if (x->target.op == S3_OP_DELETE_OBJECTS) {
        return S3_OK; /* Decided for each key of the document (s3_delete.c). */
    }
    bool may = auth_key_may(key, s3_op_permission(x->target.op), x->target.bucket, s3_auth_subject(x));
    return may ? S3_OK : S3_ERR_ACCESS_DENIED;
}

enum s3_error s3_authorize(struct exchange *x)
{
    if (x->listener->conf->access == CONF_ACCESS_ANONYMOUS) {
        return S3_OK;
    }
    struct auth_sigv4 auth;
    int64_t now_s = (int64_t)(x->worker->wall_ns / NS_PER_S);
    enum s3_error error = auth_sigv4_read(&auth, &x->head, x->head_bytes, &x->target,
                                          text_of_string(x->listener->conf->region), now_s);
    if (error != S3_OK) {
        return error;
    }
    struct auth_keys *keys = s3_keys(x);
    if (auth.scheme == AUTH_SCHEME_NONE || keys == NULL || auth.access_key.len > sizeof(x->access_key)) {
        return S3_ERR_ACCESS_DENIED;
    }
    return s3_verify(x, &auth, keys);
}

bool s3_may(const struct exchange *x, enum s3_permission permission, struct text bucket, struct text key)
{
    if (x->listener->conf->access == CONF_ACCESS_ANONYMOUS) {
        return true;
    }
    const struct auth_key *found = s3_key(x);
    return found != NULL && auth_key_may(found, permission, bucket, key);
}

bool s3_may_see_bucket(const struct exchange *x, struct text bucket)
{
    if (x->listener->conf->access == CONF_ACCESS_ANONYMOUS) {
        return true;
    }
    const struct auth_key *found = s3_key(x);
    return found != NULL && auth_key_may_see_bucket(found, bucket);
}
