/* SPDX-License-Identifier: Apache-2.0 */
/*
 * s3_copy_read: UploadPartCopy whose source must be read: a piece of a compressed object, or a part that needs a digest which
 * nobody has yet (an MD5 as ETag, the checksum that the upload was created with). Frames from s3_source.c go into an upload
 * like any other, which hashes, compresses and stores them. Two frames are under way at most: the next is read when the
 * store has let go of one, so a copy takes no more memory than a download. While it takes long the client gets white space.
 */
#include "base/check.h"
#include "server/s3_handlers.h"
#include "server/s3_source.h"

static void copy_read_fail(struct exchange *x, int error)
{
    enum s3_error answer = error == ERR_DEVICE_FAILED ? S3_ERR_SERVICE_UNAVAILABLE : S3_ERR_INTERNAL;
    upload_fail(x, answer, METRICS_ABORT_STORAGE);
}

static void copy_read_give(struct exchange *x, struct filter_frame *frame)
{
    uint32_t len;
    uint8_t *bytes = s3_source_wanted(x, frame, &len);
    struct slice slice = filter_lend(frame, bytes, len);
    x->download.queued += len;
    upload_append(x, &slice);
    if (x->download.queued == x->download.range.len) {
        list_remove(&x->upload.copying);
        upload_finish(x);
    }
}

/* The upload failed or is durable. */
static void copy_read_done(struct exchange *x)
{
    list_remove(&x->upload.copying);
    if (x->upload.state == UPLOAD_FAILED) {
        x->download.zstd.is_failed = true;
        http_respond_error(x, x->upload.error);
        return;
    }
    s3_copy_respond(x, &x->upload.attributes, store_put_modified_ns(x->upload.put));
}

static const struct exchange_ops copy_read_ops = {
    .resume = s3_source_step,
    .read = s3_source_have,
    .drop = s3_source_drop,
};
static const struct s3_source_consumer copy_read_consumer = {.give = copy_read_give, .fail = copy_read_fail};

void s3_copy_read(struct exchange *x, struct http_range range, enum s3_checksum_kind kind)
{
    struct upload *upload = &x->upload;
    x->download = (struct download){.range = range};
    upload->done = copy_read_done;
    upload->is_copy = true;
    upload->wants_md5_etag = x->listener->conf->etag == CONF_ETAG_MD5;
    upload->checks.algorithm = kind;
    x->ops = &copy_read_ops;
    enum s3_error error = upload_open(x, range.len);
    if (error != S3_OK) {
        http_respond_error(x, error);
        return;
    }
    if (range.len == 0) {
        upload_finish(x);
        return;
    }
    http_response_may_be_early(x); /* Gibibytes that are read, compressed and hashed can take a minute. */
    /* Until the last frame was given: each turn it may go on. */
    list_append(&x->worker->copying, &upload->copying);
    s3_source_begin(x, x->source, &copy_read_consumer);
}
