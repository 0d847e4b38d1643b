#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# vm-lane: kernel
# vm-need: nsim kernel/nsim-selftest.tar
# vm-have: netdevsim
# vm-file: /usr/bin/ss /usr/bin/readlink /usr/bin/date
# vm-timeout: 400
# The kernel selftest of the series (patch 112) as the kernel's own runner would start it, one result per test of its.
# Three of the guest's tools are stand-ins: modprobe, and ethtool and ip for what Debian 12's do not know.
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
cat >/tmp/selftest/bin/ip <<'END'
#!/bin/sh
case "$*" in
"-n "*" link set "*" g"[rs]"o_ipv4_max_size "*)
	exec REAL netns exec "$2" python3 /vm/rtnl.py "$5" "$6" "$7"
	;;
esac
exec REAL "$@"
END
sed -i "s#REAL#$(command -v ip)#" /tmp/selftest/bin/ip
chmod 755 /tmp/selftest/bin/*

# Results come one by one, so that those before a time-out are seen; what came since the last one explains a failure.
count=0
: >/tmp/selftest/since
while read -r line; do
	name=$(echo "$line" | sed 's/^TEST: \(.*[^ ]\) *\[.*$/\1/')
	case $line in
	"TEST: "*"[ OK ]") pass "$name" ;;
	"TEST: "*) fail "$name" "$(tail -5 /tmp/selftest/since)" ;;
	"status "*) status=${line#status } ;;
	*) echo "$line" | tee -a /tmp/selftest/since ;;
	esac
	case $line in "TEST: "*) count=$((count + 1)) && : >/tmp/selftest/since ;; esac
done < <(PATH=/tmp/selftest/bin:$PATH bash /tmp/selftest/drivers/net/netdevsim/zcrx.sh 2>&1; echo "status $?")
is "the selftest's status, twelve tests" "0 12" "$status $count"
