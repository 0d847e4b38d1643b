/* SPDX-License-Identifier: Apache-2.0 */
/* probe: the command that says which receive path works here. */
#include "server/cli.h"

int cli_probe(const struct cli *cli)
{
    return cli_fail(CLI_FAILED, "%s: not built yet", cli->command);
}
