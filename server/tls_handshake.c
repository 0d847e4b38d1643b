/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tls_handshake: handshakes run on a helper thread. A signature by an RSA key of 4096 bits takes several
 * milliseconds; on the worker each would stall every connection it serves.
 *
 * A connection is lent to the helper for one SSL_do_handshake and comes back by another queue; while it is lent the
 * worker touches neither its SSL nor the positions that the BIO moves (tls_int.h). The helper owns nothing else.
 */
#include <openssl/err.h>

#include "server/tls_int.h"

static void tls_helper_work(void *user, struct mpsc_node *job)
{
    (void)user; /* a job names its connection */
    struct tls_conn *conn = CONTAINER_OF(job, struct tls_conn, job);
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

int tls_helper_open(struct tls_rx *tls)
{
    return helper_open(&tls->helper, "tls-handshake", tls_helper_work, NULL);
}

void tls_helper_submit(struct tls_conn *conn)
{
    CHECK(!conn->is_lent);
    tls_conn_lend(conn);
    conn->is_lent = true;
    conn->has_input = false;
    conn->tls->jobs++;
    helper_submit(&conn->tls->helper, &conn->job);
}

static void tls_helper_take_back(struct tls_rx *tls, struct mpsc_node *node)
{
    while (node != NULL) {
        struct tls_conn *conn = CONTAINER_OF(node, struct tls_conn, job);
        node = node->next;
        CHECK(conn->is_lent);
        conn->is_lent = false;
        tls->jobs--;
        tls_mark_dirty(conn);
    }
}

void tls_helper_collect(struct tls_rx *tls)
{
    tls_helper_take_back(tls, helper_collect(&tls->helper));
}

void tls_helper_close(struct tls_rx *tls)
{
    tls_helper_take_back(tls, helper_close(&tls->helper));
    CHECK(tls->jobs == 0);
}
