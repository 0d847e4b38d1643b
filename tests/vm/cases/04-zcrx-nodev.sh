#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The kernel offers device-less zcrx, and refuses it the buffer sizes that only a NIC can have.
# vm-prog: zcrx_nodev
. /vm/lib.sh

is "a device-less area registers" "registered id 0" "$(zcrx_nodev)"
is "rx_buf_len 32768 without a device is refused" "refused EOPNOTSUPP" "$(zcrx_nodev 32768)"
