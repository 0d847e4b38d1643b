/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store on a regular file through a real ring, committer and reader threads running: what is put is read back bit-exact, also
 * after closing and opening, whatever the alignment of the bytes was.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "store_rig.h"

static uint8_t *bytes_of(uint64_t len, uint64_t seed)
{
    uint8_t *bytes = malloc(len);
    cr_assert_not_null(bytes);
    store_rig_fill(bytes, len, seed);
    return bytes;
}

Test(store_file, object_is_read_back_after_reopen)
{
    struct store_rig rig;
    store_rig_open(&rig, &(struct store_rig_options){.name = "file-reopen"});
    uint8_t *bytes = bytes_of(3 * MIB + 77, 1);
    cr_assert_eq(store_rig_bucket(&rig, "b"), 0);
    cr_assert_eq(store_rig_put(&rig, "k", bytes, 3 * MIB + 77, 128 * KIB, 317), 0);
    cr_assert_eq(store_rig_compare(&rig, "k", bytes, 3 * MIB + 77), 0);
    uint64_t used = store_rig_used(&rig);
    store_rig_reopen(&rig);
    cr_assert_eq(store_rig_used(&rig), used, "recovery finds the same space in use");
    cr_assert_eq(store_rig_compare(&rig, "k", bytes, 3 * MIB + 77), 0);
    cr_assert_eq(store_rig_delete(&rig, "k"), 0);
    cr_assert_eq(store_rig_used(&rig), 0);
    store_rig_close(&rig);
    free(bytes);
}

Test(store_file, contiguous_bytes_are_copied_at_both_ends_only)
{
    struct store_rig rig;
    store_rig_open(&rig, &(struct store_rig_options){.name = "file-copied"});
    uint8_t *bytes = bytes_of(2 * MIB, 2);
    cr_assert_eq(store_rig_bucket(&rig, "b"), 0);
    cr_assert_eq(store_rig_put(&rig, "k", bytes, 2 * MIB, 64 * KIB, 301), 0);
    const _Atomic uint64_t *copied = store_port_copied_bytes(rig.port);
    uint64_t total = 0;
    for (uint32_t i = 0; i < STORE_COPY_REASONS; i++) {
        total += copied[i];
    }
    struct store_device_info info;
    store_device_info(rig.store, 0, &info);
    cr_assert_lt(total, 2 * (uint64_t)info.dma_alignment);
    cr_assert_eq(store_rig_compare(&rig, "k", bytes, 2 * MIB), 0);
    store_rig_close(&rig);
    free(bytes);
}

Test(store_file, every_small_size_and_start_is_exact)
{
    struct store_rig rig;
    store_rig_open(&rig, &(struct store_rig_options){.name = "file-small"});
    uint8_t *bytes = bytes_of(16 * KIB, 3);
    cr_assert_eq(store_rig_bucket(&rig, "b"), 0);
    const uint32_t sizes[] = {0, 1, 3, 511, 512, 513, 4095, 4096, 4097, 9000};
    const uint32_t starts[] = {0, 1, 4, 511, 512, 700};
    for (uint32_t i = 0; i < ARRAY_COUNT(sizes); i++) {
        for (uint32_t j = 0; j < ARRAY_COUNT(starts); j++) {
            cr_assert_eq(store_rig_put(&rig, "k", bytes, sizes[i], 1500, starts[j]), 0);
            cr_assert_eq(store_rig_compare(&rig, "k", bytes, sizes[i]), 0, "size %u start %u", sizes[i],
                         starts[j]);
        }
    }
    store_rig_close(&rig);
    free(bytes);
}

Test(store_file, a_second_node_is_refused)
{
    struct store_rig rig;
    struct store *second = NULL;
    struct err err = {""};
    store_rig_open(&rig, &(struct store_rig_options){.name = "file-second"});
    cr_assert_lt(store_open(&rig.store_options, &second, &err), 0);
    cr_assert(strstr(err.text, "locked by another process") != NULL, "%s", err.text);
    store_rig_close(&rig);
}

Test(store_file, format_refuses_a_store_unless_forced)
{
    struct store_rig rig;
    struct err err = {""};
    store_rig_open(&rig, &(struct store_rig_options){.name = "file-format"});
    store_port_close(rig.port);
    store_close(rig.store);
    cr_assert_eq(store_format(&rig.store_options, false, &err), -EEXIST);
    cr_assert(strstr(err.text, "--force") != NULL, "%s", err.text);
    cr_assert_eq(store_format(&rig.store_options, true, &err), 0, "%s", err.text);
    store_rig_open(&rig, &(struct store_rig_options){.name = "file-format"});
    store_rig_close(&rig);
}
