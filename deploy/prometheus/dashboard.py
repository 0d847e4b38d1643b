#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the Grafana dashboard (penstock.dashboard.json) from one row per panel. A metric that does not exist fails in the test.

    deploy/prometheus/dashboard.py > deploy/prometheus/penstock.dashboard.json
"""
import json

RATE = "[$__rate_interval]"
BY = "sum by (listener) "
# title, unit, [(expression, legend)]
PANELS = [
    ("Payload stored", "Bps", [(f"{BY}(rate(penstock_payload_stored_bytes_total{{instance=~'$node'}}{RATE}))", "{{listener}}")]),
    ("Payload sent", "Bps", [(f"{BY}(rate(penstock_payload_sent_bytes_total{{instance=~'$node'}}{RATE}))", "{{listener}}")]),
    ("Requests by class", "reqps", [(f"sum by (listener, status) (rate(penstock_requests_total{{instance=~'$node'}}{RATE}))", "{{listener}} {{status}}")]),
    ("In flight", "short", [(f"{BY}(penstock_uploads_in_flight{{instance=~'$node'}})", "uploads {{listener}}"),
                            (f"{BY}(penstock_connections_open{{instance=~'$node'}})", "connections {{listener}}")]),
    ("Durable acknowledgement", "s", [(f"histogram_quantile({q}, sum by (le) (rate(penstock_durable_latency_seconds_bucket{{instance=~'$node'}}{RATE})))", f"p{int(q * 100)}") for q in (0.5, 0.99)]),
    ("Last byte to acknowledgement", "s", [(f"histogram_quantile({q}, sum by (le) (rate(penstock_upload_commit_seconds_bucket{{instance=~'$node'}}{RATE})))", f"p{int(q * 100)}") for q in (0.5, 0.99)]),
    ("Copied share of the payload, by reason", "percentunit",
     [(f"sum by (listener, reason) (rate(penstock_copied_bytes_total{{instance=~'$node'}}{RATE})) / on (listener) group_left sum by (listener) (rate(penstock_payload_received_bytes_total{{instance=~'$node'}}{RATE}))",
       "{{listener}} {{reason}}")]),
    ("Free receive buffers", "short", [("penstock_rx_buffers_free{instance=~'$node'}", "{{listener}}"),
                                       ("penstock_rx_buffers_free_low{instance=~'$node'}", "lowest {{listener}}")]),
    ("Device writes", "Bps", [(f"rate(penstock_device_written_bytes_total{{instance=~'$node'}}{RATE})", "{{device}}")]),
    ("Device queue depth", "short", [("penstock_device_writes_in_flight{instance=~'$node'}", "{{device}}")]),
    ("Flush latency, p99", "s", [(f"histogram_quantile(0.99, sum by (device, le) (rate(penstock_device_flush_latency_seconds_bucket{{instance=~'$node'}}{RATE})))", "{{device}}")]),
    ("Device space used", "percentunit", [("penstock_device_used_bytes{instance=~'$node'} / penstock_device_size_bytes{instance=~'$node'}", "{{device}}")]),
    ("Worker CPU", "percentunit", [(f"rate(penstock_worker_cpu_seconds_total{{instance=~'$node'}}{RATE})", "worker {{worker}}")]),
    ("Memory", "bytes", [("process_resident_memory_bytes{job='penstock',instance=~'$node'}", "{{instance}}")]),
    ("Deadlines and limits", "short", [(f"sum by (deadline) (rate(penstock_timeouts_total{{instance=~'$node'}}{RATE}))", "deadline {{deadline}}"),
                                       (f"sum by (limit) (rate(penstock_limits_hit_total{{instance=~'$node'}}{RATE}))", "limit {{limit}}")]),
    ("Errors", "short", [(f"rate(penstock_device_write_errors_total{{instance=~'$node'}}{RATE})", "write {{device}}"),
                         (f"rate(penstock_device_flush_errors_total{{instance=~'$node'}}{RATE})", "flush {{device}}"),
                         (f"rate(penstock_corrupt_blocks_total{{instance=~'$node'}}{RATE})", "corrupt blocks")]),
]


def panel(number, title, unit, targets):
    return {
        "id": number + 1, "type": "timeseries", "title": title, "datasource": {"type": "prometheus", "uid": "${source}"},
        "gridPos": {"h": 8, "w": 12, "x": 12 * (number % 2), "y": 8 * (number // 2)},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [{"refId": chr(65 + i), "expr": e, "legendFormat": legend} for i, (e, legend) in enumerate(targets)],
    }


print(json.dumps({
    "title": "penstock", "uid": "penstock", "schemaVersion": 38, "refresh": "10s", "time": {"from": "now-1h", "to": "now"},
    "templating": {"list": [
        {"name": "source", "type": "datasource", "query": "prometheus", "label": "Source"},
        {"name": "node", "type": "query", "datasource": {"type": "prometheus", "uid": "${source}"}, "label": "Node", "multi": True,
         "includeAll": True, "query": "label_values(penstock_build_info, instance)", "refresh": 2},
    ]},
    "panels": [panel(i, *p) for i, p in enumerate(PANELS)],
}, indent=1))
