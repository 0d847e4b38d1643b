/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cli: the command line. One table of commands and one of options (cli.c) from which parsing, --help and the manual page's check
 * follow. Each command is one function of the form below; it prints results on stdout and problems on stderr.
 */
#ifndef SERVER_CLI_H
#define SERVER_CLI_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"
#include "conf/conf.h"

/* Exit codes; documented in --help and in the manual page. */
enum cli_exit {
    CLI_OK = 0,
    CLI_FAILED = 1,    /* the operation failed; stderr says why */
    CLI_USAGE = 2,     /* wrong command line */
    CLI_CONFIG = 3,    /* configuration missing or refused */
    CLI_NOT_FOUND = 4, /* no such bucket or object */
    CLI_IN_USE = 5,    /* a running node holds the store */
    CLI_UNSUITABLE = 6 /* check found a requirement that is not met */
};

#define CLI_OPERANDS_MAX 2U

/* The parsed command line. */
struct cli {
    const char *command;
    const char *config;
    const char *operands[CLI_OPERANDS_MAX];
    uint32_t operand_count;
    bool syntax;              /* check */
    bool print;               /* check */
    bool force;               /* format */
    bool recursive;           /* ls */
    bool stored;              /* get */
    bool create_bucket;       /* put */
    const char *content_type; /* put; NULL: none */
};

typedef int (*cli_command_fn)(const struct cli *cli);

int cli_main(int argc, char **argv);
/* Parses argv; on failure or --help it has printed and returns false with the exit code in *exit_code. */
bool cli_parse(int argc, char **argv, struct cli *out, cli_command_fn *command, int *exit_code);

/* Commands (cli_node.c, cli_object.c, cli_nic.c, probe.c). */
int cli_serve(const struct cli *cli);
int cli_check(const struct cli *cli);
int cli_probe(const struct cli *cli);
int cli_format(const struct cli *cli);
int cli_ls(const struct cli *cli);
int cli_stat(const struct cli *cli);
int cli_get(const struct cli *cli);
int cli_put(const struct cli *cli);
int cli_rm(const struct cli *cli);
int cli_scrub(const struct cli *cli);
int cli_nic(const struct cli *cli);
int cli_version(const struct cli *cli);
int cli_reference(const struct cli *cli);

/* Prints "penstock: text" on stderr and returns `code`. */
__attribute__((format(printf, 2, 3))) int cli_fail(int code, const char *format, ...);
/* Loads the configuration; NULL after the reason was printed. */
struct conf *cli_load(const struct cli *cli);
/* The exit code for a result of the storage layer. */
int cli_exit_of(int rc);
/* Writes the commands and options, one per line, for the manual page's check. */
void cli_words_print(FILE *to);

#endif
