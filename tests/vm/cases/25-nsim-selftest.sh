#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# vm-lane: kernel
# vm-need: nsim kernel/nsim-selftest.tar
# vm-have: netdevsim
# vm-file: /usr/bin/ss /usr/bin/readlink /usr/bin/date
# vm-timeout: 400
# The kernel selftest of the series (patch 112) as the kernel's own runner would start it, one result per test of its.
# Two of the guest's tools are stand-ins: modprobe, and ethtool for the one option that Debian 12's does not know.
. /vm/lib.sh

# Debian has this link; the test names namespaces by it.
[ -e /var/run ] || { mkdir -p /var && ln -s /run /var/run; }
mkdir -p /tmp/selftest/bin
tar -C /tmp/selftest -xf /usr/bin/nsim-selftest.tar
cat >/tmp/selftest/bin/modprobe <<'END'
#!/bin/sh
. /vm/lib.sh
load "$1"
END
cat >/tmp/selftest/bin/ethtool <<'END'
#!/bin/sh
if [ "$1 $3" = "-G tcp-data-split" ]; then
	exec python3 /vm/genl.py header-split "$2"
fi
exec /usr/sbin/ethtool "$@"
END
chmod 755 /tmp/selftest/bin/*
PATH=/tmp/selftest/bin:$PATH bash /tmp/selftest/drivers/net/netdevsim/zcrx.sh >/tmp/selftest/log 2>&1
status=$?
while read -r line; do
	name=$(echo "$line" | sed 's/^TEST: \(.*[^ ]\) *\[.*$/\1/')
	case $line in
	"TEST: "*"[ OK ]") pass "$name" ;;
	"TEST: "*) fail "$name" "$(grep -A3 -F "$line" /tmp/selftest/log)" ;;
	esac
done </tmp/selftest/log
is "the selftest's status, ten tests" "0 10" "$status $(grep -c '^TEST: ' /tmp/selftest/log)"
grep -q "^TEST: " /tmp/selftest/log && [ "$status" = 0 ] || tail -40 /tmp/selftest/log
