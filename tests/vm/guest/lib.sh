# SPDX-License-Identifier: Apache-2.0
# Helpers for cases, sourced by `. /vm/lib.sh`.  A case reports each fact it checked with one of
# pass, fail and skip; a case that reports nothing, or exits nonzero without a fail, has failed.

pass() { echo "PASS $1"; }
# fail TEXT DETAIL
fail() { echo "FAIL $1: $2"; }
# skip TEXT REASON
skip() { echo "SKIP $1: $2"; }

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

# until_true SECONDS COMMAND...: waits for a condition, returns 1 when it did not come true in time.
until_true() {
    end=$(($(cut -d. -f1 /proc/uptime) + $1))
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
