// SPDX-License-Identifier: Apache-2.0
//
// ICMP and ICMPv6 messages of any content, as raw sockets give them: nothing behind their end is read, and what is taken for a "too big"
// names a connection of the right family and goes through the engine, which knows none of them, without a trace.

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "rx/rx_xdp_icmp.h"
#include "tcp/tcp.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct tcp_engine *engine_once(void)
{
    static struct tcp_engine *engine;
    struct tcp_config config = {.conns_max = 2, .frames_count = 8, .secret = {1}};
    if (engine == NULL) {
        void *memory = aligned_alloc(64, tcp_size(&config));
        CHECK(memory != NULL);
        CHECK(tcp_init(memory, tcp_size(&config), &config, &engine) == 0);
    }
    return engine;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    struct xdp_too_big said;
    if (size == 0 || size > 4096) {
        return 0;
    }
    uint8_t *message = malloc(size); // a block of its own: the sanitizer sees the first byte read past it
    CHECK(message != NULL);
    memcpy(message, data, size);
    if (xdp_too_big_read4(message, (uint32_t)size, &said)) {
        CHECK(said.tuple.version == 4);
        CHECK(memcmp(said.tuple.local, mapped, sizeof(mapped)) == 0);
        CHECK(memcmp(said.tuple.peer, mapped, sizeof(mapped)) == 0);
        CHECK(said.mtu <= 0xffff);
        CHECK(!tcp_too_big(engine_once(), &said.tuple, said.seq, said.mtu));
    }
    if (xdp_too_big_read6(message, (uint32_t)size, &said)) {
        CHECK(said.tuple.version == 6);
        CHECK(!tcp_too_big(engine_once(), &said.tuple, said.seq, said.mtu));
    }
    free(message);
    return 0;
}
