#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# vm-need: penstock
# vm-nic: virtio-net-pci,iommu_platform=on,disable-legacy=on
# vm-nic: virtio-net-pci
# vm-modules: ext4 virtio_net
# vm-timeout: 600
"""virtio-net that may be given addresses by its driver (iommu_platform) has zero-copy AF_XDP: from its frames to NVMe with no copy."""
import xdpzero

xdpzero.run()
