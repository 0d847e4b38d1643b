#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# vm-need: penstock
# vm-after: 50-powercut-write
# vm-drive: nvme from=powercut.log
# vm-modules: ext4 loop
# vm-timeout: 2400
"""Cuts the power at many places of the log that 50-powercut-write left, starts the node on each disk and reads
everything back.  Control: on a disk that lies about flushes, losses must be found.
The socket's path here; the zero-copy one, in 55-powercut-zcrx-verify, has the 100 cuts that CI has time for."""
import powercut
import s3load
import vmtest

CLIENTS, OPERATIONS = 8, 30
CUTS, CONTROL_CUTS, SIZE = 100 if vmtest.FULL else 30, 10, 64 << 20

plans = [s3load.make_plan("cut", number, OPERATIONS, keys=4, size_max=400_000) for number in range(CLIENTS)]
powercut.one_drive("/dev/nvme0n1", "sound", plans, SIZE, CUTS, CONTROL_CUTS)
