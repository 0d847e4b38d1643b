#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""TLS on socket listeners: clients over it, both versions, truncation, a silent handshake, a certificate replaced while it runs."""

import os
import signal
import socket
import ssl
import subprocess
import tempfile

from node import Lane, Node, need, run, wait_for

lane = Lane()
folder = tempfile.mkdtemp(prefix="penstock-e2e-tls-")
cert, key = os.path.join(folder, "cert.pem"), os.path.join(folder, "key.pem")


def new_certificate():
    run([need("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"])
    os.chmod(key, 0o600)


def read_all(sock):
    """What the peer still says, up to FIN or reset."""
    data = b""
    try:
        while piece := sock.recv(65536):
            data += piece
    except ConnectionResetError:
        pass
    return data


new_certificate()
tls = f"tls: {{ certificate: {cert}, key: {key} }}"

with Node(s3=tls, raw=tls, limits="tls_handshake_timeout: 2s") as node:
    url = f"https://127.0.0.1:{node.s3_port}"
    curl = [need("curl"), "-sS", "--cacert", cert, "--max-time", "60"]
    payload = os.urandom(20_000_003)
    path = os.path.join(node.folder, "payload")
    with open(path, "wb") as f:
        f.write(payload)
    run([*curl, "-X", "PUT", url + "/bkt"])

    def wrap(sock):
        context = ssl.create_default_context(cafile=cert)
        return context.wrap_socket(sock, server_hostname="127.0.0.1")

    @lane.test
    def curl_stores_and_reads_over_both_versions():
        for version in ("1.2", "1.3"):
            base = [*curl, "--tlsv" + version, "--tls-max", version, "-f"]
            run([*base, "-T", path, f"{url}/bkt/v{version}"])
            assert run([*base, f"{url}/bkt/v{version}"]) == payload
            run([*base, "-H", "Transfer-Encoding: chunked", "-T", "-", f"{url}/bkt/stream"], input=payload)
            assert run([*base, "-r", "5-1000004", f"{url}/bkt/stream"]) == payload[5:1000005]

    @lane.test
    def an_old_version_is_refused():
        done = subprocess.run([need("openssl"), "s_client", "-tls1_1", "-cipher", "ALL:@SECLEVEL=0", "-connect",
                               f"127.0.0.1:{node.s3_port}"], input=b"", capture_output=True, timeout=30)
        assert done.returncode != 0 and b"Cipher is (NONE)" in done.stdout, done

    @lane.test
    def plain_http_on_a_tls_port_is_told_so_and_garbage_is_closed():
        with socket.create_connection(("127.0.0.1", node.s3_port), timeout=20) as sock:
            sock.sendall(b"GET /bkt HTTP/1.1\r\nHost: h\r\n\r\n")
            answer = read_all(sock)
            assert answer.startswith(b"HTTP/1.1 400 ") and b"speaks TLS" in answer, answer
            assert b"ListBucketResult" not in answer
        for size in (1, 5, 100, 70000):
            with socket.create_connection(("127.0.0.1", node.s3_port), timeout=20) as sock:
                sock.sendall(b"\xff" * size)
                assert b"HTTP" not in read_all(sock)
        wait_for(lambda: node.metric("penstock_connections_open", listener="bulk") == 0, "all of them to be gone")

    @lane.test
    def awscli_and_boto3_work_over_tls():
        env = dict(PATH="/usr/bin:/bin", HOME=node.folder, AWS_ACCESS_KEY_ID="a", AWS_SECRET_ACCESS_KEY="b" * 16,
                   AWS_DEFAULT_REGION="us-east-1", AWS_CA_BUNDLE=cert, AWS_EC2_METADATA_DISABLED="true")
        aws = [need("aws"), "--endpoint-url", url, "s3", "cp"]
        run([*aws, path, "s3://bkt/aws"], env=env)
        assert run([*aws, "s3://bkt/aws", "-"], env=env) == payload

    @lane.test
    def many_small_requests_share_one_session():
        with socket.create_connection(("127.0.0.1", node.s3_port), timeout=20) as plain, wrap(plain) as sock:
            for i in range(50):
                sock.sendall(b"PUT /bkt/small HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello")
                answer = b""
                while b"\r\n\r\n" not in answer:
                    answer += sock.recv(4096)
                assert answer.startswith(b"HTTP/1.1 200"), answer

    @lane.test
    def a_raw_stream_ends_by_close_notify_and_not_by_fin():
        with socket.create_connection(("127.0.0.1", node.raw_port), timeout=20) as plain:
            sock = wrap(plain)
            sock.sendall(b"PENSTOCK/1 key=cut\ntruncated")
            fd = sock.detach()
            plain = socket.socket(fileno=fd)
            plain.settimeout(20)
            plain.shutdown(socket.SHUT_WR)  # FIN without close_notify: anybody on the way can send it.
            try:
                while plain.recv(4096):
                    pass
            except ConnectionResetError:
                pass
            plain.close()
        assert b"<Key>cut</Key>" not in run([*curl, url + "/captures"])
        done = subprocess.run([need("openssl"), "s_client", "-quiet", "-no_ign_eof", "-CAfile", cert, "-connect",
                               f"127.0.0.1:{node.raw_port}"], input=b"PENSTOCK/1 key=whole\ncomplete", capture_output=True,
                              timeout=30)
        wait_for(lambda: b"<Key>whole</Key>" in run([*curl, url + "/captures"]), f"the whole stream: {done}")
        assert run([*curl, url + "/captures/whole"]) == b"complete"

    @lane.test
    def a_handshake_that_stalls_is_ended():
        with socket.create_connection(("127.0.0.1", node.s3_port), timeout=20) as sock:
            sock.sendall(b"\x16\x03\x01")
            try:
                assert sock.recv(100) == b""
            except ConnectionResetError:
                pass
        assert node.metric("penstock_timeouts_total", deadline="tls") >= 1

    @lane.test
    def a_new_certificate_is_taken_on_sighup():
        def serial():
            with socket.create_connection(("127.0.0.1", node.s3_port), timeout=20) as sock:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
                with context.wrap_socket(sock) as secure:
                    return secure.getpeercert(binary_form=True)
        old = serial()
        new_certificate()
        node.process.send_signal(signal.SIGHUP)
        wait_for(lambda: serial() != old, "the new certificate")
        with open(cert, "w") as f:
            f.write("rubbish")
        node.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "reload_failed" in node.log_text(), "the refusal of rubbish")
        assert serial() != old

    @lane.test
    def copies_for_tls_are_counted():
        assert node.metric("penstock_copied_bytes_total", reason="tls") >= len(payload)

for name in os.listdir(folder):
    os.unlink(os.path.join(folder, name))
os.rmdir(folder)
lane.close()
