/* SPDX-License-Identifier: Apache-2.0 */
/* tls_pair: see tls_pair.h. P-256, because making such a key takes no time. */
#include "tests/lib/tls_pair.h"

#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"

static void pair_certificate_write(const struct tls_pair *pair, EVP_PKEY *key)
{
    X509 *x509 = X509_new();
    CHECK(x509 != NULL);
    X509_NAME *name = X509_get_subject_name(x509);
    int rc = X509_set_version(x509, 2);
    CHECK(rc == 1);
    rc = ASN1_INTEGER_set(X509_get_serialNumber(x509), 1);
    CHECK(rc == 1);
    CHECK(X509_gmtime_adj(X509_getm_notBefore(x509), pair->from_s) != NULL);
    CHECK(X509_gmtime_adj(X509_getm_notAfter(x509), pair->to_s) != NULL);
    rc = X509_set_pubkey(x509, key);
    CHECK(rc == 1);
    rc = X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)pair->name, -1, -1, 0);
    CHECK(rc == 1);
    rc = X509_set_issuer_name(x509, name);
    CHECK(rc == 1);
    rc = X509_sign(x509, key, EVP_sha256());
    CHECK(rc > 0);
    FILE *file = fopen(pair->certificate, "w");
    CHECK(file != NULL);
    rc = PEM_write_X509(file, x509);
    CHECK(rc == 1);
    rc = fclose(file);
    CHECK(rc == 0);
    X509_free(x509);
}

static void pair_key_write(const struct tls_pair *pair, EVP_PKEY *key)
{
    const EVP_CIPHER *cipher = pair->password == NULL ? NULL : EVP_aes_128_cbc();
    int password_len = pair->password == NULL ? 0 : (int)strlen(pair->password);
    (void)unlink(pair->key); /* An old one may be read-only. */
    FILE *file = fopen(pair->key, "w");
    CHECK(file != NULL);
    int rc = PEM_write_PrivateKey(file, key, cipher, (const unsigned char *)pair->password, password_len,
                                  NULL, NULL);
    CHECK(rc == 1);
    rc = fclose(file);
    CHECK(rc == 0);
    rc = chmod(pair->key, pair->key_mode);
    CHECK(rc == 0);
}

void tls_pair_write(const struct tls_pair *pair)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    CHECK(key != NULL);
    if (pair->certificate != NULL) {
        pair_certificate_write(pair, key);
    }
    if (pair->key != NULL) {
        pair_key_write(pair, key);
    }
    EVP_PKEY_free(key);
}
