#!/bin/dash
# SPDX-License-Identifier: Apache-2.0
# The receive contract (tests/contract/test_rx_contract.c) on this kernel: once over plain sockets, once over zero-copy
# receive in its device-less mode, in which the kernel copies but every completion, refill and error is real.
# vm-need: tests/contract/test_rx_contract
# vm-timeout: 120
. /vm/lib.sh

for backend in socket zcrx; do
    criterion $backend env RX_STEPS=4000 RX_BACKEND=$backend test_rx_contract
done
