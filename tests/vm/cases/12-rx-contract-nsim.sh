#!/bin/dash
# SPDX-License-Identifier: Apache-2.0
# The receive contract over zero-copy receive on the software NIC: netdevsim prepared by netcore/nic (hardware GRO, header
# split, RSS, rule) as for a listener, clients in another network namespace, once per receive-buffer size.
# vm-need: nsim tests/contract/test_rx_contract
# vm-have: netdevsim
# vm-cmdline: hugepages=64
# vm-timeout: 240
. /vm/lib.sh

load netdevsim
need nsim_pair 4
criterion 32768 env RX_STEPS=4000 RX_BACKEND=zcrx RX_INTERFACE=nsim0 RX_QUEUE=1 RX_ADDRESS=10.8.0.1 RX_NETNS=peer RX_BUFFER_SIZE=32768 \
    test_rx_contract
nsim_remove
ok "the module unloads" rmmod netdevsim
