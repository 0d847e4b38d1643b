#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The Debian package, installed by dpkg into a throw-away copy of this system (an overlay, so that its dependencies are checked against
# real packages and nothing of it reaches the host): what it installs runs, for whom, what an upgrade, a removal and a purge leave.
. tests/e2e/node.sh

if ! unshare -m sh -c 'mount -t tmpfs none "$1" && mkdir "$1/u" "$1/w" "$1/m" &&
	mount -t overlay -o "lowerdir=/,upperdir=$1/u,workdir=$1/w" overlay "$1/m"' sh "$work" 2>"$work/overlay.log"; then
	skip "the package in a copy of this system" "host: no overlay file system: $(tail -1 "$work/overlay.log")"
	close_lane
fi
# As "make deb" does it. The version is the package's alone: one of the program would have everything compiled again.
laid_out() { env -u MAKEFLAGS -u MAKELEVEL make --no-print-directory -s install DESTDIR="$work/first" PREFIX=/usr && cp -a "$work/first" "$work/second"; }
build() { deploy/debian/build "$work/$1" "$2" "$work/$1.deb"; }
try "make install lays it out" laid_out
try "a package is made" build first 0.0.1
try "and one of a later version" build second 0.0.2
[ -f "$work/first.deb" ] && [ -f "$work/second.deb" ] || close_lane

# Everything below runs inside: one line "ok NAME" or "FAIL NAME" each, which this script counts.
cat >"$work/inside.sh" <<'END'
set -u
here=$1
check() { local name=$1; shift; if "$@" >/tmp/check.log 2>&1; then echo "ok $name"; else echo "FAIL $name"; sed 's/^/     /' /tmp/check.log; fi; }
owned() { [ "$(stat -c '%a %U:%G' "$2")" = "$1" ]; }
absent() { ! [ -e "$1" ]; }
# With the capability that the unit grants for registered memory.
as_penstock() {
	setpriv --reuid penstock --regid penstock --clear-groups --inh-caps=-all,+ipc_lock --ambient-caps=-all,+ipc_lock "$@"
}
# The host's manual pages and caches are no part of this.
dpkg() { command dpkg --no-triggers "$@"; }
version() { dpkg-query -W -f '${Version}' penstock | grep -qx "$1" && /usr/bin/penstock version; }
same() { as_penstock penstock get bkt/key >/tmp/back && cmp /tmp/file /tmp/back; }
mount -t proc proc /proc
mount -t tmpfs none /tmp
export PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive
check "dpkg installs it with its dependencies met" dpkg -i "$here/first.deb"
check "the program runs" version 0.0.1
check "the user is there" id penstock
check "the configuration is the group's to read" owned "750 root:penstock" /etc/penstock
check "the state is the user's alone" owned "700 penstock:penstock" /var/lib/penstock
check "the example passes the syntax check" as_penstock penstock check --syntax
check "man, unit, rules and references are there" ls /usr/share/man/man1/penstock.1.gz /usr/lib/systemd/system/penstock.service \
	/usr/share/penstock/penstock.rules.yml /usr/share/penstock/REFERENCE.md /usr/share/doc/penstock/copyright
check "the unit names the installed program" grep -q '^ExecStart=/usr/bin/penstock serve' /usr/lib/systemd/system/penstock.service
# Nobody serves here: the commands work on the store itself, and the addresses are only names.
cat >/etc/penstock/penstock.yaml <<YAML
node:      { name: deb, data_dir: /var/lib/penstock/data, workers: 1, staging_size: 2MiB }
store:     { devices: [ { path: /var/lib/penstock/store.img, size: 64MiB } ] }
listeners: [ { name: bulk, protocol: s3, address: "127.0.0.1:19000", receive: socket, access: anonymous, rx_area_size: 1MiB } ]
admin:     { address: "127.0.0.1:19600" }
YAML
check "its user formats a store" as_penstock penstock format
head -c 100000 /dev/urandom >/tmp/file && chmod 644 /tmp/file
check "stores an object" as_penstock penstock put --create-bucket /tmp/file bkt/key
# Whoever ran what: the store stays its user's. The memory that users may lock by default is enough for the commands.
all_its() { ! find /var/lib/penstock ! -user penstock | grep .; }
plain() { prlimit --memlock=8388608 setpriv --reuid penstock --regid penstock --clear-groups --inh-caps=-all --bounding-set=-all "$@"; }
rm -f /var/lib/penstock/data/index.reserve
check "root lists" penstock ls bkt
check "and leaves nothing that is root's" all_its
check "its user reads under the default memory limit" plain penstock stat bkt/key
rm -r /var/lib/penstock/data /var/lib/penstock/store.img
check "check warns of what format is to make" sh -c '! penstock check | grep "^fail  device"; penstock check | grep "^warn  device .*penstock format makes"'
check "root formats anew" penstock format
check "and all of it is the user's" all_its
check "who stores there under the default memory limit" plain penstock put --create-bucket /tmp/file bkt/key
# The kernel gives a command's locked memory back a little after its end.
in_a_row() { for _ in $(seq 30); do plain penstock stat bkt/key || return 1; done; }
check "and has as many commands run in a row" in_a_row
# A file system without direct I/O refuses the open that has made the file.
mkdir /plain && mount -t ramfs none /plain && chown penstock:penstock /plain
sed 's,data_dir: /var/lib/penstock/data,data_dir: /plain/data,; s,/var/lib/penstock/store.img,/plain/store.img,' /etc/penstock/penstock.yaml >/tmp/plain.yaml
chmod 644 /tmp/plain.yaml
plain_its() { penstock format --config /tmp/plain.yaml && ! find /plain ! -user penstock | grep .; }
check "also where there is no direct I/O" plain_its
check "where its user stores too" as_penstock penstock put --create-bucket /tmp/file bkt/key --config /tmp/plain.yaml
umount /plain
chown root /var/lib/penstock/data/index.reserve
check "a reserve that is not its user's is named" sh -c '! setpriv --reuid penstock --regid penstock --clear-groups penstock ls 2>/tmp/said && grep "index.reserve: Permission denied; it must belong" /tmp/said'
chown penstock /var/lib/penstock/data/index.reserve
upgraded() { dpkg -i --force-confdef "$here/second.deb" && grep -q "name: deb" /etc/penstock/penstock.yaml; }
removed() { dpkg -r penstock && absent /usr/bin/penstock; }
purged() { dpkg -P penstock && absent /etc/penstock; }
check "an upgrade keeps the configuration" upgraded
check "and is the later version" version 0.0.2
check "the object is still there" same
check "removal takes the program" removed
check "and leaves the configuration" ls /etc/penstock/penstock.yaml
check "a purge takes the configuration" purged
check "and leaves what was stored" ls /var/lib/penstock/store.img /var/lib/penstock/data
END
unshare -m -p -f bash -c 'set -e
	base=$1/copy
	mkdir "$base"
	mount -t tmpfs none "$base" && mkdir "$base/u" "$base/w" "$base/m"
	mount -t overlay -o "lowerdir=/,upperdir=$base/u,workdir=$base/w" overlay "$base/m"
	mount --rbind /dev "$base/m/dev"
	mkdir "$base/m/packages" && cp "$1"/*.deb "$1/inside.sh" "$base/m/packages/"
	chroot "$base/m" bash /packages/inside.sh /packages || true
	umount -l "$base"' bash "$work" >"$work/inside.log" 2>&1
while IFS= read -r line; do
	case $line in
	"ok "*) result "${line#ok }" 0 ;;
	"FAIL "*) result "${line#FAIL }" 1 ;;
	*) echo "     $line" ;;
	esac
done <"$work/inside.log"
wanted=$(grep -c '^check ' "$work/inside.sh")
try "every check ran" test "$(grep -cE '^(ok|FAIL) ' "$work/inside.log")" = "$wanted"
close_lane
