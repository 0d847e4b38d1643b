/* SPDX-License-Identifier: Apache-2.0 */
/*
 * admin: routes of the admin address over libmicrohttpd, which runs one thread of its own. Everything here runs on that thread,
 * except open and close.
 *
 * A browser on the same host must not be able to drain the node by a link on a foreign page, so a POST that carries an Origin
 * header is refused: tools send none.
 */
#include "server/admin.h"

#include <errno.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/log.h"

#define CONNECTIONS_MAX 32U
#define CONNECTION_TIMEOUT_S 15U
#define CONNECTION_MEMORY (32U * 1024U)
#define BODY_MAX 64U

struct admin {
    struct metrics *metrics;
    struct admin_hooks hooks;
    struct MHD_Daemon *daemon;
};

/* Body of a POST while it arrives; one per request, freed by request_done. */
struct admin_request {
    size_t body_len;
    bool is_too_long;
    char body[BODY_MAX + 1];
};

/* ---- answers ----------------------------------------------------------------------------------------------------------- */

/* Sends `text`, which is freed when `is_malloced`. `allow`: the methods that would have worked, or NULL. */
static enum MHD_Result answer(struct MHD_Connection *connection, unsigned status, const char *type,
                              char *text, size_t len, bool is_malloced, const char *allow)
{
    struct MHD_Response *response = MHD_create_response_from_buffer(
        len, text, is_malloced ? MHD_RESPMEM_MUST_FREE : MHD_RESPMEM_MUST_COPY);
    if (response == NULL) {
        if (is_malloced) {
            free(text);
        }
        return MHD_NO;
    }
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    if (allow != NULL) {
        MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, allow);
    }
    enum MHD_Result result = MHD_queue_response(connection, status, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result answer_text(struct MHD_Connection *connection, unsigned status, const char *text)
{
    char line[sizeof(((struct err *)NULL)->text) + 2];
    int len = snprintf(line, sizeof(line), "%s\n", text);
    return answer(connection, status, "text/plain; charset=utf-8", line, (size_t)len, false, NULL);
}

static enum MHD_Result answer_method(struct MHD_Connection *connection, bool is_post)
{
    char line[16];
    int len = snprintf(line, sizeof(line), "use %s\n", is_post ? "POST" : "GET");
    return answer(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "text/plain; charset=utf-8", line, (size_t)len,
                  false, is_post ? "POST" : "GET, HEAD");
}

static enum MHD_Result answer_made(struct MHD_Connection *connection, const char *type, char *text,
                                   size_t len)
{
    if (text == NULL) {
        return answer_text(connection, MHD_HTTP_INTERNAL_SERVER_ERROR, "out of memory");
    }
    return answer(connection, MHD_HTTP_OK, type, text, len, true, NULL);
}

/* ---- routes ------------------------------------------------------------------------------------------------------------ */

static enum MHD_Result probe_answer(struct admin *admin, struct MHD_Connection *connection,
                                    int (*probe)(void *ctx, struct err *why))
{
    struct err why = {""};
    if (probe(admin->hooks.ctx, &why) == 0) { /* What is amiss all the same stands behind it. */
        char text[sizeof(why.text)];
        (void)snprintf(text, sizeof(text), "ok%s%.*s", why.text[0] == '\0' ? "" : "\n", (int)sizeof(text) - 4,
                       why.text);
        return answer_text(connection, MHD_HTTP_OK, text);
    }
    return answer_text(connection, MHD_HTTP_SERVICE_UNAVAILABLE, why.text);
}

static void ready_refresh(struct admin *admin)
{
    struct err why;
    bool is_ready = admin->hooks.ready(admin->hooks.ctx, &why) == 0;
    metrics_set(&metrics_process(admin->metrics)->ready, is_ready ? 1 : 0);
}

static enum MHD_Result route_metrics(struct admin *admin, struct MHD_Connection *connection,
                                     const struct admin_request *request)
{
    (void)request; /* no body */
    size_t len = 0;
    ready_refresh(admin);
    char *text = metrics_text(admin->metrics, &len);
    return answer_made(connection, "text/plain; version=0.0.4; charset=utf-8", text, len);
}

static enum MHD_Result route_page(struct admin *admin, struct MHD_Connection *connection,
                                  const struct admin_request *request)
{
    (void)request; /* no body */
    size_t len = 0;
    ready_refresh(admin);
    char *text = metrics_status_page(admin->metrics, &len);
    return answer_made(connection, "text/html; charset=utf-8", text, len);
}

static enum MHD_Result route_health(struct admin *admin, struct MHD_Connection *connection,
                                    const struct admin_request *request)
{
    (void)request; /* no body */
    return probe_answer(admin, connection, admin->hooks.healthy);
}

static enum MHD_Result route_ready(struct admin *admin, struct MHD_Connection *connection,
                                   const struct admin_request *request)
{
    (void)request; /* no body */
    return probe_answer(admin, connection, admin->hooks.ready);
}

static enum MHD_Result route_drain(struct admin *admin, struct MHD_Connection *connection,
                                   const struct admin_request *request)
{
    (void)request; /* no body */
    LOG_INF("drain_requested", "by=admin");
    admin->hooks.drain(admin->hooks.ctx);
    return answer_text(connection, MHD_HTTP_ACCEPTED, "draining");
}

/* The level comes as the body or as ?level=. */
static enum MHD_Result route_log_level(struct admin *admin, struct MHD_Connection *connection,
                                       const struct admin_request *request)
{
    (void)admin; /* the level is the process's */
    const char *text = MHD_lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, "level");
    enum log_level level;
    text = text == NULL ? request->body : text;
    if (request->is_too_long || !log_level_parse(text, &level)) {
        return answer_text(connection, MHD_HTTP_BAD_REQUEST,
                           "send debug, info, warn or error as the body or as ?level=");
    }
    log_level_set(level);
    LOG_INF("log_level_set", "level=%s by=admin", text);
    return answer_text(connection, MHD_HTTP_OK, "ok");
}

struct route {
    const char *path;
    bool is_post;
    enum MHD_Result (*handle)(struct admin *admin, struct MHD_Connection *connection,
                              const struct admin_request *request);
};

static const struct route routes[] = {
    {"/", false, route_page},          {"/metrics", false, route_metrics},
    {"/healthz", false, route_health}, {"/readyz", false, route_ready},
    {"/drain", true, route_drain},     {"/log-level", true, route_log_level},
};

static enum MHD_Result dispatch(struct admin *admin, struct MHD_Connection *connection, const char *path,
                                const char *method, const struct admin_request *request)
{
    bool is_post = strcmp(method, MHD_HTTP_METHOD_POST) == 0;
    bool is_get = strcmp(method, MHD_HTTP_METHOD_GET) == 0 || strcmp(method, MHD_HTTP_METHOD_HEAD) == 0;
    for (size_t i = 0; i < ARRAY_COUNT(routes); i++) {
        if (strcmp(path, routes[i].path) != 0) {
            continue;
        }
        if (routes[i].is_post ? !is_post : !is_get) {
            return answer_method(connection, routes[i].is_post);
        }
        if (is_post && MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Origin") != NULL) {
            return answer_text(connection, MHD_HTTP_FORBIDDEN, "not from a web page");
        }
        return routes[i].handle(admin, connection, request);
    }
    return answer_text(connection, MHD_HTTP_NOT_FOUND,
                       "there are /, /metrics, /healthz, /readyz, and by POST /drain and /log-level");
}

/* ---- the library's callbacks ------------------------------------------------------------------------------------------- */

static enum MHD_Result request_step(void *ctx, struct MHD_Connection *connection, const char *url,
                                    const char *method, const char *version, const char *upload_data,
                                    size_t *upload_len, void **state)
{
    (void)version; /* the library speaks HTTP/1.0 and 1.1 alike */
    struct admin_request *request = *state;
    if (request == NULL) {
        request = calloc(1, sizeof(*request));
        *state = request;
        return request == NULL ? MHD_NO : MHD_YES;
    }
    if (*upload_len != 0) {
        size_t room = BODY_MAX - request->body_len;
        size_t taken = *upload_len < room ? *upload_len : room;
        memcpy(request->body + request->body_len, upload_data, taken);
        request->body_len += taken;
        request->is_too_long |= *upload_len > room;
        *upload_len = 0;
        return MHD_YES;
    }
    while (request->body_len > 0 && strchr(" \r\n", request->body[request->body_len - 1]) != NULL) {
        request->body[--request->body_len] = '\0';
    }
    return dispatch(ctx, connection, url, method, request);
}

static void request_done(void *ctx, struct MHD_Connection *connection, void **state,
                         enum MHD_RequestTerminationCode code)
{
    (void)ctx;
    (void)connection;
    (void)code; /* however it ended, its memory goes */
    free(*state);
    *state = NULL;
}

/* ---- open and close ---------------------------------------------------------------------------------------------------- */

static int listen_on(const struct conf_address *address, struct err *err)
{
    int fd = socket(address->addr.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int one = 1;
    int zero = 0;
    if (fd < 0) {
        return err_set(err, -errno, "admin %s: no socket: %s", address->text, err_text(-errno));
    }
    /* A restart must not wait for old connections; [::] takes IPv4 too, as the other listeners do. */
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) != 0 ||
        (address->addr.ss_family == AF_INET6 &&
         setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof(zero)) != 0) ||
        bind(fd, (const struct sockaddr *)&address->addr, address->len) != 0 || listen(fd, 64) != 0) {
        int rc = -errno;
        close(fd);
        return err_set(err, rc,
                       "admin %s: cannot listen: %s; change admin.address or stop what holds the port",
                       address->text, err_text(rc));
    }
    return fd;
}

/* Signals belong to the main thread: the library's thread is started with all of them blocked. */
static struct MHD_Daemon *daemon_start(struct admin *admin, int fd)
{
    sigset_t all;
    sigset_t old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    struct MHD_Daemon *daemon = MHD_start_daemon(
        MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL, 0, NULL, NULL, request_step, admin,
        MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT, CONNECTIONS_MAX,
        MHD_OPTION_CONNECTION_TIMEOUT, CONNECTION_TIMEOUT_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)CONNECTION_MEMORY, MHD_OPTION_NOTIFY_COMPLETED, request_done, NULL, MHD_OPTION_END);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return daemon;
}

int admin_open(const struct conf *conf, struct metrics *metrics, const struct admin_hooks *hooks,
               struct admin **out, struct err *err)
{
    if (conf->admin.address.len == 0) {
        *out = NULL;
        return 0;
    }
    struct admin *admin = calloc(1, sizeof(*admin));
    if (admin == NULL) {
        return err_set(err, -ENOMEM, "admin: out of memory");
    }
    admin->metrics = metrics;
    admin->hooks = *hooks;
    int fd = listen_on(&conf->admin.address, err);
    if (fd < 0) {
        free(admin);
        return fd;
    }
    admin->daemon = daemon_start(admin, fd);
    if (admin->daemon == NULL) {
        close(fd);
        free(admin);
        return err_set(err, -EAGAIN, "admin %s: its thread could not be started", conf->admin.address.text);
    }
    LOG_INF("admin_ready", "address=%s", conf->admin.address.text);
    *out = admin;
    return 0;
}

void admin_close(struct admin *admin)
{
    if (admin != NULL) {
        MHD_stop_daemon(admin->daemon);
        free(admin);
    }
}
