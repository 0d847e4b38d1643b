/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cli_remote: the running node, spoken to in S3 over its own listener with libcurl, so that the command line works while a node holds
 * the store. XML answers are read by expat into a small list of texts. It needs a listener that takes anonymous requests.
 */
#include <curl/curl.h>
#include <errno.h>
#include <expat.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "server/cli_store.h"

#define BODY_MAX (16U * 1024U * 1024U) /* an XML answer; a list of 1,000 keys is far below */
#define URL_MAX 4200U                  /* key of 1,024 bytes, each as %XX, and the rest */
#define ENTRIES_MAX 1001U

struct remote {
    struct cli_store base;
    CURL *curl;
    char origin[128];  /* "http://127.0.0.1:9000" */
    char subject[400]; /* what subject() wrote last */
};

/* ---- one request ------------------------------------------------------------------------------------------------------- */

/* Body of an answer. With a sink and status 200 it goes there, otherwise into memory: XML, or an error. */
struct answer {
    struct remote *remote;
    cli_sink_fn sink;
    void *sink_ctx;
    cli_header_fn header;
    void *header_ctx;
    int sink_rc;
    char *body;
    size_t len;
};

static size_t body_take(char *data, size_t size, size_t count, void *ctx)
{
    struct answer *answer = ctx;
    size_t len = size * count;
    long status = 0;
    curl_easy_getinfo(answer->remote->curl, CURLINFO_RESPONSE_CODE, &status);
    if (answer->sink != NULL && status == 200) {
        answer->sink_rc = answer->sink(answer->sink_ctx, data, len);
        return answer->sink_rc == 0 ? len : 0;
    }
    if (answer->len + len > BODY_MAX) {
        return 0;
    }
    char *body = realloc(answer->body, answer->len + len + 1);
    if (body == NULL) {
        return 0;
    }
    memcpy(body + answer->len, data, len);
    answer->body = body;
    answer->len += len;
    body[answer->len] = '\0';
    return len;
}

static size_t header_take(char *data, size_t size, size_t count, void *ctx)
{
    struct answer *answer = ctx;
    size_t len = size * count;
    char name[256];
    const char *colon = memchr(data, ':', len);
    if (answer->header == NULL || colon == NULL || (size_t)(colon - data) >= sizeof(name)) {
        return len;
    }
    memcpy(name, data, (size_t)(colon - data));
    name[colon - data] = '\0';
    const char *value = colon + 1;
    const char *end = data + len;
    while (value < end && *value == ' ') {
        value++;
    }
    while (end > value && (end[-1] == '\r' || end[-1] == '\n')) {
        end--;
    }
    answer->header(answer->header_ctx, name, value, (size_t)(end - value));
    return len;
}

/* Percent-encodes all but unreserved characters and, in paths, the slash. */
static size_t encode(const char *text, size_t len, bool is_path, char *to, size_t size)
{
    size_t used = 0;
    for (size_t i = 0; i < len; i++) {
        unsigned char byte = (unsigned char)text[i];
        bool is_plain = (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
                        (byte >= '0' && byte <= '9') || strchr("-._~", byte) != NULL ||
                        (is_path && byte == '/');
        CHECK(used + 4 <= size);
        used += (size_t)snprintf(to + used, size - used, is_plain && byte != 0 ? "%c" : "%%%02X", byte);
    }
    to[used] = '\0';
    return used;
}

static void url_of_key(const struct remote *remote, const struct cli_key *key, char to[URL_MAX])
{
    size_t used = (size_t)snprintf(to, URL_MAX, "%s/%s/", remote->origin, key->bucket);
    encode(key->key, key->key_len, true, to + used, URL_MAX - used);
}

static void request_begin(struct remote *remote, const char *url, struct answer *answer)
{
    CURL *curl = remote->curl;
    curl_easy_reset(curl);
    answer->remote = remote;
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_PATH_AS_IS, 1L);
    curl_easy_setopt(curl, CURLOPT_PROXY, "");
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, 10L);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, body_take);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, answer);
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, header_take);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, answer);
}

/* ---- XML ---------------------------------------------------------------------------------------------------------------- */

/* What is read out of any S3 answer: the texts of a few elements, and entries of lists. */
struct xml_entry {
    bool is_prefix;
    char name[1025 * 3]; /* url-encoded */
    uint64_t size;
    uint64_t modified_ns;
};

struct xml {
    char text[URL_MAX]; /* of the element being read */
    size_t text_len;
    bool in_entry; /* Contents, CommonPrefixes, Bucket */
    char code[64];
    char message[512];
    char token[2048];
    bool is_truncated;
    uint32_t count;
    struct xml_entry *entries;
};

static uint64_t time_read(const char *text)
{
    struct tm tm = {.tm_isdst = 0};
    if (strptime(text, "%Y-%m-%dT%H:%M:%S", &tm) == NULL) {
        return 0;
    }
    return (uint64_t)timegm(&tm) * NS_PER_S;
}

static void xml_start(void *ctx, const XML_Char *name, const XML_Char **attributes)
{
    (void)attributes; /* S3 uses none that matter */
    struct xml *xml = ctx;
    xml->text_len = 0;
    bool is_entry =
        strcmp(name, "Contents") == 0 || strcmp(name, "CommonPrefixes") == 0 || strcmp(name, "Bucket") == 0;
    if (is_entry && xml->count < ENTRIES_MAX) {
        xml->in_entry = true;
        memset(&xml->entries[xml->count], 0, sizeof(xml->entries[0]));
        xml->entries[xml->count].is_prefix = name[0] == 'C' && name[2] == 'm';
    }
}

static void xml_text(void *ctx, const XML_Char *text, int len)
{
    struct xml *xml = ctx;
    size_t room = sizeof(xml->text) - 1 - xml->text_len;
    size_t taken = (size_t)len < room ? (size_t)len : room;
    memcpy(xml->text + xml->text_len, text, taken);
    xml->text_len += taken;
}

static void xml_end_in_entry(struct xml *xml, const char *name)
{
    struct xml_entry *entry = &xml->entries[xml->count];
    if (strcmp(name, "Contents") == 0 || strcmp(name, "CommonPrefixes") == 0 || strcmp(name, "Bucket") == 0) {
        xml->in_entry = false;
        xml->count++;
    } else if (strcmp(name, "Key") == 0 || strcmp(name, "Prefix") == 0 || strcmp(name, "Name") == 0) {
        snprintf(entry->name, sizeof(entry->name), "%.3074s", xml->text);
    } else if (strcmp(name, "Size") == 0) {
        entry->size = strtoull(xml->text, NULL, 10);
    } else if (strcmp(name, "LastModified") == 0 || strcmp(name, "CreationDate") == 0) {
        entry->modified_ns = time_read(xml->text);
    }
}

static void xml_end(void *ctx, const XML_Char *name)
{
    struct xml *xml = ctx;
    xml->text[xml->text_len] = '\0';
    if (xml->in_entry) {
        xml_end_in_entry(xml, name);
    } else if (strcmp(name, "Code") == 0) {
        snprintf(xml->code, sizeof(xml->code), "%.63s", xml->text);
    } else if (strcmp(name, "Message") == 0) {
        snprintf(xml->message, sizeof(xml->message), "%.511s", xml->text);
    } else if (strcmp(name, "NextContinuationToken") == 0) {
        snprintf(xml->token, sizeof(xml->token), "%.2047s", xml->text);
    } else if (strcmp(name, "IsTruncated") == 0) {
        xml->is_truncated = strcmp(xml->text, "true") == 0;
    }
    xml->text_len = 0;
}

static int xml_read(struct xml *xml, const struct answer *answer)
{
    XML_Parser parser = XML_ParserCreate("UTF-8");
    if (parser == NULL) {
        return -ENOMEM;
    }
    xml->count = 0;
    xml->in_entry = false;
    xml->is_truncated = false;
    xml->token[0] = '\0';
    XML_SetUserData(parser, xml);
    XML_SetElementHandler(parser, xml_start, xml_end);
    XML_SetCharacterDataHandler(parser, xml_text);
    enum XML_Status status = XML_Parse(parser, answer->body == NULL ? "" : answer->body, (int)answer->len, 1);
    XML_ParserFree(parser);
    return status == XML_STATUS_OK ? 0 : -EBADMSG;
}

static struct xml *xml_new(void)
{
    struct xml *xml = calloc(1, sizeof(*xml));
    if (xml != NULL) {
        xml->entries = calloc(ENTRIES_MAX, sizeof(*xml->entries));
        if (xml->entries == NULL) {
            free(xml);
            xml = NULL;
        }
    }
    return xml;
}

static void xml_free(struct xml *xml)
{
    free(xml->entries);
    free(xml);
}

/* ---- results ----------------------------------------------------------------------------------------------------------- */

static int error_of(long status, const char *code)
{
    if (strcmp(code, "NoSuchBucket") == 0) {
        return ERR_NO_SUCH_BUCKET;
    }
    if (status == 404) {
        return ERR_NO_SUCH_KEY;
    }
    return status == 507 ? -ENOSPC : -EIO;
}

/* A key as messages name it, cut so that the rest of the message has room. Valid until the next call. */
static const char *subject(struct remote *remote, const struct cli_key *key)
{
    snprintf(remote->subject, sizeof(remote->subject), "%s/%.300s", key->bucket, key->key);
    return remote->subject;
}

/* Sends the request. 0 for a 2xx status; otherwise the node's own words are in `err`. `what` names the subject. */
static int request_run(struct answer *answer, const char *what, struct err *err)
{
    CURL *curl = answer->remote->curl;
    char reason[CURL_ERROR_SIZE] = "";
    long status = 0;
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, reason);
    CURLcode rc = curl_easy_perform(curl);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, NULL);
    if (answer->sink_rc != 0) {
        return err_set(err, answer->sink_rc, "%s: output: %s", what, err_text(answer->sink_rc));
    }
    if (rc != CURLE_OK) {
        return err_set(err, -EIO, "%s: %s: %s", what, answer->remote->origin,
                       reason[0] == '\0' ? curl_easy_strerror(rc) : reason);
    }
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    if (status / 100 == 2) {
        return 0;
    }
    struct xml *xml = xml_new();
    if (xml == NULL) {
        return err_set(err, -ENOMEM, "out of memory");
    }
    (void)xml_read(xml, answer); /* an answer without XML (to HEAD) leaves code and message empty */
    int code = error_of(status, xml->code);
    if (xml->code[0] == '\0' && status == 404) {
        /* an answer to HEAD carries no words */
        snprintf(xml->code, sizeof(xml->code), "no such bucket or key");
    }
    err_set(err, code, "%s: the node answers %ld %s%s%s", what, status, xml->code,
            xml->message[0] == '\0' ? "" : ": ", xml->message);
    xml_free(xml);
    return code;
}

/* ---- lists -------------------------------------------------------------------------------------------------------------- */

/* Calls back for each entry; names are decoded when the list is. */
static int entries_report(const struct remote *remote, const struct xml *xml, bool is_encoded,
                          cli_entry_fn entry, void *ctx)
{
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < xml->count; i++) {
        int len = (int)strlen(xml->entries[i].name);
        char *name = is_encoded ? curl_easy_unescape(remote->curl, xml->entries[i].name, len, &len) : NULL;
        if (is_encoded && name == NULL) {
            return -ENOMEM;
        }
        struct cli_entry out = {.name = name == NULL ? xml->entries[i].name : name,
                                .len = (size_t)len,
                                .is_prefix = xml->entries[i].is_prefix,
                                .size = xml->entries[i].size,
                                .modified_ns = xml->entries[i].modified_ns};
        rc = entry(ctx, &out);
        curl_free(name);
    }
    return rc;
}

/* One page into `xml`. */
static int page_read(struct remote *remote, const char *url, const char *what, struct xml *xml,
                     struct err *err)
{
    struct answer answer = {.sink = NULL};
    request_begin(remote, url, &answer);
    int rc = request_run(&answer, what, err);
    if (rc == 0) {
        rc = xml_read(xml, &answer);
        if (rc != 0) {
            err_set(err, rc, "%s: the node's list is not XML", what);
        }
    }
    free(answer.body);
    return rc;
}

static int remote_buckets(struct cli_store *base, cli_entry_fn entry, void *ctx, struct err *err)
{
    struct remote *remote = (struct remote *)base;
    char url[URL_MAX];
    struct xml *xml = xml_new();
    if (xml == NULL) {
        return err_set(err, -ENOMEM, "out of memory");
    }
    snprintf(url, sizeof(url), "%s/", remote->origin);
    int rc = page_read(remote, url, "buckets", xml, err);
    rc = rc != 0 ? rc : entries_report(remote, xml, false, entry, ctx);
    xml_free(xml);
    return rc;
}

static int remote_list(struct cli_store *base, const struct cli_key *prefix, bool recursive,
                       cli_entry_fn entry, void *ctx, struct err *err)
{
    struct remote *remote = (struct remote *)base;
    char url[URL_MAX + 8192];
    struct xml *xml = xml_new();
    int rc = 0;
    if (xml == NULL) {
        return err_set(err, -ENOMEM, "out of memory");
    }
    do {
        size_t used = (size_t)snprintf(url, sizeof(url),
                                       "%s/%s?list-type=2&encoding-type=url%s&prefix=", remote->origin,
                                       prefix->bucket, recursive ? "" : "&delimiter=%2F");
        used += encode(prefix->key, prefix->key_len, false, url + used, sizeof(url) - used);
        if (xml->token[0] != '\0') {
            used += (size_t)snprintf(url + used, sizeof(url) - used, "&continuation-token=");
            encode(xml->token, strlen(xml->token), false, url + used, sizeof(url) - used);
        }
        rc = page_read(remote, url, prefix->bucket, xml, err);
        rc = rc != 0 ? rc : entries_report(remote, xml, true, entry, ctx);
    } while (rc == 0 && xml->is_truncated && xml->token[0] != '\0');
    xml_free(xml);
    return rc;
}

/* ---- objects ------------------------------------------------------------------------------------------------------------ */

static int remote_stat(struct cli_store *base, const struct cli_key *key, cli_header_fn header, void *ctx,
                       struct err *err)
{
    struct remote *remote = (struct remote *)base;
    char url[URL_MAX];
    struct answer answer = {.header = header, .header_ctx = ctx};
    struct answer probe = {.sink = NULL};
    url_of_key(remote, key, url);
    /* Headers are printed as they come, so whether the object is there must be known before. */
    request_begin(remote, url, &probe);
    curl_easy_setopt(remote->curl, CURLOPT_NOBODY, 1L);
    int rc = request_run(&probe, subject(remote, key), err);
    free(probe.body);
    if (rc != 0) {
        return rc;
    }
    request_begin(remote, url, &answer);
    curl_easy_setopt(remote->curl, CURLOPT_NOBODY, 1L);
    rc = request_run(&answer, subject(remote, key), err);
    free(answer.body);
    return rc;
}

static int remote_get(struct cli_store *base, const struct cli_key *key, cli_sink_fn sink, void *ctx,
                      struct err *err)
{
    struct remote *remote = (struct remote *)base;
    char url[URL_MAX];
    struct answer answer = {.sink = sink, .sink_ctx = ctx};
    url_of_key(remote, key, url);
    request_begin(remote, url, &answer);
    struct curl_slist *headers = base->is_stored ? curl_slist_append(NULL, "x-penstock-read: stored") : NULL;
    curl_easy_setopt(remote->curl, CURLOPT_HTTPHEADER, headers);
    int rc = base->is_stored && headers == NULL ? -ENOMEM : request_run(&answer, subject(remote, key), err);
    curl_easy_setopt(remote->curl, CURLOPT_HTTPHEADER, NULL);
    curl_slist_free_all(headers);
    free(answer.body);
    return rc;
}

static int remote_remove(struct cli_store *base, const struct cli_key *key, struct err *err)
{
    struct remote *remote = (struct remote *)base;
    char url[URL_MAX];
    struct answer answer = {.sink = NULL};
    url_of_key(remote, key, url);
    /* S3 answers 204 whether the object was there or not; the direct door says which, so this one asks first. */
    request_begin(remote, url, &answer);
    curl_easy_setopt(remote->curl, CURLOPT_NOBODY, 1L);
    int rc = request_run(&answer, subject(remote, key), err);
    if (rc == 0) {
        request_begin(remote, url, &answer);
        curl_easy_setopt(remote->curl, CURLOPT_CUSTOMREQUEST, "DELETE");
        rc = request_run(&answer, subject(remote, key), err);
    }
    free(answer.body);
    return rc;
}

static size_t source_take(char *data, size_t size, size_t count, void *ctx)
{
    const struct cli_put *put = ctx;
    ssize_t got = put->source(put->ctx, data, size * count);
    return got < 0 ? CURL_READFUNC_ABORT : (size_t)got;
}

static int bucket_create(struct remote *remote, const struct cli_key *key, struct err *err)
{
    char url[URL_MAX];
    struct answer answer = {.sink = NULL};
    snprintf(url, sizeof(url), "%s/%s", remote->origin, key->bucket);
    request_begin(remote, url, &answer);
    curl_easy_setopt(remote->curl, CURLOPT_CUSTOMREQUEST, "PUT");
    int rc = request_run(&answer, key->bucket, err);
    bool exists = answer.body != NULL && strstr(answer.body, "<Code>BucketAlready") != NULL;
    free(answer.body);
    return exists ? 0 : rc;
}

static int remote_put(struct cli_store *base, const struct cli_put *put, struct err *err)
{
    struct remote *remote = (struct remote *)base;
    char url[URL_MAX];
    char type[1100];
    struct answer answer = {.sink = NULL};
    struct curl_slist *headers = NULL;
    int rc = put->create_bucket ? bucket_create(remote, put->key, err) : 0;
    if (rc != 0) {
        return rc;
    }
    url_of_key(remote, put->key, url);
    request_begin(remote, url, &answer);
    curl_easy_setopt(remote->curl, CURLOPT_UPLOAD, 1L);
    curl_easy_setopt(remote->curl, CURLOPT_READFUNCTION, source_take);
    curl_easy_setopt(remote->curl, CURLOPT_READDATA, put);
    if (put->size != UINT64_MAX) {
        curl_easy_setopt(remote->curl, CURLOPT_INFILESIZE_LARGE, (curl_off_t)put->size);
    }
    snprintf(type, sizeof(type), "Content-Type:%s%.1024s", put->content_type == NULL ? "" : " ",
             put->content_type == NULL ? "" : put->content_type);
    headers = curl_slist_append(NULL, type);
    curl_easy_setopt(remote->curl, CURLOPT_HTTPHEADER, headers);
    rc = request_run(&answer, subject(remote, put->key), err);
    curl_slist_free_all(headers);
    free(answer.body);
    return rc;
}

/* ---- open and close ----------------------------------------------------------------------------------------------------- */

static void remote_close(struct cli_store *base)
{
    curl_easy_cleanup(((struct remote *)base)->curl);
    curl_global_cleanup();
    free(base);
}

static const struct cli_store_ops remote_ops = {
    .close = remote_close,
    .buckets = remote_buckets,
    .list = remote_list,
    .stat = remote_stat,
    .get = remote_get,
    .put = remote_put,
    .remove = remote_remove,
};

/* A wildcard address is reached over loopback. */
static void origin_write(const struct conf_listener *listener, char *to, size_t size)
{
    const char *port = strrchr(listener->address.text, ':');
    const char *text = listener->address.text;
    CHECK(port != NULL); /* the configuration takes no address without a port */
    bool is_wildcard =
        strncmp(text, "*:", 2) == 0 || strncmp(text, "0.0.0.0:", 8) == 0 || strncmp(text, "[::]:", 5) == 0;
    const char *scheme = listener->tls.certificate[0] == '\0' ? "http" : "https";
    if (is_wildcard) {
        snprintf(to, size, "%s://127.0.0.1%s", scheme, port);
    } else {
        snprintf(to, size, "%s://%s", scheme, text);
    }
}

static int listener_find(const struct conf *conf, pid_t holder, const struct conf_listener **out,
                         struct err *err)
{
    const struct conf_listener *other = NULL;
    char origin[128];
    for (uint32_t i = 0; i < conf->listener_count; i++) {
        const struct conf_listener *listener = &conf->listeners[i];
        if (listener->protocol != CONF_PROTOCOL_S3) {
            continue;
        }
        if (listener->access == CONF_ACCESS_ANONYMOUS && listener->tls.certificate[0] == '\0') {
            *out = listener;
            return 0;
        }
        other = listener;
    }
    if (other == NULL) {
        return err_set(err, -EBUSY, "process %d holds the store and has no s3 listener; stop it first",
                       (int)holder);
    }
    origin_write(other, origin, sizeof(origin));
    return err_set(err, -EBUSY,
                   "process %d holds the store and takes only signed or encrypted requests; use an S3 "
                   "client: curl --aws-sigv4 aws:amz:%s:s3 "
                   "--user KEY:SECRET %s/BUCKET/KEY",
                   (int)holder, other->region, origin);
}

int cli_remote_open(const struct conf *conf, pid_t holder, struct cli_store **out, struct err *err)
{
    const struct conf_listener *listener = NULL;
    int rc = listener_find(conf, holder, &listener, err);
    if (rc != 0) {
        return rc;
    }
    struct remote *remote = calloc(1, sizeof(*remote));
    if (remote == NULL || curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
        free(remote);
        return err_set(err, -ENOMEM, "out of memory");
    }
    remote->curl = curl_easy_init();
    if (remote->curl == NULL) {
        curl_global_cleanup();
        free(remote);
        return err_set(err, -ENOMEM, "out of memory");
    }
    CHECK(listener != NULL); /* found, or we had returned */
    remote->base.ops = &remote_ops;
    origin_write(listener, remote->origin, sizeof(remote->origin));
    *out = &remote->base;
    return 0;
}
