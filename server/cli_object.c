/* SPDX-License-Identifier: Apache-2.0 */
/* cli_object: the commands about objects: ls, stat, get, put, rm, scrub. They use either door of cli_store.h alike. */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "server/cli.h"
#include "server/cli_store.h"
#include "server/lock.h"
#include "server/s3_target.h"
#include "server/utf8.h"

/* ---- the door ---------------------------------------------------------------------------------------------------------- */

/* What one command has open. */
struct session {
    struct conf *conf;
    struct lock lock;
    struct cli_store *store;
};

/* CLI_OK, or the exit code after the reason was printed. */
static int session_open(struct session *session, const struct cli *cli)
{
    struct err err = {""};
    pid_t holder = 0;
    memset(session, 0, sizeof(*session));
    session->lock.fd = -1;
    session->conf = cli_load(cli);
    if (session->conf == NULL) {
        return CLI_CONFIG;
    }
    log_level_set(LOG_WARN); /* the store's start is no news to who lists a bucket */
    int rc = lock_take(&session->lock, session->conf->node.data_dir, &holder, &err);
    if (rc == 0) {
        rc = cli_direct_open(session->conf, &session->store, &err);
    } else if (rc == -EBUSY) {
        rc = cli_remote_open(session->conf, holder, &session->store, &err);
    }
    if (rc == 0) {
        return CLI_OK;
    }
    if (session->lock.fd >= 0) {
        lock_release(&session->lock);
    }
    conf_free(session->conf);
    return cli_fail(rc == -EBUSY ? CLI_IN_USE : CLI_FAILED, "%s", err.text);
}

/* Closes and turns the result into the exit code, with the reason printed. */
static int session_close(struct session *session, int rc, const struct err *err)
{
    session->store->ops->close(session->store);
    if (session->lock.fd >= 0) {
        lock_release(&session->lock);
    }
    conf_free(session->conf);
    if (rc != 0) {
        cli_fail(CLI_FAILED, "%s", err->text[0] == '\0' ? err_text(rc) : err->text);
    }
    return cli_exit_of(rc);
}

/* "BUCKET/KEY"; the key may be empty only where a prefix is meant. */
static bool key_read(const char *text, bool is_prefix, struct cli_key *out)
{
    const char *slash = strchr(text, '/');
    size_t bucket_len = slash == NULL ? strlen(text) : (size_t)(slash - text);
    size_t key_len = slash == NULL ? 0 : strlen(slash + 1);
    if (bucket_len == 0 || bucket_len >= sizeof(out->bucket) || key_len >= sizeof(out->key) ||
        (key_len == 0 && !is_prefix)) {
        cli_fail(CLI_USAGE, "%s: must be %s", text,
                 is_prefix ? "BUCKET or BUCKET/PREFIX" : "BUCKET/KEY, the key of 1 to 1024 bytes");
        return false;
    }
    memset(out, 0, sizeof(*out));
    memcpy(out->bucket, text, bucket_len);
    memcpy(out->key, slash == NULL ? "" : slash + 1, key_len);
    out->key_len = key_len;
    return true;
}

/* ---- printing ---------------------------------------------------------------------------------------------------------- */

/* Control bytes in keys would let an object rewrite a terminal; they are shown as \xNN, and the backslash doubled. */
static void name_print(const char *name, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        unsigned char byte = (unsigned char)name[i];
        if (byte < 0x20 || byte == 0x7f) {
            printf("\\x%02x", byte);
        } else if (byte == '\\') {
            fputs("\\\\", stdout);
        } else {
            putchar(byte);
        }
    }
}

static void time_print(uint64_t modified_ns)
{
    time_t seconds = (time_t)(modified_ns / NS_PER_S);
    struct tm tm;
    char text[32];
    gmtime_r(&seconds, &tm);
    strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &tm);
    fputs(text, stdout);
}

static int entry_print(void *ctx, const struct cli_entry *entry)
{
    (void)ctx; /* nothing is gathered */
    if (entry->is_prefix) {
        printf("%20s %15s ", "", "PREFIX");
    } else {
        time_print(entry->modified_ns);
        printf(" %15" PRIu64 " ", entry->size);
    }
    name_print(entry->name, entry->len);
    putchar('\n');
    return 0;
}

static int bucket_print(void *ctx, const struct cli_entry *entry)
{
    (void)ctx; /* nothing is gathered */
    time_print(entry->modified_ns);
    putchar(' ');
    name_print(entry->name, entry->len);
    putchar('\n');
    return 0;
}

/* What a running node's answer says about itself and not about the object: with and without a node `stat` prints the same. */
static bool is_about_the_answer(const char *name)
{
    static const char *const names[] = {"server",           "date",      "connection", "accept-ranges",
                                        "x-amz-request-id", "x-amz-id-2"};
    bool is_listed = false;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        is_listed |= strcasecmp(name, names[i]) == 0;
    }
    return is_listed;
}

static void header_print(void *ctx, const char *name, const char *value, size_t value_len)
{
    (void)ctx; /* nothing is gathered */
    if (is_about_the_answer(name)) {
        return;
    }
    for (; *name != '\0'; name++) {
        putchar(tolower((unsigned char)*name));
    }
    fputs(": ", stdout);
    name_print(value, value_len);
    putchar('\n');
}

/* ---- ls, stat, rm ------------------------------------------------------------------------------------------------------ */

/* For commands on everything or, with an operand, on what begins with it. CLI_OK, or the exit code after the mistake was printed. */
static int session_open_prefix(struct session *session, const struct cli *cli, struct cli_key *prefix)
{
    if (cli->operand_count == 1 && !key_read(cli->operands[0], true, prefix)) {
        return CLI_USAGE;
    }
    return session_open(session, cli);
}

int cli_ls(const struct cli *cli)
{
    struct cli_key prefix;
    struct session session;
    struct err err = {""};
    int exit_code = session_open_prefix(&session, cli, &prefix);
    if (exit_code != CLI_OK) {
        return exit_code;
    }
    const struct cli_store_ops *ops = session.store->ops;
    int rc = cli->operand_count == 0
                 ? ops->buckets(session.store, bucket_print, NULL, &err)
                 : ops->list(session.store, &prefix, cli->recursive, entry_print, NULL, &err);
    return session_close(&session, rc, &err);
}

/* Runs one call on the object that an operand names. */
static int on_object(const struct cli *cli, const char *operand,
                     int (*call)(const struct cli *cli, struct cli_store *store, const struct cli_key *key,
                                 struct err *err))
{
    struct cli_key key;
    struct session session;
    struct err err = {""};
    if (!key_read(operand, false, &key)) {
        return CLI_USAGE;
    }
    int exit_code = session_open(&session, cli);
    if (exit_code != CLI_OK) {
        return exit_code;
    }
    return session_close(&session, call(cli, session.store, &key, &err), &err);
}

static int stat_object(const struct cli *cli, struct cli_store *store, const struct cli_key *key,
                       struct err *err)
{
    (void)cli; /* no options */
    return store->ops->stat(store, key, header_print, NULL, err);
}

int cli_stat(const struct cli *cli)
{
    return on_object(cli, cli->operands[0], stat_object);
}

static int rm_object(const struct cli *cli, struct cli_store *store, const struct cli_key *key,
                     struct err *err)
{
    (void)cli; /* no options */
    return store->ops->remove(store, key, err);
}

int cli_rm(const struct cli *cli)
{
    return on_object(cli, cli->operands[0], rm_object);
}

/* ---- get ---------------------------------------------------------------------------------------------------------------- */

static int sink_write(void *ctx, const void *data, size_t len)
{
    int fd = *(const int *)ctx;
    const uint8_t *at = data;
    while (len > 0) {
        ssize_t put = write(fd, at, len);
        if (put < 0 && errno != EINTR) {
            return -errno;
        }
        if (put > 0) {
            at += put;
            len -= (size_t)put;
        }
    }
    return 0;
}

/* A failed download leaves no file: it is written beside the target and renamed when complete. */
static int get_to_file(struct cli_store *store, const struct cli_key *key, const char *path, struct err *err)
{
    char temporary[4200];
    if ((size_t)snprintf(temporary, sizeof(temporary), "%s.XXXXXX", path) >= sizeof(temporary)) {
        return err_set(err, -ENAMETOOLONG, "%s: the name is too long", path);
    }
    int fd = mkstemp(temporary);
    if (fd < 0) {
        return err_set(err, -errno, "%s: %s", temporary, err_text(-errno));
    }
    mode_t mask = umask(0);
    umask(mask);
    int rc = store->ops->get(store, key, sink_write, &fd, err);
    if (rc == 0 && fchmod(fd, 0666 & ~mask) != 0) {
        rc = err_set(err, -errno, "%s: %s", temporary, err_text(-errno));
    }
    if (close(fd) != 0 && rc == 0) {
        rc = err_set(err, -errno, "%s: %s", temporary, err_text(-errno));
    }
    if (rc == 0 && rename(temporary, path) != 0) {
        rc = err_set(err, -errno, "%s: %s", path, err_text(-errno));
    }
    if (rc != 0) {
        unlink(temporary);
    }
    return rc;
}

static int get_object(const struct cli *cli, struct cli_store *store, const struct cli_key *key,
                      struct err *err)
{
    store->is_stored = cli->stored;
    int fd = STDOUT_FILENO;
    bool to_stdout = cli->operand_count == 1 || strcmp(cli->operands[1], "-") == 0;
    return to_stdout ? store->ops->get(store, key, sink_write, &fd, err)
                     : get_to_file(store, key, cli->operands[1], err);
}

int cli_get(const struct cli *cli)
{
    return on_object(cli, cli->operands[0], get_object);
}

/* ---- put ---------------------------------------------------------------------------------------------------------------- */

static ssize_t source_read(void *ctx, void *data, size_t size)
{
    for (;;) { /* ends with the first read that no signal interrupts */
        ssize_t got = read(*(const int *)ctx, data, size);
        if (got >= 0 || errno != EINTR) {
            return got < 0 ? -errno : got;
        }
    }
}

/* The store takes any bytes; what no S3 client could name afterwards must not get in. */
static bool put_key_read(const char *text, struct cli_key *key)
{
    if (!key_read(text, false, key)) {
        return false;
    }
    if (!s3_bucket_name_is_valid(text_of(key->bucket, strlen(key->bucket))) ||
        !utf8_is_valid(text_of(key->key, key->key_len))) {
        cli_fail(CLI_USAGE, "%s: not a bucket name (3 to 63 of a-z, 0-9, '.', '-') and a key in UTF-8", text);
        return false;
    }
    return true;
}

static void source_close(int fd)
{
    if (fd > STDIN_FILENO) {
        close(fd); /* read only: nothing can be lost */
    }
}

/* The descriptor of what is put, with its size, UINT64_MAX when nobody knows; or -1 after the mistake was printed. */
static int source_open(const char *path, uint64_t *size)
{
    struct stat info = {0};
    bool is_stdin = strcmp(path, "-") == 0;
    int fd = is_stdin ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    int rc = fd < 0 || fstat(fd, &info) != 0 ? -errno : S_ISDIR(info.st_mode) ? -EISDIR : 0;
    if (rc != 0) {
        source_close(fd);
        cli_fail(CLI_FAILED, "%s: %s", path, err_text(rc));
        return -1;
    }
    *size = !is_stdin && S_ISREG(info.st_mode) ? (uint64_t)info.st_size : UINT64_MAX;
    return fd;
}

static int put_run(const struct cli *cli, struct cli_store *store, struct cli_put *put, struct err *err)
{
    put->content_type = cli->content_type;
    put->create_bucket = cli->create_bucket;
    int rc = store->ops->put(store, put, err);
    if (rc == ERR_NO_SUCH_BUCKET) {
        err_set(err, rc, "bucket %s does not exist; --create-bucket makes it", put->key->bucket);
    }
    return rc;
}

int cli_put(const struct cli *cli)
{
    struct cli_key key;
    struct session session;
    struct err err = {""};
    int fd = -1;
    struct cli_put put = {.key = &key, .source = source_read, .ctx = &fd};
    if (!put_key_read(cli->operands[1], &key)) {
        return CLI_USAGE;
    }
    fd = source_open(cli->operands[0], &put.size);
    if (fd < 0) {
        return CLI_FAILED;
    }
    int exit_code = session_open(&session, cli);
    if (exit_code == CLI_OK) {
        exit_code = session_close(&session, put_run(cli, session.store, &put, &err), &err);
    }
    source_close(fd);
    return exit_code;
}

/* ---- scrub -------------------------------------------------------------------------------------------------------------- */

struct scrub {
    struct cli_store *store;
    uint64_t rate; /* bytes per second; 0: as fast as it goes */
    uint64_t start_ns;
    struct cli_key at;
    struct err *err;
    uint64_t objects;
    uint64_t bytes;
    uint64_t bad;
};

static int scrub_sink(void *ctx, const void *data, size_t len)
{
    (void)data; /* verified before it came here */
    struct scrub *scrub = ctx;
    scrub->bytes += len;
    if (scrub->rate != 0) {
        uint64_t due_ns =
            scrub->start_ns + (uint64_t)((double)scrub->bytes / (double)scrub->rate * (double)NS_PER_S);
        struct timespec due = {.tv_sec = (time_t)(due_ns / NS_PER_S), .tv_nsec = (long)(due_ns % NS_PER_S)};
        int rc = EINTR;
        while (rc == EINTR) { /* a rate is kept by waiting, there is no event */
            rc = clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL); /* lint: allow */
        }
    }
    return 0;
}

/* Reads one object. A damaged one is reported and counted, and the walk goes on; one deleted meanwhile is passed over. */
static int scrub_object(void *ctx, const struct cli_entry *entry)
{
    struct scrub *scrub = ctx;
    struct err err = {""};
    memcpy(scrub->at.key, entry->name, entry->len);
    scrub->at.key[entry->len] = '\0';
    scrub->at.key_len = entry->len;
    int rc = scrub->store->ops->get(scrub->store, &scrub->at, scrub_sink, scrub, &err);
    if (rc == ERR_NO_SUCH_KEY) {
        return 0;
    }
    scrub->objects++;
    if (rc != 0) {
        scrub->bad++;
        printf("bad %s/", scrub->at.bucket);
        name_print(entry->name, entry->len);
        printf(": %s\n", err.text[0] == '\0' ? err_text(rc) : err.text);
    }
    return 0;
}

static int scrub_prefix(struct scrub *scrub, const struct cli_key *prefix)
{
    memcpy(scrub->at.bucket, prefix->bucket, sizeof(scrub->at.bucket));
    return scrub->store->ops->list(scrub->store, prefix, true, scrub_object, scrub, scrub->err);
}

static int scrub_bucket(void *ctx, const struct cli_entry *entry)
{
    struct cli_key prefix = {.key_len = 0};
    if (entry->len >= sizeof(prefix.bucket)) {
        return ERR_CORRUPT;
    }
    memcpy(prefix.bucket, entry->name, entry->len);
    return scrub_prefix(ctx, &prefix);
}

int cli_scrub(const struct cli *cli)
{
    struct cli_key prefix;
    struct session session;
    struct err err = {""};
    int exit_code = session_open_prefix(&session, cli, &prefix);
    if (exit_code != CLI_OK) {
        return exit_code;
    }
    struct scrub scrub = {.store = session.store, .err = &err};
    int rc = cli->operand_count == 1 ? scrub_prefix(&scrub, &prefix)
                                     : session.store->ops->buckets(session.store, scrub_bucket, &scrub, &err);
    exit_code = session_close(&session, rc, &err);
    if (exit_code == CLI_OK) {
        printf("scrubbed %" PRIu64 " objects, %" PRIu64 " bytes, %" PRIu64 " bad\n", scrub.objects,
               scrub.bytes, scrub.bad);
        exit_code = scrub.bad == 0 ? CLI_OK : CLI_FAILED;
    }
    return exit_code;
}
