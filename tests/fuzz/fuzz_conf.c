/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as a configuration: they are refused with a sentence that names the file, or what they mean survives being printed
 * and read again.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "conf/conf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct conf *conf = NULL;
    struct err err = {""};
    int rc = conf_parse("input", (const char *)data, size, &conf, &err);
    if (rc != 0) {
        CHECK(conf == NULL);
        CHECK(strncmp(err.text, "input:", 6) == 0);
        return 0;
    }
    char *text = NULL;
    size_t len = 0;
    FILE *to = open_memstream(&text, &len);
    CHECK(to != NULL);
    conf_print(conf, to);
    fclose(to);
    struct conf *again = NULL;
    rc = conf_parse("input", text, len, &again, &err);
    CHECK(rc == 0);
    for (uint32_t i = 0; i < conf->store.device_count; i++) { /* The print lays its lines out anew. */
        again->store.devices[i].line = conf->store.devices[i].line;
        again->store.devices[i].column = conf->store.devices[i].column;
    }
    CHECK(memcmp(conf, again, sizeof(*conf)) == 0);
    conf_free(again);
    conf_free(conf);
    free(text);
    return 0;
}
