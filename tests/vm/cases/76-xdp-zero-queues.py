#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# vm-need: penstock
# vm-nic: virtio-net-pci,iommu_platform=on,disable-legacy=on,mq=on,vectors=6 queues=2
# vm-nic: virtio-net-pci
# vm-modules: ext4 virtio_net
# vm-timeout: 600
"""A virtio-net of two queues with zero-copy AF_XDP on both: a worker for each, and one worker that has both over one UMEM."""
import xdpzero

xdpzero.run_queues()
