/* SPDX-License-Identifier: Apache-2.0 */
/* store_conf: see store_conf.h. */
#include "server/store_conf.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

_Static_assert(CONF_DEVICES_MAX <= STORE_DEVICES_MAX, "every configured device has a place");
_Static_assert(sizeof(((struct store_options *)0)->data_dir) == CONF_PATH_SIZE, "paths fit");
_Static_assert(sizeof(((struct store_device_options *)0)->path) == CONF_PATH_SIZE, "paths fit");

void store_conf_options(const struct conf *conf, struct store_options *options)
{
    const struct conf_store *store = &conf->store;
    memset(options, 0, sizeof(*options));
    memcpy(options->data_dir, conf->node.data_dir, sizeof(options->data_dir));
    for (uint32_t i = 0; i < store->device_count; i++) {
        memcpy(options->devices[i].path, store->devices[i].path, sizeof(options->devices[i].path));
        options->devices[i].size = store->devices[i].size;
    }
    options->device_count = store->device_count;
    options->ports_max = conf->node.workers;
    options->index_readers = store->index_readers;
    options->flush_deadline_ns = store->flush_deadline_ns;
    options->read_deadline_ns = store->read_deadline_ns;
    options->commit_window_ns = store->commit_window_ns;
    options->index_size_max = store->index_size_max;
    options->upload_expiry_ns = store->upload_expiry_ns;
    options->reserve_percent = store->reserve_percent;
}

uint32_t store_conf_puts_max(const struct conf *conf)
{
    uint32_t puts = 0;
    for (uint32_t i = 0; i < conf->listener_count; i++) {
        puts += conf->listeners[i].limits.uploads_max + conf->listeners[i].limits.uploads_max / 8 + 16;
    }
    return puts;
}

int store_conf_device_missing(const struct conf *conf, uint32_t index, bool is_format, struct err *err)
{
    const struct conf_device *device = &conf->store.devices[index];
    if (access(device->path, F_OK) == 0 || errno != ENOENT || (is_format && device->size != 0)) {
        return 0;
    }
    return err_set(err, -ENOENT,
                   "%s:%u:%u: store.devices[%u].path: %s: does not exist; must be a block device, an NVMe "
                   "namespace (/dev/ngXnY) or a file, which penstock format makes%s",
                   conf->path, device->line, device->column, index, device->path,
                   device->size == 0 ? " when size is given" : "");
}

int store_conf_missing(const struct conf *conf, bool is_format, struct err *err)
{
    int rc = 0;
    for (uint32_t i = 0; i < conf->store.device_count && rc == 0; i++) {
        rc = store_conf_device_missing(conf, i, is_format, err);
    }
    return rc;
}
