#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The command line over both doors: without a node, and while one runs. Every exit code that is documented is provoked.
. tests/e2e/node.sh
p() { "$PENSTOCK" "$@" --config "$config"; }
# Expects an exit code, and a text on stderr.
expect() {
	local name=$1 want=$2 text=$3 status=0
	shift 3
	"$@" >"$work/out" 2>"$work/err" || status=$?
	if [ "$status" = "$want" ] && grep -qF -e "$text" "$work/err" "$work/out"; then result "$name" 0; else
		echo "     exit $status, wanted $want with: $text"
		sed 's/^/     /' "$work/out" "$work/err"
		result "$name" 1
	fi
}

node_make
head -c 3000001 /dev/urandom >"$work/file"
: >"$work/empty"

# ---- usage and configuration
expect "help, as a command" 0 "Usage: penstock COMMAND" "$PENSTOCK" help
expect "no command: usage, exit 2" 2 "Usage: penstock COMMAND" "$PENSTOCK"
expect "unknown command: exit 2" 2 "unknown command frobnicate" "$PENSTOCK" frobnicate
expect "unknown command with --help: exit 2" 2 "unknown command frobnicate" "$PENSTOCK" frobnicate --help
expect "unknown option: exit 2" 2 "serve: unknown option --force" "$PENSTOCK" serve --force
expect "missing operand: exit 2" 2 "stat: needs BUCKET/KEY" "$PENSTOCK" stat
expect "key without bucket: exit 2" 2 "must be BUCKET/KEY" p get /x
expect "put under a name no S3 client could use: exit 2" 2 "not a bucket name" p put "$work/file" B/x
expect "put under a key that is not UTF-8: exit 2" 2 "a key in UTF-8" p put "$work/file" $'bucket/\xff'
expect "help of a command: exit 0" 0 "--create-bucket" "$PENSTOCK" put --help
expect "version" 0 "penstock " "$PENSTOCK" version
expect "version, as an option" 0 "penstock " "$PENSTOCK" --version
expect "missing configuration: exit 3" 3 "cannot be opened" "$PENSTOCK" check --config "$work/none.yaml"
printf 'node: { data_dir: d }\nstore: { devices: [ { path: p, sise: 1 } ] }\n' >"$work/bad.yaml"
expect "refused configuration: exit 3 with line, column and a suggestion" 3 "bad.yaml:2:32: store.devices[0].sise: 1: unknown key; did you mean size? Allowed here: path, size" \
	"$PENSTOCK" check --syntax --config "$work/bad.yaml"
expect "the example of the production set-up reads" 0 "deploy/penstock.yaml: ok" "$PENSTOCK" check --syntax --config deploy/penstock.yaml
try "the effective configuration loads again to itself" bash -c "'$PENSTOCK' check --print --config '$config' >'$work/p1.yaml' &&
	'$PENSTOCK' check --print --config '$work/p1.yaml' >'$work/p2.yaml' && cmp '$work/p1.yaml' '$work/p2.yaml' && [ -s '$work/p1.yaml' ]"

# ---- check
expect "check: everything is met here" 0 " 0 failures" p check
mkdir "$work/fresh"
sed "s,data_dir: $work/data,data_dir: $work/fresh," "$config" >"$work/fresh.yaml"
expect "check looks at a folder that nobody has formatted yet" 0 "no node is running" "$PENSTOCK" check --config "$work/fresh.yaml"
expect "and says that there is no index" 0 "warn  index               $work/fresh holds none; run penstock format" "$PENSTOCK" check --config "$work/fresh.yaml"
try "and leaves nothing in it (a file of root's would keep the node's user out)" rmdir "$work/fresh"
sed "s,store.img,absent.img,; s,size: 256MiB,size: 0," "$config" >"$work/absent.yaml"
absent="absent.yaml:$(sed -n '/absent.img/=' "$work/absent.yaml"):$(awk '/absent.img/ { print index($0, "path: ") + 6 }' "$work/absent.yaml"): store.devices[0].path: $work/absent.img: does not exist; must be"
expect "check: a missing device fails with exit 6, at its line and column" 6 "fail  device              $work/$absent" "$PENSTOCK" check --config "$work/absent.yaml"
expect "serve says the same" 1 "$absent" "$PENSTOCK" serve --config "$work/absent.yaml"
expect "and so does format, which makes files of a given size only" 1 "$absent" "$PENSTOCK" format --config "$work/absent.yaml"
sed "s,name: bulk,name: bulk\, cpus: 8000\, interface: nosuchnic0," "$config" >"$work/cpus.yaml"
expect "check: a CPU that is not there is a warning" 0 "cpus: 8000 is no CPU of this host" "$PENSTOCK" check --config "$work/cpus.yaml"
expect "check: and so is an interface" 0 "interface: nosuchnic0 does not exist here" "$PENSTOCK" check --config "$work/cpus.yaml"
sed "s,127.0.0.1:$port_raw,192.0.2.77:$port_raw,; s,bucket: captures,bucket: captures\, allow_remote_anonymous: true," "$config" >"$work/addr.yaml"
expect "check: an address of nobody fails, with the reason" 6 "no interface has this address" "$PENSTOCK" check --config "$work/addr.yaml"

few_files() { (ulimit -Sn 200 && ulimit -Hn 200 && p "$@"); }
expect "check: fewer open files than a worker's ring registers fail" 6 "fail  open files          256 for a worker's ring, the limit is 200" few_files check
expect "serve does not start with them" 1 "raise RLIMIT_NOFILE" few_files serve
sed "s,name: bulk,name: bulk\, access: authenticated\, credentials: $work/keys," "$config" >"$work/auth.yaml"
printf 'key AKIDEXAMPLE two-words of-secret\n' >"$work/keys"
chmod 600 "$work/keys"
expect "check: credentials at which serve would stop fail with their line" 6 "credentials $work/keys:1: expected: key ID SECRET" "$PENSTOCK" check --config "$work/auth.yaml"
expect "serve says the same" 1 "listener bulk: credentials: $work/keys:1: expected: key ID SECRET" "$PENSTOCK" serve --config "$work/auth.yaml"
cp deploy/credentials "$work/keys" && chmod 600 "$work/keys"
expect "check: the example of the credentials file reads" 0 "credentials $work/keys: 3 keys" "$PENSTOCK" check --config "$work/auth.yaml"

# ---- one set of object tests for both doors
objects() {
	local door=$1
	expect "$door: get from a bucket that is not there: exit 4" 4 "penstock: nosuchbucket/k: " p get nosuchbucket/k
	expect "$door: put into a bucket that is not there: exit 4, with the way out" 4 "nosuchbucket does not exist; --create-bucket" p put "$work/file" nosuchbucket/k
	try "$door: put makes the bucket when told to" p put "$work/file" "b-$door/a b/ü%20+" --create-bucket --content-type text/x
	try "$door: put once more, without" p put "$work/empty" "b-$door/empty"
	expect "$door: put of a directory says so" 1 "Is a directory" p put "$work" "b-$door/dir"
	try "$door: put from a pipe" bash -c "cat '$work/file' | '$PENSTOCK' put - 'b-$door/piped' --config '$config'"
	try "$door: get gives the same bytes" bash -c "'$PENSTOCK' get 'b-$door/a b/ü%20+' '$work/back' --config '$config' && cmp '$work/file' '$work/back'"
	try "$door: get to stdout" bash -c "'$PENSTOCK' get 'b-$door/piped' --config '$config' | cmp - '$work/file'"
	try "$door: an empty object" bash -c "'$PENSTOCK' get 'b-$door/empty' --config '$config' | cmp - '$work/empty'"
	expect "$door: ls shows buckets" 0 "b-$door" p ls
	expect "$door: ls folds at the slash" 0 "PREFIX a b/" p ls "b-$door"
	expect "$door: ls --recursive does not" 0 "3000001 a b/ü%20+" p ls "b-$door" --recursive
	expect "$door: ls with a prefix" 0 "3000001 a b/ü%20+" p ls "b-$door/a b/"
	expect "$door: stat shows the size" 0 "content-length: " p stat "b-$door/piped"
	expect "$door: stat shows the stored type" 0 "content-type: text/x" p stat "b-$door/a b/ü%20+"
	expect "$door: scrub verifies everything" 0 "bytes, 0 bad" p scrub
	expect "$door: scrub of a prefix" 0 "scrubbed 1 objects, 3000001 bytes, 0 bad" p scrub "b-$door/pi"
	try "$door: rm" p rm "b-$door/piped"
	expect "$door: rm again: exit 4" 4 "no such" p rm "b-$door/piped"
	expect "$door: a failed get leaves no file" 4 "penstock: " p get "b-$door/piped" "$work/gone"
	try "$door: (and there is none)" bash -c "! ls '$work'/gone*"
}
objects direct

# A signal that is there before the start is over: pending when the program begins, so that no start is too fast for it.
cat >"$work/pending.py" <<'END'
import os, signal, sys
number = signal.Signals[sys.argv[1]]
signal.pthread_sigmask(signal.SIG_BLOCK, [number])
os.kill(os.getpid(), number)
os.execv(sys.argv[2], sys.argv[2:])
END
at_start() { timeout --foreground 60 python3 "$work/pending.py" SIGTERM "$PENSTOCK" serve --config "$config" 2>"$work/pending.log"; }
try "SIGTERM during the start: it ends with 0" at_start
never_ready() { grep -q "event=stopped.*while=starting" "$work/pending.log" && ! grep -q "event=ready\|event=start_failed" "$work/pending.log"; }
try "  and was never ready" never_ready
python3 "$work/pending.py" SIGHUP "$PENSTOCK" serve --config "$work/auth.yaml" 2>"$work/hup.log" &
node=$!
loaded_twice() { [ "$(grep -c event=credentials_loaded "$work/hup.log")" = 2 ]; }
try "SIGHUP during the start: credentials are read again when it runs" wait_for loaded_twice
node_stop
result "  and that is all it did" "$node_status"

node_start
objects remote
expect "remote: what the direct door wrote is there" 0 "3000001 a b/ü%20+" p ls b-direct --recursive
# A list longer than one page (1,000 keys), over both doors; the last names prove that no page is skipped or read twice.
curl -sf -T "$work/empty" "$s3/b-remote/page/[1-1203]" >"$work/out" || exit 1
seq 1203 | sed 's,^,page/,' | LC_ALL=C sort >"$work/names"
paged() { p ls b-remote/page/ --recursive | awk '{ print $3 }' | cmp - "$work/names"; }
try "remote: every page of a long list, in order, once" paged
expect "a second node is refused with exit 5 and the first one's id" 5 "is held by process $node" p serve
expect "format of a store in use is refused with exit 5" 5 "is held by process $node" p format --force
mkdir -p "$work/other"
sed "s,data_dir: $work/data,data_dir: $work/other," "$config" >"$work/other.yaml"
expect "check: a device that another store holds fails" 6 "fail  device              $work/store.img is locked by another process" "$PENSTOCK" check --config "$work/other.yaml"
expect "check while the node runs takes its ports for granted" 0 "process $node is running this node" p check
# Two signals for one wish, as timeout(1) sends them: both are there when the node looks.
kill -STOP "$node"
kill -TERM "$node"
kill -INT "$node"
kill -CONT "$node"
wait "$node"; node_status=$?; node=''
result "the node ends with 0, also when the signal comes twice" "$node_status"
try "  which it has seen" grep -q event=signal_again "$work/node.log"
try "direct: every page of a long list, in order, once" paged

# A process that holds the lock, while the configuration offers only signed requests: another way is named.
exec 9<>"$work/data/lock"
flock 9
expect "a node with signed requests only: exit 5 and another client's command" 5 "curl --aws-sigv4" "$PENSTOCK" ls --config "$work/auth.yaml"
exec 9>&-

expect "format refuses a store that is there" 1 "use --force" p format
try "format --force makes it anew" p format --force
expect "and it is empty" 0 "scrubbed 0 objects, 0 bytes, 0 bad" p scrub
close_lane
