/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Certificate and key files of TLS listeners: each way in which they can be bad is named in one sentence, a good pair is
 * taken, and a reload with bad files leaves the good ones in use. Method: pairs are written to a scratch folder.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/tls.h"
#include "tests/lib/tls_pair.h"

#define DAY 86400L

static struct conf_listener conf;

static void scene_open(void)
{
    mkdir("build/scratch", 0700);
    memset(&conf, 0, sizeof(conf));
    snprintf(conf.name, sizeof(conf.name), "secure");
    snprintf(conf.tls.certificate, sizeof(conf.tls.certificate), "build/scratch/tls-%d.crt", (int)getpid());
    snprintf(conf.tls.key, sizeof(conf.tls.key), "build/scratch/tls-%d.key", (int)getpid());
}

static void scene_close(void)
{
    unlink(conf.tls.certificate);
    unlink(conf.tls.key);
}

static struct tls_pair good_pair(const char *name)
{
    return (struct tls_pair){.certificate = conf.tls.certificate,
                             .key = conf.tls.key,
                             .name = name,
                             .from_s = -DAY,
                             .to_s = 30 * DAY + 60,
                             .key_mode = 0600};
}

static void expect_refused(const char *file, const char *part)
{
    struct err err = {""};
    cr_expect(tls_files_check(&conf, NULL, &err) < 0);
    cr_expect(strstr(err.text, file) != NULL, "%s", err.text);
    cr_expect(strstr(err.text, part) != NULL, "%s", err.text);
}

TestSuite(tls, .init = scene_open, .fini = scene_close);

Test(tls, a_good_pair_is_taken_and_described)
{
    struct tls_pair pair = good_pair("node.example");
    struct tls_certificate about;
    struct err err = {""};
    tls_pair_write(&pair);
    cr_assert(tls_files_check(&conf, &about, &err) == 0, "%s", err.text);
    cr_expect(strcmp(about.subject, "/CN=node.example") == 0, "%s", about.subject);
    cr_expect(about.days_left == 30);
}

Test(tls, a_missing_file_is_named)
{
    struct tls_pair pair = good_pair("a");
    tls_pair_write(&pair);
    unlink(conf.tls.key);
    expect_refused(conf.tls.key, "o such file");
    unlink(conf.tls.certificate);
    expect_refused(conf.tls.certificate, "o such file");
}

Test(tls, a_key_that_others_may_read_is_refused)
{
    struct tls_pair pair = good_pair("a");
    pair.key_mode = 0640;
    tls_pair_write(&pair);
    expect_refused(conf.tls.key, "chmod 600");
}

Test(tls, an_expired_certificate_is_refused_and_one_of_the_future_too)
{
    struct tls_pair pair = good_pair("a");
    pair.from_s = -30 * DAY;
    pair.to_s = -DAY;
    tls_pair_write(&pair);
    expect_refused(conf.tls.certificate, "expired at 20");
    pair.from_s = DAY;
    pair.to_s = 2 * DAY;
    tls_pair_write(&pair);
    expect_refused(conf.tls.certificate, "not valid before 20");
}

Test(tls, the_key_of_another_certificate_is_refused)
{
    struct tls_pair pair = good_pair("a");
    tls_pair_write(&pair);
    pair.certificate = NULL;
    tls_pair_write(&pair);
    expect_refused(conf.tls.key, "is not the key of");
}

Test(tls, an_encrypted_key_is_refused_and_nobody_is_asked)
{
    struct tls_pair pair = good_pair("a");
    pair.password = "secret";
    tls_pair_write(&pair);
    expect_refused(conf.tls.key, "is encrypted");
}

Test(tls, files_that_are_no_pem_are_refused)
{
    struct tls_pair pair = good_pair("a");
    tls_pair_write(&pair);
    FILE *file = fopen(conf.tls.certificate, "w");
    cr_assert(file != NULL);
    fputs("hello\n", file);
    fclose(file);
    expect_refused(conf.tls.certificate, "no usable certificate");
    pair.key = NULL;
    tls_pair_write(&pair);
    file = fopen(conf.tls.key, "w");
    cr_assert(file != NULL);
    fputs("hello\n", file);
    fclose(file);
    expect_refused(conf.tls.key, "no usable private key");
}

static void subject_in_use(struct tls_context *context, char *to, size_t size)
{
    SSL *ssl = tls_context_ssl(context);
    cr_assert(ssl != NULL);
    X509_NAME_oneline(X509_get_subject_name(SSL_get_certificate(ssl)), to, (int)size);
    SSL_free(ssl);
}

Test(tls, a_reload_takes_new_files_and_bad_ones_leave_the_old_in_use)
{
    struct tls_pair pair = good_pair("first");
    struct tls_context *context = NULL;
    struct err err = {""};
    char subject[256];
    tls_pair_write(&pair);
    cr_assert(tls_context_open(&conf, &context, NULL, &err) == 0, "%s", err.text);
    SSL *old = tls_context_ssl(context);
    pair.name = "second";
    tls_pair_write(&pair);
    cr_assert(tls_context_reload(context, NULL, &err) == 0, "%s", err.text);
    subject_in_use(context, subject, sizeof(subject));
    cr_expect(strcmp(subject, "/CN=second") == 0);
    pair.name = "third";
    pair.to_s = -60;
    tls_pair_write(&pair);
    cr_expect(tls_context_reload(context, NULL, &err) < 0);
    subject_in_use(context, subject, sizeof(subject));
    cr_expect(strcmp(subject, "/CN=second") == 0);
    X509_NAME_oneline(X509_get_subject_name(SSL_get_certificate(old)), subject, sizeof(subject));
    cr_expect(strcmp(subject, "/CN=first") == 0, "a connection keeps what it began with");
    SSL_free(old);
    tls_context_close(context);
}
