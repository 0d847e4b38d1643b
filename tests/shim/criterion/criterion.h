/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stand-in for Criterion, for the thread-sanitizer build only: Criterion's process arena falls into the memory that the thread
 * sanitizer keeps for itself, and its programs abort before the first test. This header gives the part of the interface that
 * our tests use, runs each test in a forked child, and prints the TAP lines that tests/lib/lane reads.
 * It must not grow features of its own: a macro missing here is added when a test uses it.
 */
#pragma once

#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct shim_options {
    void (*init)(void);
    void (*fini)(void);
    double timeout;
    int signal;
    int exit_code;
    bool disabled;
    const char *description;
};

struct shim_test {
    const char *suite;
    const char *name;
    void (*run)(void);
    struct shim_options options;
    /* Options of the suite, set by TestSuite in the same program. */
    struct shim_options *suite_options;
};

enum { SHIM_SKIPPED = 77, SHIM_FAILED = 1, SHIM_TIMEOUT_SECONDS = 300 };

extern struct shim_test *__start_shim_tests[] __attribute__((weak));
extern struct shim_test *__stop_shim_tests[] __attribute__((weak));
extern int shim_failures;
extern int shim_skip_fd;
int shim_failures __attribute__((weak));
int shim_skip_fd __attribute__((weak));

#define Test(suite_, name_, ...)                                                                             \
    static void suite_##_##name_##_shim_run(void);                                                           \
    extern struct shim_options suite_##_shim_suite __attribute__((weak));                                    \
    static struct shim_test suite_##_##name_##_shim_test;                                                    \
    static __attribute__((constructor)) void suite_##_##name_##_shim_fill(void)                              \
    {                                                                                                        \
        suite_##_##name_##_shim_test = (struct shim_test){#suite_,                                           \
                                                          #name_,                                            \
                                                          suite_##_##name_##_shim_run,                       \
                                                          {.exit_code = 0, ##__VA_ARGS__},                   \
                                                          &suite_##_shim_suite};                             \
    }                                                                                                        \
    static struct shim_test *suite_##_##name_##_shim_entry __attribute__((used, section("shim_tests"))) =    \
        &suite_##_##name_##_shim_test;                                                                       \
    static void suite_##_##name_##_shim_run(void)

#define TestSuite(suite_, ...) struct shim_options suite_##_shim_suite = {.exit_code = 0, ##__VA_ARGS__}

static inline __attribute__((format(printf, 5, 6))) void
shim_fail(const char *file, int line, const char *what, bool fatal, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    printf("# %s:%d: %s: ", file, line, what);
    vprintf(format, args);
    printf("\n");
    va_end(args);
    shim_failures++;
    if (fatal)
        exit(SHIM_FAILED);
}

static inline __attribute__((format(printf, 1, 2), noreturn)) void shim_skip(const char *format, ...)
{
    char reason[256];
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof(reason), format, args);
    va_end(args);
    if (write(shim_skip_fd, reason, strlen(reason)) < 0)
        exit(SHIM_FAILED);
    exit(SHIM_SKIPPED);
}

#define SHIM_CHECK(fatal, cond, text, ...)                                                                   \
    do {                                                                                                     \
        if (!(cond))                                                                                         \
            shim_fail(__FILE__, __LINE__, text, fatal, " " __VA_ARGS__);                                     \
    } while (0)
#define SHIM_STR(a, b) (strcmp((a), (b)) == 0)
#define SHIM_ARR(a, b, n) (memcmp((a), (b), (n)) == 0)
#define SHIM_NEAR(a, b, e) ((a) - (b) <= (e) && (b) - (a) <= (e))

#define cr_assert(c, ...) SHIM_CHECK(true, c, #c, __VA_ARGS__)
#define cr_assert_not(c, ...) SHIM_CHECK(true, !(c), "not " #c, __VA_ARGS__)
#define cr_assert_eq(a, b, ...) SHIM_CHECK(true, (a) == (b), #a " == " #b, __VA_ARGS__)
#define cr_assert_neq(a, b, ...) SHIM_CHECK(true, (a) != (b), #a " != " #b, __VA_ARGS__)
#define cr_assert_lt(a, b, ...) SHIM_CHECK(true, (a) < (b), #a " < " #b, __VA_ARGS__)
#define cr_assert_leq(a, b, ...) SHIM_CHECK(true, (a) <= (b), #a " <= " #b, __VA_ARGS__)
#define cr_assert_gt(a, b, ...) SHIM_CHECK(true, (a) > (b), #a " > " #b, __VA_ARGS__)
#define cr_assert_geq(a, b, ...) SHIM_CHECK(true, (a) >= (b), #a " >= " #b, __VA_ARGS__)
#define cr_assert_null(a, ...) SHIM_CHECK(true, (a) == NULL, #a " is NULL", __VA_ARGS__)
#define cr_assert_not_null(a, ...) SHIM_CHECK(true, (a) != NULL, #a " is not NULL", __VA_ARGS__)
#define cr_assert_str_eq(a, b, ...) SHIM_CHECK(true, SHIM_STR(a, b), #a " is " #b, __VA_ARGS__)
#define cr_assert_str_neq(a, b, ...) SHIM_CHECK(true, !SHIM_STR(a, b), #a " is not " #b, __VA_ARGS__)
#define cr_assert_str_empty(a, ...) SHIM_CHECK(true, *(a) == 0, #a " is empty", __VA_ARGS__)
#define cr_assert_arr_eq(a, b, n, ...) SHIM_CHECK(true, SHIM_ARR(a, b, n), #a " is " #b, __VA_ARGS__)
#define cr_assert_arr_neq(a, b, n, ...) SHIM_CHECK(true, !SHIM_ARR(a, b, n), #a " is not " #b, __VA_ARGS__)
#define cr_assert_float_eq(a, b, e, ...) SHIM_CHECK(true, SHIM_NEAR(a, b, e), #a " near " #b, __VA_ARGS__)
#define cr_assert_fail(...) SHIM_CHECK(true, false, "failed", __VA_ARGS__)
#define cr_fatal(...) SHIM_CHECK(true, false, "failed", __VA_ARGS__)
#define cr_expect(c, ...) SHIM_CHECK(false, c, #c, __VA_ARGS__)
#define cr_expect_not(c, ...) SHIM_CHECK(false, !(c), "not " #c, __VA_ARGS__)
#define cr_expect_eq(a, b, ...) SHIM_CHECK(false, (a) == (b), #a " == " #b, __VA_ARGS__)
#define cr_expect_neq(a, b, ...) SHIM_CHECK(false, (a) != (b), #a " != " #b, __VA_ARGS__)
#define cr_expect_lt(a, b, ...) SHIM_CHECK(false, (a) < (b), #a " < " #b, __VA_ARGS__)
#define cr_expect_leq(a, b, ...) SHIM_CHECK(false, (a) <= (b), #a " <= " #b, __VA_ARGS__)
#define cr_expect_gt(a, b, ...) SHIM_CHECK(false, (a) > (b), #a " > " #b, __VA_ARGS__)
#define cr_expect_geq(a, b, ...) SHIM_CHECK(false, (a) >= (b), #a " >= " #b, __VA_ARGS__)
#define cr_expect_null(a, ...) SHIM_CHECK(false, (a) == NULL, #a " is NULL", __VA_ARGS__)
#define cr_expect_not_null(a, ...) SHIM_CHECK(false, (a) != NULL, #a " is not NULL", __VA_ARGS__)
#define cr_expect_str_eq(a, b, ...) SHIM_CHECK(false, SHIM_STR(a, b), #a " is " #b, __VA_ARGS__)
#define cr_expect_str_neq(a, b, ...) SHIM_CHECK(false, !SHIM_STR(a, b), #a " is not " #b, __VA_ARGS__)
#define cr_expect_arr_eq(a, b, n, ...) SHIM_CHECK(false, SHIM_ARR(a, b, n), #a " is " #b, __VA_ARGS__)
#define cr_expect_fail(...) SHIM_CHECK(false, false, "failed", __VA_ARGS__)
#define cr_skip_test(...) shim_skip(" " __VA_ARGS__)
#define cr_log_info(...) ((void)(printf("# " __VA_ARGS__), printf("\n")))
#define cr_log_warn(...) cr_log_info(__VA_ARGS__)
#define cr_log_error(...) cr_log_info(__VA_ARGS__)

/* The child: options of the suite first, then those of the test, as Criterion does. */
static inline void shim_child(struct shim_test *test)
{
    struct shim_options *suite = test->suite_options;
    double timeout = test->options.timeout > 0 ? test->options.timeout : SHIM_TIMEOUT_SECONDS;
    /* The thread sanitizer slows everything down, so the limit that was set for the plain build is widened. */
    alarm((unsigned)(timeout * 10));
    if (suite && suite->init)
        suite->init();
    if (test->options.init)
        test->options.init();
    test->run();
    if (test->options.fini)
        test->options.fini();
    if (suite && suite->fini)
        suite->fini();
    exit(shim_failures ? SHIM_FAILED : 0);
}

static inline bool shim_status_expected(const struct shim_test *test, int status)
{
    int signal_wanted = test->options.signal;
    if (!signal_wanted && test->suite_options)
        signal_wanted = test->suite_options->signal;
    if (signal_wanted)
        return WIFSIGNALED(status) && WTERMSIG(status) == signal_wanted;
    return WIFEXITED(status) && WEXITSTATUS(status) == test->options.exit_code;
}

static inline bool shim_run_one(struct shim_test *test)
{
    int reason_pipe[2];
    int status = 0;
    char reason[256] = "";
    if (test->options.disabled) {
        printf("ok - %s::%s  # SKIP disabled\n", test->suite, test->name);
        return true;
    }
    fflush(stdout);
    if (pipe(reason_pipe) != 0)
        return false;
    shim_skip_fd = reason_pipe[1];
    pid_t child = fork();
    if (child == 0)
        shim_child(test);
    close(reason_pipe[1]);
    bool waited = child > 0 && waitpid(child, &status, 0) == child;
    ssize_t got = read(reason_pipe[0], reason, sizeof(reason) - 1);
    close(reason_pipe[0]);
    if (waited && got > 0 && WIFEXITED(status) && WEXITSTATUS(status) == SHIM_SKIPPED) {
        printf("ok - %s::%s  # SKIP%s\n", test->suite, test->name, reason);
        return true;
    }
    bool passed = waited && shim_status_expected(test, status);
    printf("%s - %s::%s (status %#x)\n", passed ? "ok" : "not ok", test->suite, test->name, (unsigned)status);
    return passed;
}

__attribute__((weak)) int main(int argc, char **argv)
{
    bool passed = true;
    (void)argc; /* options are those of Criterion; the lane runner passes the same to both */
    (void)argv;
    printf("TAP version 13\n1..%td\n", __stop_shim_tests - __start_shim_tests);
    for (struct shim_test **test = __start_shim_tests; test < __stop_shim_tests; test++)
        passed = shim_run_one(*test) && passed;
    return passed ? 0 : 1;
}
