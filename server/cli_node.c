/* SPDX-License-Identifier: Apache-2.0 */
/* cli_node: the commands about the node itself: serve, check, format, version, reference. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "server/cli.h"
#include "server/cpus.h"
#include "server/lock.h"
#include "server/metrics.h"
#include "server/preflight.h"
#include "server/serve.h"
#include "server/store_conf.h"
#include "storage/store.h"

int cli_serve(const struct cli *cli)
{
    struct conf *conf = cli_load(cli);
    if (conf == NULL) {
        return CLI_CONFIG;
    }
    struct lock lock;
    struct err err = {""};
    pid_t holder = 0;
    int rc = lock_take(&lock, conf->node.data_dir, &holder, &err);
    if (rc != 0) {
        conf_free(conf);
        return cli_fail(rc == -EBUSY ? CLI_IN_USE : CLI_FAILED, "%s", err.text);
    }
    cpus_resolve(conf);
    rc = serve_run(conf); /* logs its own reasons */
    lock_release(&lock);
    conf_free(conf);
    return rc == 0 ? CLI_OK : CLI_FAILED;
}

int cli_check(const struct cli *cli)
{
    struct conf *conf = cli_load(cli);
    if (conf == NULL) {
        return CLI_CONFIG;
    }
    int exit_code = CLI_OK;
    if (cli->print) {
        conf_print(conf, stdout);
    }
    if (cli->syntax) {
        if (!cli->print) {
            printf("%s: ok\n", cli->config);
        }
    } else if (!cli->print) {
        exit_code = preflight_run(conf, stdout) ? CLI_OK : CLI_UNSUITABLE;
    }
    conf_free(conf);
    return exit_code;
}

static int format_store(const struct conf *conf, bool force, struct err *err)
{
    int rc = store_conf_missing(conf, true, err);
    if (rc != 0) {
        return rc;
    }
    struct store_options *options = calloc(1, sizeof(*options));
    if (options == NULL) {
        return err_set(err, -ENOMEM, "out of memory");
    }
    store_conf_options(conf, options);
    rc = store_format(options, force, err);
    free(options);
    return rc;
}

int cli_format(const struct cli *cli)
{
    struct conf *conf = cli_load(cli);
    if (conf == NULL) {
        return CLI_CONFIG;
    }
    struct lock lock = {.fd = -1};
    struct err err = {""};
    pid_t holder = 0;
    /* The first format makes data_dir; without it nobody can hold the store. */
    int rc = lock_take(&lock, conf->node.data_dir, &holder, &err);
    if (rc == 0 || rc == -ENOENT) {
        rc = format_store(conf, cli->force, &err);
    }
    if (lock.fd >= 0) {
        lock_release(&lock);
    }
    if (rc == 0) {
        printf("formatted %u device%s, index in %s\n", conf->store.device_count,
               conf->store.device_count == 1 ? "" : "s", conf->node.data_dir);
    } else {
        cli_fail(CLI_FAILED, "%s", err.text);
    }
    conf_free(conf);
    return rc == 0 ? CLI_OK : rc == -EBUSY ? CLI_IN_USE : CLI_FAILED;
}

int cli_version(const struct cli *cli)
{
    (void)cli; /* takes nothing */
    puts("penstock " PENSTOCK_VERSION);
    return CLI_OK;
}

int cli_reference(const struct cli *cli)
{
    if (strcmp(cli->operands[0], "conf") == 0) {
        conf_reference_print(stdout);
    } else if (strcmp(cli->operands[0], "metrics") == 0) {
        metrics_reference_print(stdout);
    } else if (strcmp(cli->operands[0], "words") == 0) {
        cli_words_print(stdout);
    } else {
        return cli_fail(CLI_USAGE, "reference: %s: there are conf, metrics and words", cli->operands[0]);
    }
    return CLI_OK;
}
