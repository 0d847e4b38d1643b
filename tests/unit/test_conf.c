/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Configuration: what loads, what is refused with which exact words, and that the effective print loads again to the same values.
 * Each refusal is a variation of one small valid file, so that only the mistake differs.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "conf/conf.h"
#include "conf/schema_int.h"

#define NODE "node: { data_dir: d }\n"
#define STORE "store: { devices: [ { path: p } ] }\n"
#define ONE "{ name: a, protocol: s3, address: \"127.0.0.1:9000\" }"
#define LISTENERS "listeners:\n  - " ONE "\n"

static struct conf *load(const char *text)
{
    struct conf *conf = NULL;
    struct err err = {""};
    int rc = conf_parse("t.yaml", text, strlen(text), &conf, &err);
    cr_assert(rc == 0, "%s", err.text);
    cr_assert_not_null(conf);
    return conf;
}

static void refuse(const char *text, const char *message)
{
    struct conf *conf = NULL;
    struct err err = {""};
    int rc = conf_parse("t.yaml", text, strlen(text), &conf, &err);
    cr_expect_eq(rc, ERR_INVALID_CONFIG, "accepted: %s", text);
    cr_expect_null(conf);
    cr_expect_str_eq(err.text, message);
}

/* A listener line with `extra` keys behind the required ones. They begin on line 4, column 57. */
static void refuse_listener(const char *extra, const char *message)
{
    char text[2048];
    snprintf(text, sizeof(text),
             NODE STORE "listeners:\n  - { name: a, protocol: s3, address: \"127.0.0.1:9000\", %s }\n",
             extra);
    refuse(text, message);
}

/* ---- what loads -------------------------------------------------------------------------------------------------------- */

Test(conf, the_af_xdp_example_loads_as_it_stands)
{
    struct conf *conf = NULL;
    struct err err = {""};
    int rc = conf_load("conf/examples/af_xdp.yaml", &conf, &err);
    cr_assert_eq(rc, 0, "%s", err.text);
    cr_expect_eq(conf->listeners[0].receive, CONF_RECEIVE_AF_XDP);
    conf_free(conf);
}

Test(conf, the_demo_file_loads_as_it_stands)
{
    struct conf *conf = NULL;
    struct err err = {""};
    int rc = conf_load("conf/examples/demo.yaml", &conf, &err);
    cr_assert_eq(rc, 0, "%s", err.text);
    cr_expect_str_eq(conf->node.name, "demo");
    cr_expect_str_eq(conf->node.data_dir, "./run/data");
    cr_expect_eq(conf->store.device_count, 1U);
    cr_expect_eq(conf->store.devices[0].size, 4 * GIB);
    cr_assert_eq(conf->listener_count, 2U);
    cr_expect_eq(conf->listeners[0].rx_buffer_size, 128 * KIB);
    cr_expect_eq(conf->listeners[0].rx_area_size, 64 * MIB);
    cr_expect_eq(conf->listeners[1].protocol, CONF_PROTOCOL_RAW);
    cr_expect_str_eq(conf->listeners[1].bucket, "captures");
    cr_expect_str_eq(conf->admin.address.text, "127.0.0.1:9600");
    conf_free(conf);
}

Test(conf, every_default_is_accepted_by_its_own_row)
{
    struct conf *conf = load(NODE STORE LISTENERS);
    cr_expect_eq(conf->node.drain_timeout_ns, 30 * NS_PER_S);
    cr_expect_eq(conf->listeners[0].limits.head_size_max, 16 * KIB);
    cr_expect_eq(conf->listeners[0].limits.object_size_max, 5 * TIB);
    cr_expect_eq(conf->listeners[0].receive, CONF_RECEIVE_AUTO);
    cr_expect_eq(conf->admin.address.len, 0U);
    conf_free(conf);
}

Test(conf, names_in_the_table_are_unique_and_have_a_section_and_help)
{
    for (size_t i = 0; i < schema_row_count; i++) {
        const struct schema_row *row = &schema_rows[i];
        size_t parent_len = schema_parent_len(row);
        bool has_parent = parent_len == 0;
        cr_expect(row->help != NULL && row->help[0] != '\0', "%s", row->name);
        for (size_t j = 0; j < schema_row_count; j++) {
            cr_expect(i == j || strcmp(row->name, schema_rows[j].name) != 0, "%s twice", row->name);
            has_parent |= strlen(schema_rows[j].name) == parent_len &&
                          strncmp(schema_rows[j].name, row->name, parent_len) == 0;
        }
        cr_expect(has_parent, "%s has no section", row->name);
        cr_expect((row->flags & SCHEMA_ZERO) == 0 || row->zero_means != NULL, "%s: what does 0 mean?",
                  row->name);
    }
}

/* Goal: nothing is lost in the print. Method: a file that sets every kind of value, printed, loaded, compared as bytes. */
Test(conf, the_effective_print_loads_again_to_the_same_values)
{
    struct conf *conf =
        load("node: { name: n.1, data_dir: '/var/lib/q\"uote\\d', workers: 2, log_level: warn, staging_size: "
             "1GiB, drain_timeout: 90s }\n"
             "store: { devices: [ { path: /dev/a, size: 1TiB }, { path: '/dev/b c' } ], commit_window: "
             "1500us, scrub_rate: 10MiB/s }\n"
             "listeners:\n"
             "  - { name: a, protocol: s3, address: '[2001:db8::1]:80', access: authenticated, credentials: "
             "/k, queues: 4-5, cpus: [0, 2-3],\n"
             "      virtual_host_domain: s3.example.net, region: eu-1, etag: md5, rx_buffer_size: 1MiB, "
             "hugepages: 2MiB, receive: zcrx }\n"
             "  - { name: b, protocol: raw, address: '*:81', allow_remote_anonymous: true, bucket: cap, "
             "key_template: '{seq}', cpus: '0,2,3',\n"
             "      limits: { body_rate_min: 1KiB/s, connections_per_peer_max: 10, idle_timeout: 2h } }\n"
             "  - { name: c, protocol: s3, address: '127.0.0.1:82', tls: { certificate: /c, key: /k } }\n"
             "admin: { address: '127.0.0.1:9600' }\n");
    char *text = NULL;
    size_t len = 0;
    FILE *to = open_memstream(&text, &len);
    conf_print(conf, to);
    fclose(to);
    struct conf *again = load(text);
    for (uint32_t i = 0; i < conf->store.device_count; i++) { /* The print lays its lines out anew. */
        again->store.devices[i].line = conf->store.devices[i].line;
        again->store.devices[i].column = conf->store.devices[i].column;
    }
    cr_expect(memcmp(conf, again, sizeof(*conf)) == 0, "printed:\n%s", text);
    cr_expect_eq(again->listeners[0].cpus.count, 3U);
    free(text);
    conf_free(conf);
    conf_free(again);
}

Test(conf, star_means_every_address_of_both_families)
{
    struct conf_address address;
    cr_assert_eq(value_address_read("*:9000", &address), 0);
    cr_expect_eq(address.addr.ss_family, AF_INET6);
    static const char *const bad[] = {"",
                                      ":",
                                      "9000",
                                      "127.0.0.1",
                                      "127.0.0.1:",
                                      "127.0.0.1:0",
                                      "127.0.0.1:65536",
                                      "127.0.0.1:+80",
                                      "localhost:80",
                                      "::1:80",
                                      "[::1:80",
                                      "[]:80",
                                      "1.2.3:80",
                                      "127.0.0.1:080808"};
    for (size_t i = 0; i < ARRAY_COUNT(bad); i++) {
        cr_expect_neq(value_address_read(bad[i], &address), 0, "%s", bad[i]);
    }
}

/* ---- mistakes in one key ----------------------------------------------------------------------------------------------- */

#define LISTENER_KEYS                                                                                        \
    "name, protocol, address, receive, access, allow_remote_anonymous, credentials, tls, rx_buffer_size, "   \
    "rx_area_size, interface, queues, busy_poll, cpus, hugepages, etag, compression, manage_nic, bucket, "   \
    "key_template, "                                                                                         \
    "region, virtual_host_domain, limits"
#define SECTIONS "node, store, listeners, admin"

/* Key, value and every key that is allowed there. */
Test(conf_refuses, an_unknown_key_with_the_nearest_known_one)
{
    refuse_listener("recieve: auto", "t.yaml:4:57: listeners[0].recieve: auto: unknown key; did you mean "
                                     "receive? Allowed here: " LISTENER_KEYS);
    refuse_listener("zzzzzzzzzz: 1",
                    "t.yaml:4:57: listeners[0].zzzzzzzzzz: 1: unknown key; allowed here: " LISTENER_KEYS);
    refuse("store: { devices: [ { path: p, sise: 1 } ] }\n",
           "t.yaml:1:32: store.devices[0].sise: 1: unknown key; did you mean size? Allowed here: path, size");
    refuse("nodes: {}\n", "t.yaml:1:1: nodes: unknown key; did you mean node? Allowed here: " SECTIONS);
    refuse("listener: []\n",
           "t.yaml:1:1: listener: unknown key; did you mean listeners? Allowed here: " SECTIONS);
    refuse("\"a\\nb\\x07\": 1\n", "t.yaml:1:1: a?b?: 1: unknown key; allowed here: " SECTIONS);
    refuse("zzzzzzzz: \"\n", "t.yaml:1:1: zzzzzzzz: unknown key; allowed here: " SECTIONS);
}

/* No list of keys is cut off. */
Test(conf_refuses, an_unknown_key_of_each_section_with_the_last_key_of_the_section)
{
    struct conf *conf = NULL;
    struct err err = {""};
    static const char limits[] = NODE STORE
        "listeners:\n  - { name: a, protocol: s3, address: \"127.0.0.1:9000\", limits: { qqqqqqqq: 1 } }\n";
    cr_assert_neq(conf_parse("t.yaml", limits, strlen(limits), &conf, &err), 0);
    size_t len = strlen(err.text);
    cr_expect(len > 17 && strcmp(err.text + len - 17, " tcp_user_timeout") == 0, "%s", err.text);
}

Test(conf, a_byte_order_mark_and_windows_line_ends_are_no_mistake)
{
    conf_free(load("\xef\xbb\xbf" NODE STORE LISTENERS));
    conf_free(load("node: { data_dir: d }\r\nstore: { devices: [ { path: p } ] }\r\nlisteners:\r\n  - " ONE
                   "\r\n"));
}

/* What the host says of a device later is reported at the place of its path. */
Test(conf, a_device_knows_where_it_is_written)
{
    struct conf *conf =
        load(NODE "store:\n  devices:\n    - path: /dev/a\n    - { size: 1GiB, path: b }\n" LISTENERS);
    cr_expect_eq(conf->store.devices[0].line, 4U);
    cr_expect_eq(conf->store.devices[0].column, 13U);
    cr_expect_eq(conf->store.devices[1].line, 5U);
    cr_expect_eq(conf->store.devices[1].column, 27U);
    conf_free(conf);
}

Test(conf_refuses, a_bad_unit)
{
    refuse_listener("rx_buffer_size: 128KB", "t.yaml:4:73: listeners[0].rx_buffer_size: 128KB: must be a "
                                             "whole number of bytes with a unit B, KiB, MiB, GiB or TiB "
                                             "(128KiB), binary units only, a power of two from 4KiB to 1MiB, "
                                             "or 0 for the receive path's own default");
    refuse("node: { data_dir: d, drain_timeout: 30 }\n",
           "t.yaml:1:37: node.drain_timeout: 30: must be a whole number with a unit us, ms, s, m, h or d "
           "(30s), from 0 to 1d");
    refuse("store: { scrub_rate: fast }\n",
           "t.yaml:1:22: store.scrub_rate: fast: must be a whole number of bytes per second with a unit B, "
           "KiB, MiB, GiB or TiB (10MiB/s), "
           "binary units only, from 64KiB/s to 1TiB/s, or 0 for no reading in the background");
    refuse("node: { workers: two }\n",
           "t.yaml:1:18: node.workers: two: must be a whole number, from 1 to 64");
    refuse("node: { workers: -1 }\n", "t.yaml:1:18: node.workers: -1: must be a whole number, from 1 to 64");
    refuse("node: { workers: 99999999999999999999999 }\n",
           "t.yaml:1:18: node.workers: 99999999999999999999999: must be from 1 to 64");
}

Test(conf_refuses, a_buffer_size_that_is_no_power_of_two_or_out_of_range)
{
    refuse_listener("rx_buffer_size: 100KiB", "t.yaml:4:73: listeners[0].rx_buffer_size: 100KiB: must be a "
                                              "power of two from 4KiB to 1MiB, or 0 for the receive path's "
                                              "own default; the nearest are 64KiB and 128KiB");
    refuse_listener(
        "rx_buffer_size: 2KiB",
        "t.yaml:4:73: listeners[0].rx_buffer_size: 2KiB: must be a power of two from 4KiB to 1MiB, or 0 for "
        "the receive path's own default");
    refuse_listener(
        "rx_buffer_size: 2MiB",
        "t.yaml:4:73: listeners[0].rx_buffer_size: 2MiB: must be a power of two from 4KiB to 1MiB, or 0 for "
        "the receive path's own default");
    struct conf *conf = load(
        NODE STORE "listeners: [ { name: a, protocol: s3, address: '127.0.0.1:1', rx_buffer_size: 0 } ]");
    cr_expect_eq(conf->listeners[0].rx_buffer_size, 0U);
    conf_free(conf);
}

Test(conf_refuses, a_value_outside_its_choices)
{
    refuse_listener("receive: dpdk",
                    "t.yaml:4:66: listeners[0].receive: dpdk: must be auto, socket, zcrx or af_xdp");
    refuse_listener("manage_nic: yes", "t.yaml:4:69: listeners[0].manage_nic: yes: must be true or false");
    refuse_listener("hugepages: 2M", "t.yaml:4:68: listeners[0].hugepages: 2M: must be none, 2MiB or 1GiB");
    refuse("listeners: [ { address: 'localhost:80' } ]",
           "t.yaml:1:25: listeners[0].address: localhost:80: must be a numeric address and a port from 1 to "
           "65535: 127.0.0.1:9000, [::1]:9000 "
           "or *:9000");
    refuse("node: { name: 'a b' }", "t.yaml:1:15: node.name: a b: must be letters, digits, '.', '_' and '-', "
                                    "beginning with a letter or digit");
    refuse_listener(
        "cpus: 3-1",
        "t.yaml:4:63: listeners[0].cpus: 3-1: must be numbers or ranges up to 8191, such as 4 or 0-3");
    refuse_listener("cpus: [1, 0-2]", "t.yaml:4:67: listeners[0].cpus: 0-2: must not name 1 twice");
    refuse_listener(
        "queues: auto",
        "t.yaml:4:65: listeners[0].queues: auto: must be numbers or ranges up to 4095, such as 4 or 0-3");
    refuse_listener("cpus: 0-4000", "t.yaml:4:63: listeners[0].cpus: 0-4000: must have at most 128 members");
}

Test(conf_refuses, a_key_template_under_which_two_streams_could_meet)
{
    static const char *const bad[] = {"{date}", "{seq", "seq}", "{sequence}", "/{seq}"};
    for (size_t i = 0; i < ARRAY_COUNT(bad); i++) {
        char text[256];
        char message[512];
        snprintf(text, sizeof(text), "listeners: [ { key_template: '%s' } ]", bad[i]);
        snprintf(message, sizeof(message),
                 "t.yaml:1:30: listeners[0].key_template: %s: must be text with {listener}, {node}, {date}, "
                 "{time}, {peer}, {seq}; {seq} must "
                 "occur, so that no two streams get one key",
                 bad[i]);
        refuse(text, message);
    }
}

Test(conf_refuses, a_key_given_twice)
{
    refuse("node:\n  workers: 1\n  name: a\n  workers: 2\n",
           "t.yaml:4:3: node.workers: given twice; the first is on line 2");
    refuse(NODE "node: {}\n", "t.yaml:2:1: node: given twice; the first is on line 1");
}

Test(conf_refuses, a_missing_key_or_device)
{
    refuse("node: { name: a }\n" STORE LISTENERS,
           "t.yaml:1:7: node.data_dir: is missing and has no default: Directory of the index (SQLite) and of "
           "the lock file. On a local file "
           "system; it is created by format.");
    refuse(NODE "store: {}\n" LISTENERS, "t.yaml:2:8: store.devices: is missing and has no default: Block "
                                         "devices, or files that stand for one. "
                                         "Uploads are spread over them; order does not matter.");
    refuse(NODE "store: { devices: [] }\n" LISTENERS,
           "t.yaml:2:19: store.devices: must have at least one member");
    refuse(
        NODE "store: { devices: [ { size: 1GiB } ] }\n",
        "t.yaml:2:21: store.devices[0].path: is missing and has no default: A block device (better by a "
        "stable name under /dev/disk/by-id), an NVMe namespace by passthrough (/dev/ngXnY, a whole namespace "
        "without metadata; opens the same store as its block device), or a file.");
    refuse(NODE STORE, "t.yaml:1:1: listeners: is missing and has no default: Addresses that take data.");
}

Test(conf_refuses, the_wrong_shape)
{
    refuse("", "t.yaml: is empty: the sections node, store and listeners are needed");
    refuse("- a\n", "t.yaml:1:1: the file must be a map with the sections node, store, listeners and admin");
    refuse("hello\n",
           "t.yaml:1:1: the file must be a map with the sections node, store, listeners and admin");
    refuse("node: 3\n", "t.yaml:1:7: node: 3: must be a map of keys");
    refuse("node: [1]\n", "t.yaml:1:7: node: must be a map of keys");
    refuse("listeners: {}\n", "t.yaml:1:12: listeners: must be a list of maps");
    refuse("listeners: [ a ]\n", "t.yaml:1:14: listeners: a: must be a list of maps");
    refuse("node: { name: [a] }\n", "t.yaml:1:15: node.name: must be a single value");
    refuse("node: { name: {a: b} }\n", "t.yaml:1:15: node.name: must be a single value");
    refuse_listener("cpus: [[1]]",
                    "t.yaml:4:64: listeners[0].cpus: must be a number, a range or a list of them");
    refuse_listener("tls:", "t.yaml:4:62: listeners[0].tls: must be a map of keys");
    refuse("node: { name: }\n", "t.yaml:1:15: node.name: has no value; leave the key out to get its default");
    refuse("node: { name: \"a\\0b\" }\n", "t.yaml:1:15: node.name: a?b: must not hold a NUL byte");
    refuse("{a: b}: c\n", "t.yaml:1:1: a map cannot be a key");
    refuse("[a]: c\n", "t.yaml:1:1: a list cannot be a key");
    refuse("node: &x { data_dir: d }\nstore: *x\n",
           "t.yaml:2:8: YAML aliases are not supported; write the value out");
    refuse(NODE STORE LISTENERS "---\nnode: {}\n", "t.yaml:5:1: the file must hold one YAML document");
    refuse("node: { name: a\n", "t.yaml:2:1: not YAML: did not find expected ',' or '}'");
    refuse("node:\n\tname: a\n", "t.yaml:2:1: not YAML: found character that cannot start any token (if it "
                                 "is a tab: indent with spaces)");
}

Test(conf_refuses, a_file_that_is_not_there)
{
    struct conf *conf = NULL;
    struct err err = {""};
    cr_expect_eq(conf_load("/nonexistent/p.yaml", &conf, &err), -2);
    cr_expect_str_eq(err.text, "/nonexistent/p.yaml: cannot be opened: No such file or directory; name the "
                               "configuration with --config FILE");
}

/* ---- mistakes over several keys ---------------------------------------------------------------------------------------- */

Test(conf_refuses, two_listeners_on_one_port)
{
    refuse(NODE STORE "listeners:\n  - " ONE "\n  - { name: b, protocol: s3, address: \"127.0.0.1:9000\" }\n",
           "t.yaml:5:39: listeners[1].address: 127.0.0.1:9000: collides with listener a (127.0.0.1:9000); "
           "each needs an address and port of its own");
    refuse(NODE STORE "listeners:\n  - " ONE
                      "\n  - { name: b, protocol: s3, address: \"*:9000\", allow_remote_anonymous: true }\n",
           "t.yaml:5:39: listeners[1].address: *:9000: collides with listener a (127.0.0.1:9000); each needs "
           "an address and port of its own");
    refuse(NODE STORE "listeners:\n  - " ONE
                      "\n  - { name: b, protocol: s3, address: \"[::ffff:127.0.0.1]:9000\" }\n",
           "t.yaml:5:39: listeners[1].address: [::ffff:127.0.0.1]:9000: collides with listener a "
           "(127.0.0.1:9000); each needs an address and port of its own");
    conf_free(load(NODE STORE "listeners:\n  - " ONE
                              "\n  - { name: b, protocol: s3, address: \"[::ffff:127.0.0.2]:9000\" }\n"));
    refuse(NODE STORE LISTENERS "admin: { address: \"0.0.0.0:9000\" }\n",
           "t.yaml:5:19: admin.address: 0.0.0.0:9000: collides with listener a (127.0.0.1:9000); each needs "
           "an address and port of its own");
    refuse(NODE STORE "listeners:\n  - " ONE "\n  - { name: a, protocol: s3, address: \"127.0.0.1:9001\" }\n",
           "t.yaml:5:13: listeners[1].name: a: is the name of listeners[0] already; give each its own");
    conf_free(
        load(NODE STORE "listeners:\n  - " ONE "\n  - { name: b, protocol: s3, address: \"[::1]:9000\" }\n"));
}

Test(conf_refuses, one_device_named_twice)
{
    refuse(NODE "store: { devices: [ { path: p }, { path: p } ] }\n" LISTENERS,
           "t.yaml:2:42: store.devices[1].path: p: is store.devices[0] already; name each device once");
    refuse(
        NODE "store: { devices: [ { path: p, size: 16777217 } ] }\n" LISTENERS,
        "t.yaml:2:38: store.devices[0].size: 16777217: must be a multiple of 4KiB, the block of the store");
}

Test(conf_refuses, tls_on_a_path_that_cannot_decrypt)
{
    refuse_listener("receive: zcrx, tls: { certificate: /c, key: /k }",
                    "t.yaml:4:92: listeners[0].tls.certificate: /c: TLS works on receive: socket only: on "
                    "zcrx payload goes from the NIC to the "
                    "device, and nobody could decrypt it");
    refuse_listener("receive: af_xdp, tls: { certificate: /c, key: /k }",
                    "t.yaml:4:94: listeners[0].tls.certificate: /c: TLS works on receive: socket only: on "
                    "af_xdp payload goes from the NIC to the "
                    "device, and nobody could decrypt it");
    refuse_listener(
        "tls: { key: /k }",
        "t.yaml:4:62: listeners[0].tls.certificate: is missing and has no default: PEM file: certificate and "
        "its "
        "chain. Read again on SIGHUP; files that are not good leave the old certificate in use. TLS 1.2 and "
        "1.3. "
        "Memory: 104KiB more for each of connections_max; a quarter of rx_area_size holds ciphertext.");
}

Test(conf_refuses, anonymous_access_from_the_network_unless_asked_for)
{
    refuse(
        NODE STORE "listeners: [ { name: a, protocol: s3, address: '10.0.0.1:80' } ]",
        "t.yaml:3:48: listeners[0].address: 10.0.0.1:80: is not a loopback address, and with access: "
        "anonymous everybody who reaches it may "
        "read, write and delete; use access: authenticated, or allow it with allow_remote_anonymous: true");
    refuse(NODE STORE "listeners: [ { name: a, protocol: raw, address: '10.0.0.1:80', bucket: abc, "
                      "key_template: '{seq}' } ]",
           "t.yaml:3:49: listeners[0].address: 10.0.0.1:80: is not a loopback address, and with protocol raw "
           "everybody who reaches it may store; allow it with allow_remote_anonymous: true");
    conf_free(load(
        NODE STORE
        "listeners: [ { name: a, protocol: s3, address: '10.0.0.1:80', allow_remote_anonymous: true } ]"));
    conf_free(load(NODE STORE "listeners: [ { name: a, protocol: s3, address: '[::ffff:127.0.0.1]:80' } ]"));
    refuse_listener("access: authenticated", "t.yaml:4:5: listeners[0].credentials: is missing: access: "
                                             "authenticated needs the file of access keys");
    refuse_listener("credentials: /k", "t.yaml:4:70: listeners[0].credentials: /k: is not used with access: "
                                       "anonymous; write access: authenticated or "
                                       "remove it");
}

Test(conf_refuses, compressed_prefixes_that_name_no_bucket)
{
    static const char allowed[] =
        "must be words between spaces, each a bucket, '/' and the beginning of a key: \"logs/ data/csv/\"";
    char message[256];
    snprintf(message, sizeof(message), "t.yaml:4:94: listeners[0].compression.prefixes: logs/ data: %s",
             allowed);
    refuse_listener("compression: { type: zstd, prefixes: logs/ data }", message);
    conf_free(load(NODE STORE "listeners: [ { name: a, protocol: s3, address: '127.0.0.1:1', compression: { "
                              "type: zstd, level: 9, prefixes: 'logs/ data/csv' } } ]"));
}

Test(conf_refuses, keys_of_the_other_protocol)
{
    refuse_listener(
        "bucket: abc",
        "t.yaml:4:65: listeners[0].bucket: abc: belongs to protocol raw; with s3 the request names it");
    refuse(
        NODE STORE "listeners: [ { name: a, protocol: raw, address: '127.0.0.1:1' } ]",
        "t.yaml:3:14: listeners[0].bucket: is missing: protocol raw needs the bucket that objects land in");
    refuse(NODE STORE "listeners: [ { name: a, protocol: raw, address: '127.0.0.1:1', bucket: abc } ]",
           "t.yaml:3:14: listeners[0].key_template: is missing: protocol raw needs the template of keys, "
           "such as \"{date}/{time}-{peer}-{seq}\"");
    refuse(NODE STORE "listeners: [ { name: a, protocol: raw, address: '127.0.0.1:1', bucket: abc, "
                      "key_template: '{seq}', region: x } ]",
           "t.yaml:3:108: listeners[0].region: x: belongs to protocol s3");
    refuse(NODE STORE "listeners: [ { name: a, protocol: raw, address: '127.0.0.1:1', bucket: abc, "
                      "key_template: '{seq}', compression: { type: zstd } } ]",
           "t.yaml:3:121: listeners[0].compression.type: zstd: belongs to protocol s3");
}

Test(conf_refuses, areas_that_do_not_fit_their_buffers_or_pages)
{
    refuse_listener("rx_buffer_size: 1MiB, rx_area_size: 4MiB",
                    "t.yaml:4:93: listeners[0].rx_area_size: 4MiB: rx_area_size must hold at least 8 receive "
                    "buffers: 8MiB");
    refuse_listener("rx_area_size: 65MiB, hugepages: 2MiB",
                    "t.yaml:4:71: listeners[0].rx_area_size: 65MiB: rx_area_size must be a multiple of 2MiB "
                    "(the larger of rx_buffer_size and the page "
                    "size)");
    refuse_listener("receive: zcrx, rx_buffer_size: 32KiB",
                    "t.yaml:4:88: listeners[0].rx_buffer_size: 32KiB: receive: zcrx needs huge pages for "
                    "buffers above 4KiB; set hugepages: 2MiB or "
                    "1GiB");
    refuse_listener("receive: af_xdp, rx_buffer_size: 8KiB",
                    "t.yaml:4:90: listeners[0].rx_buffer_size: 8KiB: receive: af_xdp takes frames of 4KiB at "
                    "most; use 4KiB or 0");
    refuse_listener(
        "receive: af_xdp, rx_area_size: 252KiB",
        "t.yaml:4:88: listeners[0].rx_area_size: 252KiB: receive: af_xdp needs an rx_area_size of at "
        "least 256KiB: 64 frames of 4KiB");
    refuse_listener(
        "queues: 1-2, receive: zcrx",
        "t.yaml:4:65: listeners[0].queues: 1-2: names 2 queues for node.workers: 1; one worker serves one "
        "queue");
    refuse_listener(
        "receive: socket, busy_poll: 1ms",
        "t.yaml:4:85: listeners[0].busy_poll: 1ms: only af_xdp polls: set receive: af_xdp or auto, or "
        "remove busy_poll");
    refuse_listener("receive: socket, queues: 1",
                    "t.yaml:4:82: listeners[0].queues: 1: receive: socket asks nothing of queues but "
                    "rx_buffer_size; set it, or remove queues");
}

Test(conf_refuses, listeners_that_pin_the_workers_differently)
{
    refuse(NODE STORE "listeners:\n"
                      "  - { name: a, protocol: s3, address: '127.0.0.1:1', cpus: 0-1 }\n"
                      "  - { name: b, protocol: s3, address: '127.0.0.1:2', cpus: 0-2 }\n",
           "t.yaml:5:60: listeners[1].cpus: 0-2: differs from listener a; a worker serves every listener, so "
           "they must name the same CPUs");
}

/* ---- memory ------------------------------------------------------------------------------------------------------------ */

Test(conf, memory_follows_from_the_keys)
{
    char text[BYTES_SIZE_TEXT_MAX];
    cr_expect_str_eq(bytes_format_size(CONF_CONNECTION_STATE_SIZE, text), CONF_CONNECTION_STATE_TEXT);
    struct conf *conf = load("node: { data_dir: d, workers: 2, staging_size: 8MiB }\n" STORE
                             "listeners: [ { name: a, protocol: s3, address: '127.0.0.1:1', rx_area_size: "
                             "4MiB, limits: { connections_max: 100, "
                             "head_size_max: 8KiB } } ]");
    cr_expect_str_eq(bytes_format_size(CONF_COMPRESSION_STREAM_SIZE, text), CONF_COMPRESSION_STREAM_TEXT);
    cr_expect_str_eq(bytes_format_size(CONF_COMPRESSION_CONTEXT_SIZE, text), CONF_COMPRESSION_CONTEXT_TEXT);
    cr_expect_eq(conf_memory_compression(conf), 24 * MIB + 4 * 1344 * KIB);
    cr_expect_eq(conf_memory_worker(conf), 12 * MIB + 4 * MIB / (128 * KIB) * CONF_BUFFER_STATE_SIZE +
                                               conf_memory_compression(conf) +
                                               100 * (8 * KIB + CONF_CONNECTION_STATE_SIZE));
    conf->listeners[0].receive =
        CONF_RECEIVE_AF_XDP; /* frames of 4 KiB whatever is asked for, and an engine */
    cr_expect_eq(conf_memory_buffers(&conf->listeners[0]),
                 1024 * CONF_BUFFER_STATE_SIZE + 100 * CONF_XDP_CONNECTION_SIZE);
    cr_expect_eq(conf_memory_registered(conf), 12 * MIB);
    conf_free(conf);
}
