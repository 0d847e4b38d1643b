# SPDX-License-Identifier: Apache-2.0
# Helpers for cases, sourced by `. /vm/lib.sh`.  A case reports each fact it checked with one of
# pass, fail and skip; a case that reports nothing, or exits nonzero without a fail, has failed.

pass() { echo "PASS $1"; }
# fail TEXT DETAIL
fail() { echo "FAIL $1: $2"; }
# skip TEXT REASON
skip() { echo "SKIP $1: $2"; }

# criterion LABEL COMMAND...: runs a test program of ours; each of its tests is one of the case's, "LABEL: " before its name if LABEL is not "".
criterion() {
    label=${1:+$1: }
    shift
    "$@" --tap -j1 > /tmp/criterion 2>&1
    while read -r line; do
        case $line in
        "ok - "*) pass "$label${line#ok - }" ;;
        "not ok - "*) fail "$label${line#not ok - }" "$(grep -A12 -F "$line" /tmp/criterion)" ;;
        esac
    done < /tmp/criterion
    grep -q '^ok - ' /tmp/criterion || fail "${label}the test ran" "$(tail -5 /tmp/criterion)"
}

# is TEXT EXPECTED ACTUAL
is() {
    if [ "$2" = "$3" ]; then pass "$1"; else fail "$1" "expected '$2', got '$3'"; fi
}

# ok TEXT COMMAND...: the command must succeed; its output is shown when it does not.
ok() {
    what=$1
    shift
    if out=$("$@" 2>&1); then pass "$what"; else fail "$what" "'$*' failed: $out"; fi
}

# refused TEXT COMMAND...: the command must fail.
refused() {
    what=$1
    shift
    if out=$("$@" 2>&1); then fail "$what" "'$*' succeeded: $out"; else pass "$what"; fi
}

# until_true SECONDS COMMAND...: waits for a condition, returns 1 when it did not come true in time (times `--patience`).
until_true() {
    end=$(($(cut -d. -f1 /proc/uptime) + $1 * $(cat /vm/patience 2>/dev/null || echo 1)))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$(cut -d. -f1 /proc/uptime)" -ge "$end" ] && return 1
        usleep 20000
    done
}

# load MODULE [PARAMETER...]: inserts a module and what it needs; the case names it in vm-have.
load() {
    for needed in $(cat "/vm/modules/$1.needs"); do
        [ -d "/sys/module/$needed" ] && continue
        if [ "$needed" = "$1" ]; then
            shift
            insmod "/vm/modules/$needed.ko" "$@" || return 1
        else
            insmod "/vm/modules/$needed.ko" || return 1
        fi
    done
}

# quit_if_failed COMMAND...: set-up that must work before any check makes sense.
need() {
    "$@" || { fail "set-up" "'$*' failed"; exit 1; }
}

# nsim_pair QUEUES: two software NICs joined by a wire, eth `nsim0` (10.8.0.1, fd00:8::1) here and `nsim1`
# (10.8.0.2, fd00:8::2) in namespace `peer`.  Needs module netdevsim loaded.
nsim_pair() {
    ip netns add peer || return 1
    # Freed packets wait on per-CPU lists and pin the NIC's buffers: removing the module could block for ever.
    echo 0 >/proc/sys/net/core/skb_defer_max
    for number in 1 2; do
        echo "$number 1 $1" >/sys/bus/netdevsim/new_device || return 1
    done
    until_true 5 ls /sys/bus/netdevsim/devices/netdevsim2/net || return 1
    here=$(ls /sys/bus/netdevsim/devices/netdevsim1/net)
    there=$(ls /sys/bus/netdevsim/devices/netdevsim2/net)
    ip link set "$here" name nsim0 && ip link set "$there" netns peer name nsim1 || return 1
    here=$(cat /sys/class/net/nsim0/ifindex)
    there=$(ip -n peer -o link show nsim1 | cut -d: -f1)
    # The file takes descriptors of namespaces as its writer has them open.
    exec 8</proc/self/ns/net 9</run/netns/peer
    echo "8:$here 9:$there" >/sys/bus/netdevsim/link_device || return 1
    exec 8<&- 9<&-
    ip addr add 10.8.0.1/24 dev nsim0 && ip addr add fd00:8::1/64 dev nsim0 nodad && ip link set nsim0 up &&
        ip -n peer addr add 10.8.0.2/24 dev nsim1 && ip -n peer addr add fd00:8::2/64 dev nsim1 nodad &&
        ip -n peer link set lo up && ip -n peer link set nsim1 up
}

nsim_remove() {
    for number in 1 2; do echo "$number" >/sys/bus/netdevsim/del_device; done
    ip netns del peer
}
