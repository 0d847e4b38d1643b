/* SPDX-License-Identifier: Apache-2.0 */
/* exchange: taking, the way to the store and back, and the end. What an operation does is in s3_*.c and raw.c. */
#include "server/exchange.h"

#include <string.h>

#include "base/check.h"
#include "server/conn.h"
#include "server/s3_handlers.h"

/* ---- begin ---------------------------------------------------------------------------------------------------- */

static void exchange_init(struct exchange *x, struct conn *conn)
{
    /* Up to the large buffers, which are written before they are read. */
    memset(x, 0, offsetof(struct exchange, upload));
    x->magic = EXCHANGE_MAGIC;
    x->stage = EXCHANGE_HEAD;
    x->worker = conn->worker;
    x->listener = conn->listener;
    x->conn = conn;
    x->operation = METRICS_OP_UNPARSED;
    x->started_ns = conn->worker->now_ns;
    x->head_ns = conn->worker->now_ns;
    x->upload.state = UPLOAD_CLOSED;
    list_init(&x->waiter);
    list_init(&x->holder);
    worker_request_id(conn->worker, x->request_id);
}

struct exchange *exchange_take(struct conn *conn)
{
    struct worker *worker = conn->worker;
    CHECK(conn->exchange == NULL);
    struct exchange *x = pool_take(&worker->exchanges);
    if (x == NULL) {
        if (!list_is_linked(&conn->waiter)) {
            list_append(&worker->exchange_waiters, &conn->waiter);
        }
        return NULL;
    }
    worker->exchange_count++;
    exchange_init(x, conn);
    conn->exchange = x;
    return x;
}

/* ---- the store ------------------------------------------------------------------------------------------------ */

void exchange_submit(struct exchange *x, enum store_request_kind kind, void (*after)(struct exchange *x))
{
    CHECK(!x->is_waiting);
    x->is_waiting = true;
    x->after = after;
    x->request.kind = kind;
    x->request.user = x;
    x->request.status = 0;
    x->request.object = NULL;
    x->request.list = NULL;
    store_submit(x->worker->port, &x->request);
}

/* What came back belongs to the exchange, whether or not somebody still wants it. */
static void exchange_adopt(struct exchange *x)
{
    if (x->request.object != NULL) {
        if (x->object != NULL) {
            store_object_release(x->worker->port, x->object);
        }
        x->object = x->request.object;
        x->request.object = NULL;
    }
    if (x->request.list != NULL) {
        if (x->list != NULL) {
            store_list_free(x->list);
        }
        x->list = x->request.list;
        x->request.list = NULL;
    }
}

void exchange_request_done(struct store_request *request)
{
    struct exchange *x = request->user;
    CHECK(x->magic == EXCHANGE_MAGIC);
    if (request != &x->request) {
        s3_delete_returned(x, request); /* One of the many of a multi-delete. */
        return;
    }
    CHECK(x->is_waiting);
    x->is_waiting = false;
    exchange_adopt(x);
    if (x->is_abandoned || x->is_given_up) {
        exchange_settle(x);
        return;
    }
    struct conn *conn = x->conn;
    x->after(x);
    conn_run(conn);
}

void exchange_request_late(struct store_request *request)
{
    struct exchange *x = request->user;
    CHECK(x->magic == EXCHANGE_MAGIC);
    if (x->is_abandoned || x->is_given_up) {
        return;
    }
    struct conn *conn = x->conn;
    x->is_given_up = true;
    CHECK(x->response.status == 0 ||
          x->response.is_early); /* Answers begin when all that they need is there. */
    http_respond_error(x, S3_ERR_SERVICE_UNAVAILABLE);
    conn_run(conn);
}

void exchange_read_done(struct exchange *x, struct store_read *read)
{
    CHECK(x->magic == EXCHANGE_MAGIC);
    if (x->is_abandoned || x->ops == NULL || x->ops->read == NULL) {
        struct slice slice;
        x->download.read = NULL;
        if (store_read_take(read, &slice) == 0) {
            slice_release(&slice);
        }
        exchange_settle(x);
        return;
    }
    struct conn *conn = x->conn;
    x->ops->read(x, read);
    conn_run(conn);
}

void exchange_copied_claim(struct exchange *x)
{
    metrics_copied_claim(x->listener->cells, store_port_copied_bytes(x->worker->port),
                         x->worker->copied_seen);
}

bool exchange_is_throttled(const struct exchange *x)
{
    return x != NULL && x->upload.state == UPLOAD_OPEN && list_is_linked(&x->upload.throttled);
}

/* ---- blocks and tables ---------------------------------------------------------------------------------------- */

static bool exchange_item_take(struct exchange *x, struct pool *pool, void **item, enum share_kind kind)
{
    if (*item == NULL && !share_is_wanted(x, kind)) {
        *item = pool_take(pool);
    }
    if (*item == NULL) {
        share_wait(x, kind);
    }
    return *item != NULL;
}

bool exchange_block_take(struct exchange *x)
{
    return exchange_item_take(x, &x->worker->blocks, &x->block, SHARE_BLOCK);
}

bool exchange_table_take(struct exchange *x)
{
    return exchange_item_take(x, &x->worker->tables, &x->table, SHARE_TABLE);
}

void exchange_block_give(struct exchange *x)
{
    if (x->block != NULL) {
        pool_give(&x->worker->blocks, x->block);
        x->block = NULL;
    }
}

static void exchange_items_give(struct exchange *x)
{
    struct worker *worker = x->worker;
    exchange_block_give(x);
    if (x->table != NULL) {
        pool_give(&worker->tables, x->table);
        x->table = NULL;
    }
}

/* ---- end ------------------------------------------------------------------------------------------------------ */

void exchange_count(struct exchange *x)
{
    const struct http_response *response = &x->response;
    if (response->is_ended && response->late_status != 0) {
        metrics_request_late(x->listener->cells, x->operation, response->late_status);
    } else {
        metrics_request(x->listener->cells, x->operation, response->is_ended ? response->status : 0);
    }
}

void exchange_abandon(struct exchange *x)
{
    CHECK(x->magic == EXCHANGE_MAGIC);
    if (x->is_abandoned) {
        return;
    }
    x->is_abandoned = true;
    list_remove(&x->waiter);
    share_release(x);
    upload_abandon(x, METRICS_ABORT_PEER);
    if (x->stage != EXCHANGE_ENDED && x->stage != EXCHANGE_HEAD) {
        exchange_count(x);
    }
}

void exchange_detach(struct exchange *x)
{
    struct worker *worker = x->worker;
    exchange_abandon(x);
    CHECK(x->response.sends == 0);
    x->conn->exchange = NULL;
    x->conn = NULL;
    worker->orphans++;
    exchange_settle(x);
}

void exchange_end(struct exchange *x)
{
    CHECK(x->response.sends == 0);
    upload_count(x, false);
    x->stage = EXCHANGE_ENDED;
    exchange_abandon(x);
    exchange_detach(x);
}

static bool exchange_is_settled(const struct exchange *x)
{
    return x->conn == NULL && !x->is_waiting && x->more_waiting == 0 && upload_is_settled(&x->upload) &&
           (x->ops == NULL || x->ops->read == NULL ||
            (x->download.read == NULL &&
             (x->download.zstd.stream == NULL || filter_stream_is_settled(x->download.zstd.stream))));
}

static void exchange_let_go(struct exchange *x)
{
    struct worker *worker = x->worker;
    if (x->ops != NULL && x->ops->drop != NULL) {
        x->ops->drop(x);
    }
    if (x->is_xml_open) {
        s3_xml_read_close(&x->xml);
    }
    if (x->body.is_aws_begun) {
        auth_chunked_end(&x->body.aws);
    }
    upload_close(&x->upload);
    if (x->list != NULL) {
        store_list_free(x->list);
    }
    if (x->object != NULL) {
        store_object_release(worker->port, x->object);
    }
    if (x->source != NULL) {
        store_object_release(worker->port, x->source);
    }
    exchange_items_give(x);
}

void exchange_settle(struct exchange *x)
{
    struct worker *worker = x->worker;
    if (!exchange_is_settled(x)) {
        return;
    }
    exchange_let_go(x);
    explicit_bzero(&x->signing, sizeof(x->signing));
    x->magic = 0;
    CHECK(worker->orphans > 0);
    worker->orphans--;
    worker->exchange_count--;
    pool_give(&worker->exchanges, x);
}
