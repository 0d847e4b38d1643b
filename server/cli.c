/* SPDX-License-Identifier: Apache-2.0 */
/* cli: tables of commands and options, parsing, help. It must not know what a command does. */
#include "server/cli.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"

/* ---- options ----------------------------------------------------------------------------------------------------------- */

enum option_kind { OPTION_SWITCH, OPTION_TEXT };

struct option_row {
    const char *name;
    enum option_kind kind;
    size_t offset;
    const char *commands; /* space-separated; NULL: all */
    const char *argument; /* shown in help */
    const char *help;
};

static const struct option_row option_rows[] = {
    {"--config", OPTION_TEXT, offsetof(struct cli, config), NULL, "FILE",
     "configuration (default " CONF_PATH_DEFAULT ")"},
    {"--syntax", OPTION_SWITCH, offsetof(struct cli, syntax), "check", NULL,
     "only read the configuration, look at nothing else"},
    {"--print", OPTION_SWITCH, offsetof(struct cli, print), "check", NULL,
     "print the effective configuration, every default filled in"},
    {"--force", OPTION_SWITCH, offsetof(struct cli, force), "format", NULL,
     "overwrite devices that hold a store or a file system"},
    {"--recursive", OPTION_SWITCH, offsetof(struct cli, recursive), "ls", NULL,
     "list every key, not one level"},
    {"--stored", OPTION_SWITCH, offsetof(struct cli, stored), "get", NULL,
     "the bytes as they are stored: of a compressed object, a file for the zstd tool"},
    {"--create-bucket", OPTION_SWITCH, offsetof(struct cli, create_bucket), "put", NULL,
     "create the bucket if it does not exist"},
    {"--content-type", OPTION_TEXT, offsetof(struct cli, content_type), "put", "TYPE",
     "Content-Type to store with the object"},
};

/* ---- commands ---------------------------------------------------------------------------------------------------------- */

struct command_row {
    const char *name;
    cli_command_fn run;
    uint32_t operands_min;
    uint32_t operands_max;
    const char *operands; /* shown in help */
    const char *help;
};

static const struct command_row command_rows[] = {
    {"serve", cli_serve, 0, 0, "", "run a node until SIGTERM"},
    {"check", cli_check, 0, 0, "", "say for each requirement whether this host meets it, and what to do"},
    {"probe", cli_probe, 0, 0, "", "say for each receive path whether it works here, and why not"},
    {"format", cli_format, 0, 0, "", "create the store: devices are overwritten, the index is made anew"},
    {"ls", cli_ls, 0, 1, "[BUCKET[/PREFIX]]", "list buckets, or keys"},
    {"stat", cli_stat, 1, 1, "BUCKET/KEY", "show what is known about an object"},
    {"get", cli_get, 1, 2, "BUCKET/KEY [FILE]", "write an object to a file, or to stdout"},
    {"put", cli_put, 2, 2, "FILE BUCKET/KEY", "store a file, or stdin for \"-\"; returns when it is durable"},
    {"rm", cli_rm, 1, 1, "BUCKET/KEY", "delete an object"},
    {"scrub", cli_scrub, 0, 1, "[BUCKET[/PREFIX]]", "read and verify every object, or those with a prefix"},
    {"nic", cli_nic, 1, 1, "plan|apply|undo",
     "show, make or undo what listeners need of their network cards"},
    {"version", cli_version, 0, 0, "", "print the version"},
    {"reference", cli_reference, 1, 1, "conf|metrics|words", "print generated documentation"},
};

static const char exit_help[] = "Exit codes: 0 done, 1 failed, 2 wrong command line, 3 configuration "
                                "refused, 4 no such bucket or object,\n"
                                "5 a running node holds the store, 6 check: a requirement is not met.\n";

static bool applies(const struct option_row *option, const char *command)
{
    if (option->commands == NULL) {
        return true;
    }
    size_t len = strlen(command);
    for (const char *at = option->commands; (at = strstr(at, command)) != NULL; at += len) {
        bool starts = at == option->commands || at[-1] == ' ';
        if (starts && (at[len] == '\0' || at[len] == ' ')) {
            return true;
        }
    }
    return false;
}

static void help_print(FILE *to)
{
    fputs("Usage: penstock COMMAND [OPTION]... [OPERAND]...\n\nCommands:\n", to);
    for (size_t i = 0; i < ARRAY_COUNT(command_rows); i++) {
        char line[64];
        snprintf(line, sizeof(line), "%s %s", command_rows[i].name, command_rows[i].operands);
        fprintf(to, "  %-28s %s\n", line, command_rows[i].help);
    }
    fprintf(to, "\nEvery command takes --config FILE (default " CONF_PATH_DEFAULT ") and --help.\n%s",
            exit_help);
}

static void command_help_print(const struct command_row *command, FILE *to)
{
    fprintf(to, "Usage: penstock %s [OPTION]...%s%s\n\n%s.\n\nOptions:\n", command->name,
            command->operands[0] == '\0' ? "" : " ", command->operands, command->help);
    for (size_t i = 0; i < ARRAY_COUNT(option_rows); i++) {
        if (applies(&option_rows[i], command->name)) {
            char line[48];
            snprintf(line, sizeof(line), "%s %s", option_rows[i].name,
                     option_rows[i].argument == NULL ? "" : option_rows[i].argument);
            fprintf(to, "  %-22s %s\n", line, option_rows[i].help);
        }
    }
    fprintf(to, "  %-22s %s\n\n%s", "--help", "print this", exit_help);
}

/* ---- parsing ----------------------------------------------------------------------------------------------------------- */

static const struct command_row *command_find(const char *name)
{
    for (size_t i = 0; i < ARRAY_COUNT(command_rows); i++) {
        if (strcmp(command_rows[i].name, name) == 0) {
            return &command_rows[i];
        }
    }
    return NULL;
}

/* Takes argv[*at] (and its argument) if it is an option of the command. False after the mistake was printed. */
static bool option_take(int argc, char **argv, int *at, const struct command_row *command, struct cli *out)
{
    const char *word = argv[*at];
    const char *equals = strchr(word, '=');
    size_t len = equals == NULL ? strlen(word) : (size_t)(equals - word);
    for (size_t i = 0; i < ARRAY_COUNT(option_rows); i++) {
        const struct option_row *option = &option_rows[i];
        if (strlen(option->name) != len || strncmp(option->name, word, len) != 0 ||
            !applies(option, command->name)) {
            continue;
        }
        void *field = (uint8_t *)out + option->offset;
        if (option->kind == OPTION_SWITCH) {
            *(bool *)field = true;
            if (equals != NULL) {
                cli_fail(CLI_USAGE, "%s takes no value", option->name);
            }
            return equals == NULL;
        }
        if (equals == NULL && *at + 1 == argc) {
            cli_fail(CLI_USAGE, "%s needs a value: %s", option->name, option->argument);
            return false;
        }
        *(const char **)field = equals != NULL ? equals + 1 : argv[++*at];
        return true;
    }
    cli_fail(CLI_USAGE, "%s: unknown option %.*s; see penstock %s --help", command->name, (int)len, word,
             command->name);
    return false;
}

static bool words_take(int argc, char **argv, const struct command_row *command, struct cli *out)
{
    bool only_operands = false;
    for (int i = 2; i < argc; i++) {
        if (!only_operands && strcmp(argv[i], "--") == 0) {
            only_operands = true;
        } else if (!only_operands && argv[i][0] == '-' && argv[i][1] != '\0') {
            if (!option_take(argc, argv, &i, command, out)) {
                return false;
            }
        } else if (out->operand_count == command->operands_max) {
            cli_fail(CLI_USAGE, "%s: unexpected operand %s; see penstock %s --help", command->name, argv[i],
                     command->name);
            return false;
        } else {
            out->operands[out->operand_count++] = argv[i];
        }
    }
    if (out->operand_count < command->operands_min) {
        cli_fail(CLI_USAGE, "%s: needs %s; see penstock %s --help", command->name, command->operands,
                 command->name);
        return false;
    }
    return true;
}

static bool asks_for_help(int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            return true;
        }
    }
    return argc == 2 && strcmp(argv[1], "help") == 0;
}

bool cli_parse(int argc, char **argv, struct cli *out, cli_command_fn *command, int *exit_code)
{
    memset(out, 0, sizeof(*out));
    out->config = CONF_PATH_DEFAULT;
    /* What people type to any program. */
    bool is_version = argc == 2 && strcmp(argv[1], "--version") == 0;
    const struct command_row *row = argc < 2 ? NULL : command_find(is_version ? "version" : argv[1]);
    bool names_unknown = argc >= 2 && row == NULL && argv[1][0] != '-' && strcmp(argv[1], "help") != 0;
    if (asks_for_help(argc, argv) && !names_unknown) {
        if (row != NULL) {
            command_help_print(row, stdout);
        } else {
            help_print(stdout);
        }
        *exit_code = CLI_OK;
        return false;
    }
    *exit_code = CLI_USAGE;
    if (argc < 2) {
        help_print(stderr);
        return false;
    }
    if (row == NULL) {
        cli_fail(CLI_USAGE, "unknown command %s; see penstock --help", argv[1]);
        return false;
    }
    out->command = row->name;
    *command = row->run;
    return words_take(argc, argv, row, out);
}

int cli_main(int argc, char **argv)
{
    struct cli cli;
    cli_command_fn command = NULL;
    int exit_code = CLI_USAGE;
    if (!cli_parse(argc, argv, &cli, &command, &exit_code)) {
        return exit_code;
    }
    exit_code = command(&cli);
    /* A full disk behind stdout must not pass for success. */
    if (fflush(stdout) != 0 && exit_code == CLI_OK) {
        return cli_fail(CLI_FAILED, "stdout could not be written");
    }
    return exit_code;
}

/* ---- shared ------------------------------------------------------------------------------------------------------------ */

int cli_fail(int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("penstock: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return code;
}

struct conf *cli_load(const struct cli *cli)
{
    struct conf *conf = NULL;
    struct err err = {""};
    if (conf_load(cli->config, &conf, &err) != 0) {
        cli_fail(CLI_CONFIG, "%s", err.text);
        return NULL;
    }
    return conf;
}

int cli_exit_of(int rc)
{
    if (rc == 0) {
        return CLI_OK;
    }
    return rc == ERR_NO_SUCH_KEY || rc == ERR_NO_SUCH_BUCKET ? CLI_NOT_FOUND : CLI_FAILED;
}

void cli_words_print(FILE *to)
{
    for (size_t i = 0; i < ARRAY_COUNT(command_rows); i++) {
        fprintf(to, "%s\n", command_rows[i].name);
    }
    for (size_t i = 0; i < ARRAY_COUNT(option_rows); i++) {
        fprintf(to, "%s\n", option_rows[i].name);
    }
    fputs("--help\n--version\n", to);
}
