#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The admin address: what promtool and a real Prometheus say to /metrics, and that the numbers are those of what was done.
. tests/e2e/node.sh
prometheus=''
more_cleanup() { [ -z "$prometheus" ] || kill -KILL "$prometheus" 2>/dev/null; }

node_make
node_start
head -c 1000003 /dev/urandom >"$work/file"
curl -sf -X PUT "$s3/bucket" || exit 1
curl -sf -T "$work/file" "$s3/bucket/one" || exit 1
curl -sf -T "$work/file" "$s3/bucket/two" || exit 1
curl -sf -o "$work/back" "$s3/bucket/one" || exit 1
curl -s -o "$work/none" "$s3/bucket/none"
nc -N 127.0.0.1 "$port_raw" <"$work/file" >"$work/raw.answer"

scrape() { curl -sf "$admin/metrics" >"$work/metrics"; }
scrape || exit 1
# has 'name{labels}' VALUE: the sample is there with this value.
value() { awk -v n="$1" '{ v = $NF; l = substr($0, 1, length($0) - length(v) - 1) } l == n { print v }' "$work/metrics"; }
has() { [ "$(value "$1")" = "$2" ] || { echo "$1 is '$(value "$1")', not $2"; return 1; }; }
above() { awk -v a="$(value "$1")" -v b="$2" 'BEGIN { exit !(a != "" && a + 0 > b) }' || { echo "$1 is '$(value "$1")', not above $2"; return 1; }; }
bulk='listener="bulk",protocol="s3",path="socket"'
pipe='listener="pipe",protocol="raw",path="socket"'

try "requests are counted by operation and class" has "penstock_requests_total{$bulk,operation=\"PutObject\",status=\"2xx\"}" 2
try "a 404 is a 4xx of its operation" has "penstock_requests_total{$bulk,operation=\"GetObject\",status=\"4xx\"}" 1
try "a raw stream is an operation" has "penstock_requests_total{$pipe,operation=\"RawPut\",status=\"2xx\"}" 1
try "payload received" has "penstock_payload_received_bytes_total{$bulk}" 2000006
try "payload stored, raw" has "penstock_payload_stored_bytes_total{$pipe}" 1000003
try "payload sent" has "penstock_payload_sent_bytes_total{$bulk}" 1000003
try "durable latencies are as many as uploads" has "penstock_durable_latency_seconds_count{$bulk}" 2
try "nothing is in flight" has "penstock_uploads_in_flight{$bulk}" 0
try "the configured buffer size is the one in use" has "penstock_rx_buffer_size_bytes{$bulk}" 131072
try "so many buffers make up the configured area" has "penstock_rx_buffers_per_worker{$bulk}" 128
try "three objects" has penstock_objects 3
try "the device has taken the payload" above "penstock_device_written_bytes_total{device=\"$work/store.img\"}" 3000000
try "the device was flushed" above "penstock_device_flushes_total{device=\"$work/store.img\"}" 0
try "used space covers the payload" above "penstock_device_used_bytes{device=\"$work/store.img\"}" 3000008
# Copies of both listeners together are what the worker's port counted, and every reason is shown.
try "copied bytes by reason add up to the worker's" awk '
	/^penstock_copied_bytes_total/ { split($0, a, "reason=\""); split(a[2], q, "\""); listener[q[1]] += $NF }
	/^penstock_worker_copied_bytes_total/ { split($0, a, "reason=\""); split(a[2], q, "\""); worker[q[1]] += $NF; n++ }
	END { for (r in worker) if (worker[r] != listener[r]) { print r, worker[r], listener[r]; bad = 1 } exit bad || n != 9 }' "$work/metrics"
try "every metric has help, unit and type" awk '
	/^# HELP/ { help[$3] = $0; next }
	/^# TYPE/ { type[$3] = $4; next }
	{ name = $1; sub(/\{.*/, "", name); base = name; sub(/_(bucket|sum|count)$/, "", base)
	  if (!(name in type) && type[base] != "histogram") { print "no type: " name; bad = 1 }
	  if (!(name in help) && !(base in help)) { print "no help: " name; bad = 1 } }
	END { for (n in help) if (help[n] !~ /Unit: [a-z]+\.$/) { print "no unit: " n; bad = 1 } exit bad }' "$work/metrics"
try "each metric is described" bash -c "! grep -oE '^# TYPE [a-z_0-9]+' '$work/metrics' | cut -d' ' -f3 | while read -r m; do grep -qF \"\\\`\$m\\\`\" docs/METRICS.md || echo \$m; done | grep ."
first=$(value "penstock_requests_total{$bulk,operation=\"PutObject\",status=\"2xx\"}")
curl -sf -T "$work/file" "$s3/bucket/three" && scrape
try "counters go on" has "penstock_requests_total{$bulk,operation=\"PutObject\",status=\"2xx\"}" $((first + 1))

# Many requests in quick succession, then none: a worker that sleeps shows what its last turn did, not what an earlier one had told. Each
# receive is a completion of the ring.
sum() { awk -v n="$1" '{ m = $1; sub(/\{.*/, "", m) } m == n { s += $NF } END { printf "%d", s }' "$work/metrics"; }
curl -s -o "$work/none" "$s3/bucket/none" && scrape
completed=$(sum penstock_worker_ring_completed_total) received=$(sum penstock_receives_total)
curl -s -o "$work/#1.none" "$s3/bucket/none-[1-100]"
current() { scrape && [ $(($(sum penstock_worker_ring_completed_total) - completed)) -ge $(($(sum penstock_receives_total) - received)) ]; }
try "an idle worker's counters are current" wait_for current

if command -v promtool >/dev/null; then
	try "promtool accepts the text" promtool check metrics <"$work/metrics"
else
	skip "promtool accepts the text" "package prometheus is not installed"
fi

if command -v prometheus >/dev/null; then
	read -r port_prometheus < <(free_ports 1)
	cat >"$work/prometheus.yml" <<-END
		global: { scrape_interval: 1s }
		scrape_configs: [ { job_name: penstock, static_configs: [ { targets: ["127.0.0.1:$port_admin"] } ] } ]
	END
	prometheus --config.file="$work/prometheus.yml" --storage.tsdb.path="$work/tsdb" --web.listen-address="127.0.0.1:$port_prometheus" \
		>"$work/prometheus.log" 2>&1 &
	prometheus=$!
	query() { curl -sfG "http://127.0.0.1:$port_prometheus/api/v1/query" --data-urlencode "query=$1"; }
	scraped() { query "$1" | grep -qF "\"$2\"]"; }
	try "a real Prometheus scrapes the node" wait_for scraped 'up{job="penstock"}' 1
	try "and has the payload counter" wait_for scraped 'sum(penstock_payload_stored_bytes_total)' 4000012
	try "and can take a quantile of the latency" wait_for scraped 'histogram_quantile(1, sum by (le) (penstock_durable_latency_seconds_bucket)) > bool 0' 1
	kill -TERM "$prometheus"
	wait "$prometheus"
	prometheus=''
	try "the alert rules fire on what they are for" promtool test rules deploy/prometheus/penstock.rules.test.yml
else
	skip "a real Prometheus scrapes the node" "package prometheus is not installed"
fi

# Rules and dashboard name metrics that exist, and the dashboard is what its table says.
known() {
	local metrics
	metrics=$(grep -ohE '\b(penstock|process)_[a-z_0-9]+' deploy/prometheus/penstock.rules.yml deploy/prometheus/penstock.dashboard.json | sort -u)
	[ "$(wc -l <<<"$metrics")" -gt 20 ] || return 1
	for metric in $metrics; do grep -qE "^# TYPE ${metric%_bucket} " "$work/metrics" || { echo "no metric $metric"; return 1; }; done
}
try "alert rules and dashboard use metrics that exist" known
labelled() {
	local values
	values=$(grep -oE '(limit|cause|status|event|path|reason)=~?"[^"]+"' deploy/prometheus/penstock.rules.yml | cut -d'"' -f2 | tr '|' '\n' | sort -u)
	[ "$(wc -l <<<"$values")" -gt 8 ] || return 1
	for value in $values; do grep -qF "\`$value\`" docs/METRICS.md || { echo "no label value $value"; return 1; }; done
}
try "and label values that exist" labelled
# What tells of a failure has a rule, or a reason why nobody need act: the words are those by which such counters are named.
no_rule='
penstock_connections_reset_total  peers do that; what it costs them shows in 5xx and timeouts
penstock_heads_refused_total      what clients send
penstock_nic_napi_changes_total   the node dispatches anew by itself
'
ruled() {
	local names
	names=$(grep -oE '^# TYPE penstock_[a-z_0-9]+ (counter|gauge)' "$work/metrics" | cut -d' ' -f3 |
		grep -E 'error|fail|refus|reset|lost|drop|overflow|exhaust|starv|corrupt|removed|down_total|wrong|no_buffers|suspect|full$|limits_hit|state$|napi_changes')
	[ "$(wc -l <<<"$names")" -gt 15 ] || return 1
	for name in $names; do
		grep -qw "$name" deploy/prometheus/penstock.rules.yml || grep -q "^$name " <<<"$no_rule" || { echo "no rule for $name"; return 1; }
	done
	while read -r name _; do
		[ -z "$name" ] || { grep -qx "$name" <<<"$names" && ! grep -qw "$name" deploy/prometheus/penstock.rules.yml; } || { echo "needless: $name"; return 1; }
	done <<<"$no_rule"
}
try "every counter of failures has an alert rule, or a reason for none" ruled
try "the dashboard is up to date" bash -c 'deploy/prometheus/dashboard.py | cmp - deploy/prometheus/penstock.dashboard.json'

# ---- the log's first lines
planned() { grep -E "event=$1 " "$work/node.log" | grep -qF -e "$2"; }
try "the start logs the node's effective plan" planned node_plan "workers=1 staging_size=16MiB registered_per_worker=40MiB devices=1 drain_timeout_s=20"
try "and each listener's" planned listener_plan "name=bulk protocol=s3 address=127.0.0.1:$port_s3 path=socket rx_buffer_size=128KiB rx_area_size=16MiB hugepages=none connections_max=256 uploads_max=256 tls=no access=anonymous"

# ---- the other routes
status() { curl -s -o "$work/body" -w '%{http_code}' "$@"; }
try "health" test "$(status "$admin/healthz")" = 200
try "readiness" test "$(status "$admin/readyz")" = 200
try "the status page names the listeners and the device" bash -c "curl -sf '$admin/' | grep -q '<td>bulk</td>' && curl -sf '$admin/' | grep -qF '$work/store.img'"
try "the log level can be changed" test "$(status -d debug "$admin/log-level")" = 200
try "a wrong one is refused" test "$(status -d loud "$admin/log-level")" = 400
try "draining needs POST" test "$(status -D "$work/head" "$admin/drain")" = 405
try "and the answer says so" grep -q $'^Allow: POST\r$' "$work/head"
try "metrics are read by GET" test "$(status -D "$work/head" -X POST "$admin/metrics")" = 405
try "and that answer says so too" grep -q $'^Allow: GET, HEAD\r$' "$work/head"

# A stalled upload holds the drain open; readiness tells the balancer at once.
exec 8<>"/dev/tcp/127.0.0.1/$port_s3"
printf 'PUT /bucket/stalled HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab' >&8
in_flight() { scrape && has "penstock_uploads_in_flight{$bulk}" 1; }
try "an upload in flight is seen" wait_for in_flight
try "POST /drain is accepted" test "$(status -X POST "$admin/drain")" = 202
not_ready() { [ "$(status "$admin/readyz")" = 503 ]; }
try "readiness is gone while draining" wait_for not_ready
draining() { scrape && has penstock_draining 1; }
try "the metric says so" wait_for draining
printf 'cde' >&8
read -r line <&8
try "the upload in flight still gets its 200" grep -q ' 200 ' <<<"$line"
exec 8>&-
wait "$node"
result "the node ends with 0 after the drain" $?
node=''
close_lane
