/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http_conn: the HTTP/1.1 request cycle of a connection: heads, bodies, 100-continue, keep-alive, pipelining, answers,
 * early errors and timeouts. What a request means is decided in s3_*.c, which calls back into the functions below.
 *
 *   HEAD --head complete--> HANDLE --http_body_accept--> BODY --last byte--> WORK --http_respond*--> RESPOND --> ENDED
 *                              \----------------- http_respond* at any point -------------------------/
 *
 * An answer that is given before the body was read completely carries "Connection: close" and is followed by a
 * lingering close: never wait for a body that may not come (RFC 9110 section 10.1.1), never reset one that does.
 */
#ifndef SERVER_HTTP_CONN_H
#define SERVER_HTTP_CONN_H

#include <stdbool.h>
#include <stdint.h>

#include "server/conn.h"
#include "server/exchange.h"

/* Cookies of sends; those from HTTP_COOKIE_PAYLOAD on belong to the operation. */
#define HTTP_COOKIE_CONTINUE 1U
#define HTTP_COOKIE_HEAD 2U
#define HTTP_COOKIE_END 3U
#define HTTP_COOKIE_PAYLOAD 16U

/* Within send_timeout, for what the peer has taken: so much later it is given up at most. */
#define HTTP_SEND_LOOKS 4U

#define HTTP_LENGTH_NONE UINT64_MAX           /* no body and no Content-Length: 204, 304 */
#define HTTP_LENGTH_UNKNOWN (UINT64_MAX - 1U) /* chunked, or until close for HTTP/1.0 */

extern const struct conn_protocol http_protocol;

/* For who found no free exchange: 503 as a whole, and the end of the connection. */
void http_refuse(struct conn *conn);
/* The handler takes the body: x->ops->body gets it, x->ops->body_end ends it. Sends 100 Continue when it is due. */
void http_body_accept(struct exchange *x);
/* Bytes of payload that were announced, or UINT64_MAX when unknown. */
uint64_t http_body_size(const struct exchange *x);
/* A request header's value; absent when it was not sent. */
struct text http_request_header(const struct exchange *x, const char *name);

/* ---- answers (http_response.c) -------------------------------------------------------------------------------- */

/* Starts the head of an answer: status line and what every answer has. Once per exchange. */
void http_response_begin(struct exchange *x, int status);
void http_response_header(struct exchange *x, const char *name, struct text value);
void http_response_header_u64(struct exchange *x, const char *name, uint64_t value);
/* Ends the head and sends it. `length` is that of the body, also for HEAD, where none is sent. The body follows by
 * http_response_payload; http_response_end comes last. */
void http_response_start(struct exchange *x, uint64_t length);
/* Queues a part of the body; false when the connection is gone. In a chunked answer one call is one chunk. */
bool http_response_payload(struct exchange *x, const void *bytes, uint32_t len, uint64_t cookie);
/* The same for a part that was cut: without the first `sent` bytes of what went out with it, framing included. */
bool http_response_payload_rest(struct exchange *x, const void *bytes, uint32_t len, uint64_t cookie,
                                uint64_t sent);
/* Called again after a cut when the body is complete and x->response.is_ended is not set. */
void http_response_end(struct exchange *x);

/* Takes back what the peer does not read: ops->cut for each part, later ops->room. False: this backend cannot. */
bool http_response_recall(struct exchange *x);
/* For http_conn.c: a send was given back; there is room again. */
void http_response_cut(struct exchange *x, uint64_t cookie, uint64_t sent);
void http_response_room(struct exchange *x);

/* For what takes long and answers with a document: when the client has waited for send_timeout / HTTP_SEND_LOOKS it gets a 200 and
 * the document's first line, then a space in each such time, as S3 does it, so that it does not give up. Afterwards the operation
 * answers as ever, by http_respond_xml or http_respond_error: what fails now is an <Error> behind a 200. */
void http_response_may_be_early(struct exchange *x);
/* For http_conn.c: such a time has passed. */
void http_response_early(struct exchange *x);

/* Whole answers. */
void http_respond_empty(struct exchange *x, int status);
/* What was written into x->xml_out. */
void http_respond_xml(struct exchange *x, int status);
void http_respond_error(struct exchange *x, enum s3_error error);
/* The same with an element more, e.g. BucketName. */
void http_respond_error_with(struct exchange *x, enum s3_error error, const char *tag, struct text value);
/* Prepares x->xml_out over the small body area. */
void http_xml_begin(struct exchange *x);

/* Is the request HEAD? Then bodies are not sent. */
static inline bool http_is_head(const struct exchange *x)
{
    return x->head.method == HTTP_METHOD_HEAD;
}

/* s3_dispatch.c: the head is complete and x->target is to be found out. */
void s3_dispatch(struct exchange *x);

#endif
