#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# vm-need: penstock nsim
# vm-have: netdevsim
# vm-drive: nvme size=64M name=powercutzcrx log=yes
# vm-cmdline: hugepages=40
# vm-modules: ext4 loop
# vm-timeout: 240
"""As 50-powercut-write, but the load arrives by zero-copy receive and goes from the NIC's buffers to the drive as it lies;
55-powercut-zcrx-verify cuts the power."""
import nsim
import powercut
import s3load
import vmtest
import zcrxnode

CLIENTS, OPERATIONS = 8, 30

pair = nsim.Pair(queues=4, prepared=False)
plans = [s3load.make_plan("zcrxcut", number, OPERATIONS, keys=4, size_max=400_000) for number in range(CLIENTS)]


def look(node):
    """Cuts prove something about this path only when the payload came along it."""
    received, by_kernel = (node.total(name, 'listener="bulk"') for name in
                           ("penstock_received_bytes_total", "penstock_rx_kernel_copied_bytes_total"))
    vmtest.check("the payload came by zero-copy receive", received > CLIENTS * OPERATIONS * 1000 and by_kernel == 0,
                 f"{received} bytes, {by_kernel} copied by the kernel")


faults = powercut.write_load("zcrx", plans, ["/dev/nvme0n1"], write_unit="64KiB", look=look,
                             listen=(lambda: zcrxnode.configure(32, area_mib=16), zcrxnode.endpoint))
vmtest.check(f"{CLIENTS * OPERATIONS} operations were acknowledged, and the node stopped with status 0", not faults, str(faults))
pair.close()
