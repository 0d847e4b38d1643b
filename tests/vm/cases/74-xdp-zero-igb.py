#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# vm-need: penstock
# vm-nic: igb
# vm-nic: virtio-net-pci
# vm-modules: ext4 virtio_net
# vm-have: igb
# vm-timeout: 600
"""igb (82576; QEMU 8 and later) has zero-copy AF_XDP: from its frames to NVMe with no copy. It is of ixgbe's family of drivers."""
import vmtest
import xdpzero

vmtest.load("igb")
xdpzero.run()
