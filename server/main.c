/* SPDX-License-Identifier: Apache-2.0 */
/* main: the program's entry. Everything is in cli.c, which tests can link. */
#include "server/cli.h"

int main(int argc, char **argv)
{
    return cli_main(argc, argv);
}
