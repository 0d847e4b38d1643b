# SPDX-License-Identifier: Apache-2.0
"""What the client matrix runs against: one node with several listeners, nginx in front of it, files to send, and the truth.

The truth is what a plain anonymous HTTP client reads from the same store: whatever a client under test claims to have stored or
deleted is looked up there. This file must not know any client.
"""

import atexit
import http.client
import os
import random
import shutil
import ssl
import subprocess
import sys
import urllib.parse
import xml.etree.ElementTree as ElementTree

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from node import Node, free_ports, wait_for  # noqa: E402  (the folder above is where it lives)

KEY, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI-K7MDENG-bPxRfiCYEXAMPLEKEY"
READER = "READER"  # May write nothing but what a reader of a restic repository must.
MULTIPART_SIZE = 5 << 20
LARGE_SIZE = (12 << 20) + 3  # Three parts; and more than socket buffers hold, so that a paused reader is still at it.
PAGING_KEYS = [f"page/{i:04}" for i in range(1005)]  # Beyond 1,000, the page of clients that cannot ask for another size.
SHARED = "shared"
PAGING = "paging"

# Keys a client can make out of files: each part of the path at most 255 bytes. All of them, with "odd/", fit 1,024 bytes.
ODD_FILES = ["a b", "a+b", "a~b=c@d", "paren(1)[2]", "100%41%2F", "\u00fcml\u00e4ut/\u4e2d\u6587/\U0001f600", "q'uote&amp;,$!*;",
             "long/" + "/".join(["n" * 250] * 4) + "/" + "n" * 11]
# Further ones, for clients that take a key as it is.
ODD_KEYS = ["odd//double//slash", "//lead", 'odd/<x>"`{}|^\\#?:', "odd/a+b c%20d", "odd/trailing/"]
ABSENT = "m-absent"  # A bucket that nobody makes.
TRANSPORTS = {
    "direct": "authenticated listener",
    "anonymous": "anonymous listener",
    "nginx": "authenticated, through nginx, which buffers requests",
    "nginx-stream": "authenticated, through nginx with proxy_request_buffering off",
    "tls": "authenticated listener with TLS",
}
CREDENTIALS = f"key {KEY} {SECRET}\n  allow all *\nkey {READER} {SECRET}\n  allow read,list *\n" + "".join(
    f"  allow write,delete m-restic-{transport}/repo/locks/\n" for transport in TRANSPORTS)


class Truth:
    """Plain HTTP to the anonymous listener. One connection per call: threads use it."""

    def __init__(self, host, port):
        self.host, self.port = host, port

    def call(self, method, bucket, key="", query="", body=None):
        conn = http.client.HTTPConnection(self.host, self.port, timeout=60)
        target = f"/{bucket}" + ("/" + urllib.parse.quote(key, safe="/~") if key else "") + query
        conn.request(method, target, body=body)
        response = conn.getresponse()
        data = response.read()
        conn.close()
        return response.status, response, data

    def get(self, bucket, key):
        status, _, data = self.call("GET", bucket, key)
        assert status == 200, f"GET {bucket}/{key}: {status} {data[:300]!r}"
        return data

    def etag(self, bucket, key):
        return self.call("HEAD", bucket, key)[1].getheader("ETag").strip('"')

    def put(self, bucket, key, data):
        status, _, answer = self.call("PUT", bucket, key, body=data)
        assert status == 200, f"PUT {bucket}/{key}: {status} {answer[:300]!r}"

    def fill(self, bucket, keys):
        """Many empty objects over one connection."""
        conn = http.client.HTTPConnection(self.host, self.port, timeout=60)
        for key in keys:
            conn.request("PUT", f"/{bucket}/{key}", body=b"")
            response = conn.getresponse()
            assert response.status == 200, response.read()
            response.read()
        conn.close()

    def keys(self, bucket, prefix=""):
        found, token = [], ""
        while True:
            query = f"?list-type=2&encoding-type=url&prefix={urllib.parse.quote(prefix, safe='')}{token}"
            status, _, data = self.call("GET", bucket, query=query)
            assert status == 200, (status, data)
            root = ElementTree.fromstring(data)
            space = root.tag[: root.tag.index("}") + 1]
            found += [urllib.parse.unquote(item.text) for item in root.iter(space + "Key")]
            next_token = root.findtext(space + "NextContinuationToken")
            if not next_token:
                return found
            token = "&continuation-token=" + urllib.parse.quote(next_token, safe="")

    def empty(self, bucket):
        for key in self.keys(bucket):
            self.call("DELETE", bucket, key)


def certificates(folder):
    """A certificate authority and a certificate for 127.0.0.1 out of it: (authority, chain, key)."""
    def path(name):
        return os.path.join(folder, name)
    with open(path("san"), "w") as f:
        f.write("subjectAltName=IP:127.0.0.1,DNS:localhost\nbasicConstraints=CA:FALSE\n")
    for command in (
            ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=penstock test authority",
             "-addext", "keyUsage=critical,keyCertSign,cRLSign", "-keyout", path("ca.key"), "-out", path("ca.pem")],
            ["req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=127.0.0.1", "-keyout", path("node.key"), "-out", path("node.csr")],
            ["x509", "-req", "-in", path("node.csr"), "-CA", path("ca.pem"), "-CAkey", path("ca.key"), "-CAcreateserial",
             "-days", "2", "-extfile", path("san"), "-out", path("node.pem")]):
        subprocess.run(["openssl", *command], check=True, capture_output=True)
    return path("ca.pem"), path("node.pem"), path("node.key")


NGINX = """
{user}
daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log warn;
events {{ worker_connections 512; }}
http {{
    access_log off; client_max_body_size 0; server_tokens off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u;
    scgi_temp_path {folder}/s;
    large_client_header_buffers 4 16k;
    proxy_http_version 1.1; proxy_set_header Host $http_host; proxy_set_header Connection "";
    server {{ listen 127.0.0.1:{buffered}; location / {{ proxy_pass {to}; }} }}
    server {{ listen 127.0.0.1:{stream}; location / {{ proxy_pass {to};
        proxy_request_buffering off; proxy_buffering off; }} }}
}}
"""


class Nginx:
    def __init__(self, folder, to):
        os.makedirs(folder)
        self.buffered, self.stream = free_ports(2)
        path = os.path.join(folder, "nginx.conf")
        with open(path, "w") as f:
            f.write(NGINX.format(folder=folder, buffered=self.buffered, stream=self.stream, to=to,
                                 user="user root;" if os.getuid() == 0 else ""))
        self.process = subprocess.Popen(["/usr/sbin/nginx", "-p", folder, "-c", path], stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        wait_for(lambda: all(listens(port) for port in (self.buffered, self.stream)), "nginx to listen")

    def stop(self):
        self.process.terminate()
        self.process.wait(20)


def listens(port):
    try:
        http.client.HTTPConnection("127.0.0.1", port, timeout=5).connect()
        return True
    except OSError:
        return False


class Receive:
    """What the listeners receive with, and their addresses. RECEIVE=af_xdp: tests/root/run-clients-xdp.sh has made the namespace
    CLIENTS_NODE_NETNS for the node, whose interfaces x0 and y0 lead here, where the clients and nginx are; an interface has one
    af_xdp listener, so the anonymous one has the second."""

    def __init__(self):
        self.is_xdp = os.environ.get("RECEIVE") == "af_xdp"
        self.direct, self.open = ("10.79.0.1", "10.80.0.1") if self.is_xdp else ("127.0.0.1", "127.0.0.1")

    def keys(self, interface):
        """YAML of a listener."""
        return f"receive: af_xdp\n    interface: {interface}\n    rx_buffer_size: 4KiB" if self.is_xdp else ""

    def node(self, *arguments, **options):
        if self.is_xdp:
            Node.host = self.direct
            Node.command = ["ip", "netns", "exec", os.environ["CLIENTS_NODE_NETNS"], *Node.command]
        return Node(*arguments, **options)


class Place:
    """The node, nginx and the files. `urls` has the transports that are there, `absent` the reason for each that is not, `never` for
    each that cannot be."""

    def __init__(self):
        self.open_port, self.tls_port = free_ports(2)
        self.urls, self.absent, self.never, self.ca, self.nginx = {}, {}, {}, None, None
        receive = Receive()
        self.node = receive.node(size="3GiB", workers=1, credentials=CREDENTIALS, s3=receive.keys("x0"), listeners=f"""
  - name: open
    protocol: s3
    address: "{receive.open}:{self.open_port}"
    allow_remote_anonymous: true
    {receive.keys("y0")}
    limits: {{ uploads_max: 512 }}
""")
        atexit.register(self.give_up)
        self.folder = self.node.folder
        self.truth = Truth(receive.open, self.open_port)
        self.urls["direct"] = self.node.url
        self.urls["anonymous"] = f"http://{receive.open}:{self.open_port}"
        self.tls_node = None
        self.with_nginx()
        if receive.is_xdp:
            self.check_path()
            self.never["tls"] = "an af_xdp listener serves no TLS"
        else:
            self.with_tls()
        self.make_files()

    def check_path(self):
        """That a request on each listener really comes by af_xdp, lest the matrix prove something else."""
        assert self.truth.call("GET", "nothing")[0] == 404, "the anonymous listener does not answer"
        self.node.request("GET", "/nothing")
        for name in ("bulk", "open"):
            assert self.node.metric("penstock_connections_opened_total", listener=name, path="af_xdp") > 0, f"{name} is not on af_xdp"

    def with_nginx(self):
        if not os.path.exists("/usr/sbin/nginx"):
            self.absent["nginx"] = self.absent["nginx-stream"] = "nginx is not installed"
            return
        self.nginx = Nginx(os.path.join(self.folder, "nginx"), self.node.url)
        self.urls["nginx"] = f"http://127.0.0.1:{self.nginx.buffered}"
        self.urls["nginx-stream"] = f"http://127.0.0.1:{self.nginx.stream}"

    def with_tls(self):
        """Adds a listener with TLS to the running configuration, and believes in it only after a handshake."""
        try:
            self.ca, chain, key = certificates(self.folder)
        except (OSError, subprocess.CalledProcessError) as error:
            self.absent["tls"] = f"openssl cannot make certificates: {error}"
            return
        with open(self.node.config) as f:
            plain = f.read()
        secure = plain.replace("\nadmin:", f"""
  - name: secure
    protocol: s3
    address: "127.0.0.1:{self.tls_port}"
    access: authenticated
    credentials: {self.folder}/credentials
    receive: socket
    tls: {{ certificate: {chain}, key: {key} }}
admin:""")
        self.node.stop()
        self.write_config(secure)
        try:
            self.node.start()
            self.handshake()
            self.urls["tls"] = f"https://127.0.0.1:{self.tls_port}"
        except (AssertionError, OSError) as error:
            self.absent["tls"] = "this build serves no TLS: " + str(error).strip().splitlines()[-1][:120]
            if self.node.process.poll() is None:
                self.node.stop()
            self.write_config(plain)
            self.node.start()

    def write_config(self, text):
        with open(self.node.config, "w") as f:
            f.write(text)

    def handshake(self):
        context = ssl.create_default_context(cafile=self.ca)
        conn = http.client.HTTPSConnection("127.0.0.1", self.tls_port, timeout=10, context=context)
        conn.request("GET", "/")
        assert conn.getresponse().status == 403, "an unsigned request was not refused"
        conn.close()

    def make_files(self):
        """small, large and other (as large); odd/ with a file per name. The same bytes in every run."""
        rng = random.Random(1)
        self.files = {}
        for name, size in (("small", 1000), ("large", LARGE_SIZE), ("other", LARGE_SIZE), ("empty", 0)):
            self.files[name] = os.path.join(self.folder, name)
            with open(self.files[name], "wb") as f:
                f.write(rng.randbytes(size))
        self.data = {name: open(path, "rb").read() for name, path in self.files.items()}
        self.odd_folder = os.path.join(self.folder, "odd")
        for name in ODD_FILES:
            path = os.path.join(self.odd_folder, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as f:
                f.write(name.encode())
        self.odd_keys = {"odd/" + name: name.encode() for name in ODD_FILES}
        assert max(len(key.encode()) for key in self.odd_keys) == 1024
        for bucket in (SHARED, PAGING):
            self.truth.call("PUT", bucket)
        self.truth.put(SHARED, "large", self.data["large"])
        self.truth.fill(PAGING, PAGING_KEYS)

    def stop(self):
        if self.nginx:
            self.nginx.stop()
            self.nginx = None

    def give_up(self):
        """What is still there when the program ends for whatever reason."""
        self.stop()
        if self.node.process.poll() is None:
            self.node.process.kill()
            self.node.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
