#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Python in the guest is whole enough for clients: sockets, HTTP, hashes, threads."""
import hashlib
import http.client
import http.server
import threading

import vmtest


class Handler(http.server.BaseHTTPRequestHandler):
    def do_PUT(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        answer = hashlib.sha256(body).hexdigest().encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
body = bytes(range(256)) * 4096
client = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
client.request("PUT", "/x", body)
answer = client.getresponse().read().decode()
vmtest.check("a 1 MiB body crosses the loopback unchanged", answer == hashlib.sha256(body).hexdigest(), answer)
server.shutdown()
