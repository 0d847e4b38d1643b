/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tls_handshake: the helper thread on which handshakes run. A signature by an RSA key of 4096 bits takes several
 * milliseconds; on the worker each would stall every connection it serves.
 *
 * A connection is lent to the helper for one SSL_do_handshake and comes back by another queue; while it is lent the
 * worker touches neither its SSL nor the positions that the BIO moves (tls_int.h). The helper owns nothing else.
 */
#include <errno.h>
#include <openssl/err.h>
#include <poll.h>
#include <string.h>

#include "server/tls_int.h"

static void tls_helper_handshake(struct tls_conn *conn)
{
    ERR_clear_error();
    int rc = SSL_do_handshake(conn->ssl);
    conn->job_result = rc == 1 ? SSL_ERROR_NONE : SSL_get_error(conn->ssl, rc);
    conn->job_is_http = false;
    if (conn->job_result == SSL_ERROR_SSL) {
        int reason = ERR_GET_REASON(ERR_peek_error());
        conn->job_is_http = reason == SSL_R_HTTP_REQUEST;
    }
    ERR_clear_error();
}

static void *tls_helper_main(void *argument)
{
    struct tls_rx *tls = argument;
    struct pollfd wait = {.fd = tls->to_helper.event_fd, .events = POLLIN};
    bool is_stopping = false;
    while (!is_stopping) {
        struct mpsc_node *node = mpsc_take_all(&tls->to_helper);
        if (node == NULL) {
            int rc = poll(&wait, 1, -1);
            CHECK(rc >= 0 || errno == EINTR);
            mpsc_clear(&tls->to_helper);
            continue;
        }
        while (node != NULL) {
            struct mpsc_node *next = node->next;
            if (node == &tls->stop) {
                is_stopping = true;
            } else {
                tls_helper_handshake(CONTAINER_OF(node, struct tls_conn, job));
                mpsc_push(&tls->to_worker, node);
            }
            node = next;
        }
    }
    return NULL;
}

int tls_helper_open(struct tls_rx *tls)
{
    int rc = mpsc_open(&tls->to_helper);
    if (rc < 0) {
        return rc;
    }
    rc = mpsc_open(&tls->to_worker);
    if (rc < 0) {
        goto close_to_helper;
    }
    rc = -pthread_create(&tls->helper, NULL, tls_helper_main, tls);
    if (rc < 0) {
        goto close_to_worker;
    }
    (void)pthread_setname_np(tls->helper, "tls-handshake"); /* Only for people who look at top. */
    tls->has_helper = true;
    return 0;

close_to_worker:
    mpsc_close(&tls->to_worker);
close_to_helper:
    mpsc_close(&tls->to_helper);
    return rc;
}

void tls_helper_submit(struct tls_conn *conn)
{
    CHECK(!conn->is_lent);
    tls_conn_lend(conn);
    conn->is_lent = true;
    conn->has_input = false;
    conn->tls->jobs++;
    mpsc_push(&conn->tls->to_helper, &conn->job);
}

void tls_helper_collect(struct tls_rx *tls)
{
    if (tls->jobs == 0) {
        return; /* The usual case costs no system call. */
    }
    mpsc_clear(&tls->to_worker);
    struct mpsc_node *node = mpsc_take_all(&tls->to_worker);
    while (node != NULL) {
        struct tls_conn *conn = CONTAINER_OF(node, struct tls_conn, job);
        node = node->next;
        CHECK(conn->is_lent);
        conn->is_lent = false;
        tls->jobs--;
        tls_mark_dirty(conn);
    }
}

void tls_helper_close(struct tls_rx *tls)
{
    if (!tls->has_helper) {
        return;
    }
    mpsc_push(&tls->to_helper, &tls->stop);
    int rc = pthread_join(tls->helper, NULL); /* It works off what it was given before. */
    CHECK(rc == 0);
    tls_helper_collect(tls);
    CHECK(tls->jobs == 0);
    mpsc_close(&tls->to_worker);
    mpsc_close(&tls->to_helper);
    tls->has_helper = false;
}
