# SPDX-License-Identifier: Apache-2.0
"""The crash checker must see each kind of loss: a stand-in server forgets, tears and mixes on purpose."""
import http.server
import pathlib
import sys
import threading
import unittest
import urllib.parse

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "guest"))
import s3load  # noqa: E402


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status, body=b""):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def read_chunks(self):
        body = b""
        while True:
            size = int(self.rfile.readline(), 16)
            body += self.rfile.read(size)
            self.rfile.readline()
            if not size:
                return body

    def do_PUT(self):
        chunked = self.headers.get("Transfer-Encoding") == "chunked"
        body = self.read_chunks() if chunked else self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.objects[self.path] = body
        self.answer(200)

    def do_DELETE(self):
        self.server.objects.pop(self.path, None)
        self.answer(204)

    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        if url.query:
            prefix = url.path + "/" + urllib.parse.parse_qs(url.query)["prefix"][0]
            rows = "".join(f"<Key>{path[len(url.path) + 1:]}</Key><Size>{len(body)}</Size>"
                           for path, body in self.server.objects.items() if path.startswith(prefix))
            self.answer(200, rows.encode())
        elif self.path in self.server.objects:
            self.answer(200, self.server.objects[self.path])
        else:
            self.answer(404)

    def log_message(self, *_):
        pass


class Checker(unittest.TestCase):
    def setUp(self):
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.objects = {}
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        self.plan = s3load.make_plan("unit", 3, 40, size_max=50_000)
        self.endpoint = s3load.Endpoint("127.0.0.1", self.server.server_port)

    def walk(self, length):
        """Acknowledges `length` operations of the plan."""
        client = s3load.Client(self.endpoint, self.plan[:length])
        client.run()
        self.assertIsNone(client.refused or client.lost)
        self.assertEqual(client.position, length)

    def faults(self, position):
        return s3load.verify(self.endpoint, self.plan, position)

    def held(self, position):
        """The path of an object that is there after `position` operations, not the next one's key."""
        path = next(p for p, body in self.server.objects.items() if len(body) > 1024 and
                    p != f"/{s3load.BUCKET}/{self.plan[position].key}")
        return path

    def test_a_plan_depends_on_its_seed_alone_and_has_every_kind(self):
        self.assertEqual(self.plan, s3load.make_plan("unit", 3, 40, size_max=50_000))
        self.assertNotEqual(self.plan, s3load.make_plan("unit", 4, 40, size_max=50_000))
        self.assertEqual({operation.kind for operation in self.plan}, {"put", "chunked", "delete"})

    def test_a_true_server_has_no_faults_at_any_position(self):
        for position in range(0, 40, 7):
            self.server.objects.clear()
            self.walk(position)
            self.assertEqual(self.faults(position), [])

    def test_the_next_operation_may_have_happened_or_not(self):
        self.walk(21)
        self.assertEqual(self.faults(20), [])
        self.assertEqual(self.faults(21), [])

    def test_an_operation_after_the_next_must_not_be_there(self):
        self.walk(22)
        self.assertTrue(self.faults(20))

    def test_a_lost_object_is_found(self):
        self.walk(30)
        del self.server.objects[self.held(30)]
        self.assertTrue(self.faults(30))

    def test_a_torn_object_is_found(self):
        self.walk(30)
        path = self.held(30)
        body = self.server.objects[path]
        self.server.objects[path] = body[:512] + bytes(512) + body[1024:]
        self.assertTrue(self.faults(30))

    def test_a_deleted_object_that_came_back_is_found(self):
        position = next(op.number for op in self.plan if op.kind == "delete" and op.number > 4)
        self.walk(position + 1)
        self.server.objects[f"/{s3load.BUCKET}/{self.plan[position].key}"] = b"back"
        self.assertTrue(self.faults(position + 1))

    def test_an_old_version_after_the_new_was_acknowledged_is_found(self):
        later = next(op for op in self.plan if op.version > 1 and op.kind == "put" and op.size > 100)
        older = [op for op in self.plan if op.key == later.key and op.version < later.version][-1]
        self.walk(later.number + 1)
        path = f"/{s3load.BUCKET}/{later.key}"
        if older.kind == "delete":
            del self.server.objects[path]
        else:
            self.server.objects[path] = older.body()
        self.assertTrue(self.faults(later.number + 1))

    def test_a_listing_that_disagrees_with_get_is_found(self):
        self.walk(30)
        self.assertTrue(s3load.verify_listing(self.endpoint, "c3/", {"c3/0": 12345}))


if __name__ == "__main__":
    unittest.main()
