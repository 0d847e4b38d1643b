#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""TLS on socket listeners: clients over it, both versions, many at once, truncation, slow and broken handshakes, a certificate replaced
while an upload runs, and what check says of bad files."""

import os
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import threading

from node import PENSTOCK, Lane, Node, Skip, need, run, wait_for

lane = Lane()
folder = tempfile.mkdtemp(prefix="penstock-e2e-tls-")
cert, key = os.path.join(folder, "cert.pem"), os.path.join(folder, "key.pem")


def new_certificate():
    run([need("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"])
    os.chmod(key, 0o600)


def renew():
    """A new certificate for the node, in use when this returns."""
    loads = node.log_text().count("event=certificate_loaded")
    new_certificate()
    node.process.send_signal(signal.SIGHUP)
    wait_for(lambda: node.log_text().count("event=certificate_loaded") >= loads + 2, "both listeners' reload")


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
    def a_whole_request_is_answered_when_fin_comes_without_close_notify():
        def ask(request):
            """What comes back after `request` and a bare FIN, decrypted; the sockets beneath are driven by hand for that."""
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            secure = ssl.create_default_context(cafile=cert).wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
            with socket.create_connection(("127.0.0.1", node.s3_port), timeout=30) as plain:
                def until(step):
                    while True:
                        try:
                            return step()
                        except ssl.SSLWantReadError:
                            if outgoing.pending:
                                plain.sendall(outgoing.read())
                            piece = plain.recv(65536)
                            incoming.write(piece) if piece else incoming.write_eof()
                until(secure.do_handshake)
                secure.write(request)
                plain.sendall(outgoing.read())
                plain.shutdown(socket.SHUT_WR)
                answer = b""
                while True:
                    try:
                        piece = until(lambda: secure.read(65536))
                    except (ssl.SSLZeroReturnError, ssl.SSLEOFError, ConnectionResetError, BrokenPipeError):
                        return answer
                    if not piece:
                        return answer
                    answer += piece
        put = b"PUT /bkt/%s HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n%s"
        answer = ask(put % (b"bare", b"hello"))
        assert answer.startswith(b"HTTP/1.1 200 OK"), answer
        assert ask(b"GET /bkt/bare HTTP/1.1\r\nHost: h\r\n\r\n").endswith(b"\r\n\r\nhello")
        assert not ask(put % (b"part", b"hel")).startswith(b"HTTP/1.1 200 OK")
        assert b"<Key>part</Key>" not in run([*curl, url + "/bkt"])

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
        renew()

    @lane.test
    def copies_for_tls_are_counted():
        assert node.metric("penstock_copied_bytes_total", reason="tls") >= len(payload)

    @lane.test
    def renegotiation_and_foreign_protocols_are_refused():
        done = subprocess.run([need("openssl"), "s_client", "-tls1_2", "-CAfile", cert, "-connect", f"127.0.0.1:{node.s3_port}"],
                              input=b"R\n", capture_output=True, timeout=30)
        assert b"no renegotiation" in done.stderr, done
        for offered, chosen in ((["h2", "http/1.1"], "http/1.1"), (["h2"], None)):
            context = ssl.create_default_context(cafile=cert)
            context.set_alpn_protocols(offered)
            with socket.create_connection(("127.0.0.1", node.s3_port), timeout=20) as plain:
                try:
                    with context.wrap_socket(plain, server_hostname="127.0.0.1") as sock:
                        assert chosen is not None and sock.selected_alpn_protocol() == chosen
                except ssl.SSLError as error:
                    assert chosen is None and "no application protocol" in str(error).lower().replace("_", " "), error

    @lane.test
    def a_session_is_resumed_also_after_a_new_certificate():
        context = ssl.create_default_context(cafile=cert)
        context.maximum_version = ssl.TLSVersion.TLSv1_2

        def meet(session):
            with socket.create_connection(("127.0.0.1", node.s3_port), timeout=20) as plain:
                with context.wrap_socket(plain, server_hostname="127.0.0.1", session=session) as sock:
                    return sock.session, sock.session_reused
        session, _ = meet(None)
        assert meet(session)[1]
        renew()
        context.load_verify_locations(cert)
        assert meet(session)[1]

    @lane.test
    def sixty_four_connections_at_once_store_and_read():
        bodies = [os.urandom(300_000 + 7919 * i) for i in range(64)]
        wrong = []

        def one(i):
            try:
                with socket.create_connection(("127.0.0.1", node.s3_port), timeout=60) as plain, wrap(plain) as sock:
                    for _ in range(3):
                        sock.sendall(f"PUT /bkt/many/{i} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(bodies[i])}\r\n\r\n".encode())
                        sock.sendall(bodies[i])
                        answer = b""
                        while b"\r\n\r\n" not in answer:
                            answer += sock.recv(4096)
                        assert answer.startswith(b"HTTP/1.1 200"), answer
                    sock.sendall(f"GET /bkt/many/{i} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".encode())
                    answer = b""
                    while piece := sock.recv(1 << 20):
                        answer += piece
                    assert answer.partition(b"\r\n\r\n")[2] == bodies[i], "the body differs"
            except Exception as error:
                wrong.append((i, repr(error)))
        threads = [threading.Thread(target=one, args=(i,)) for i in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong, wrong

    @lane.test
    def an_upload_goes_on_while_the_certificate_is_replaced():
        with socket.create_connection(("127.0.0.1", node.s3_port), timeout=60) as plain, wrap(plain) as sock:
            sock.sendall(f"PUT /bkt/across HTTP/1.1\r\nHost: h\r\nContent-Length: {len(payload)}\r\n\r\n".encode())
            sock.sendall(payload[:7_000_001])
            before = ssl.get_server_certificate(("127.0.0.1", node.s3_port))
            renew()
            assert ssl.get_server_certificate(("127.0.0.1", node.s3_port)) != before
            sock.sendall(payload[7_000_001:])
            assert sock.recv(4096).startswith(b"HTTP/1.1 200")
        assert run([*curl, url + "/bkt/across"]) == payload

    @lane.test
    def an_upload_cut_by_fin_or_reset_stores_nothing():
        for end in ("fin", "reset"):
            with socket.create_connection(("127.0.0.1", node.s3_port), timeout=20) as plain:
                sock = wrap(plain)
                sock.sendall(b"PUT /bkt/cut HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
                             b"20000\r\n" + b"c" * 0x20000 + b"\r\n")
                wait_for(lambda: node.metric("penstock_uploads_in_flight") == 1, "the upload")
                bare = socket.socket(fileno=sock.detach())
                if end == "fin":
                    bare.settimeout(20)
                    bare.shutdown(socket.SHUT_WR)
                    read_all(bare)
                else:
                    bare.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                bare.close()
            wait_for(lambda: node.metric("penstock_uploads_in_flight") == 0, "its end")
            assert b"NoSuchKey" in run([*curl, url + "/bkt/cut"])

    @lane.test
    def memory_is_back_when_the_connections_are_gone():
        wait_for(lambda: node.metric("penstock_connections_open", listener="bulk") == 0, "all connections to be gone")
        assert node.metric("penstock_rx_buffers_free", listener="bulk") == node.metric("penstock_rx_buffers_per_worker", listener="bulk")

KEY, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI-K7MDENG-bPxRfiCYEXAMPLEKEY"
new_certificate()
with Node(s3=tls, credentials=f"key {KEY} {SECRET}\n  allow all *\n") as node:
    url = f"https://127.0.0.1:{node.s3_port}"
    path = os.path.join(node.folder, "payload")
    with open(path, "wb") as f:
        f.write(payload)
    env = dict(PATH="/usr/bin:/bin", HOME=node.folder, AWS_ACCESS_KEY_ID=KEY, AWS_SECRET_ACCESS_KEY=SECRET,
               AWS_DEFAULT_REGION="us-east-1", AWS_CA_BUNDLE=cert, AWS_EC2_METADATA_DISABLED="true", LC_ALL="C.UTF-8",
               AWS_CONFIG_FILE="/dev/null", AWS_SHARED_CREDENTIALS_FILE="/dev/null")

    @lane.test
    def signed_awscli_multipart_and_stream_over_tls():
        aws = [need("aws"), "--endpoint-url", url, "s3"]
        run([*aws, "mb", "s3://bkt"], env=env)
        run([*aws, "cp", path, "s3://bkt/big"], env=env)
        assert run([*aws, "cp", "s3://bkt/big", "-"], env=env) == payload
        run([*aws, "cp", "-", "s3://bkt/stream"], env=env, input=payload)
        assert run([*aws, "cp", "s3://bkt/stream", "-"], env=env) == payload

    @lane.test
    def boto3_sends_a_checksum_in_a_trailer_over_tls():
        script = """
import boto3, sys
from botocore.config import Config
s3 = boto3.client("s3", endpoint_url=sys.argv[1], config=Config(s3={"addressing_style": "path"}))
seen = []
s3.meta.events.register("before-send.s3.PutObject", lambda request, **more: seen.append(dict(request.headers)))
data = open(sys.argv[2], "rb")
s3.put_object(Bucket="bkt", Key="boto", Body=data, ChecksumAlgorithm="CRC32")
print(seen[0].get("X-Amz-Content-SHA256"), seen[0].get("x-amz-content-sha256"))
sys.stdout.flush()
assert s3.get_object(Bucket="bkt", Key="boto")["Body"].read() == open(sys.argv[2], "rb").read()
"""
        try:
            said = run(["/usr/bin/python3", "-c", script, url, path], env=env)
        except AssertionError as error:
            if "No module named 'boto3'" in str(error):
                raise Skip("boto3 is not installed") from error
            raise
        assert b"STREAMING-UNSIGNED-PAYLOAD-TRAILER" in said, said

    @lane.test
    def rclone_over_tls():
        more = {name: value for name, value in env.items() if name != "AWS_CA_BUNDLE"}  # rclone has its own
        remote = {"RCLONE_CONFIG": "/dev/null", "RCLONE_CONFIG_PS_TYPE": "s3", "RCLONE_CONFIG_PS_PROVIDER": "Other",
                  "RCLONE_CONFIG_PS_ENDPOINT": url, "RCLONE_CONFIG_PS_ACCESS_KEY_ID": KEY,
                  "RCLONE_CONFIG_PS_SECRET_ACCESS_KEY": SECRET, "RCLONE_CA_CERT": cert, "RCLONE_S3_UPLOAD_CUTOFF": "5M",
                  "RCLONE_S3_CHUNK_SIZE": "5M"}
        run([need("rclone"), "copyto", path, "ps:bkt/rclone"], env={**more, **remote})
        assert run([need("rclone"), "cat", "ps:bkt/rclone"], env={**more, **remote}) == payload

    @lane.test
    def check_and_start_say_what_is_wrong_with_the_files():
        def check(change=lambda text: text):
            with open(node.config) as f:
                text = change(f.read())
            other = os.path.join(node.folder, "other.yaml")
            with open(other, "w") as f:
                f.write(text)
            done = subprocess.run([PENSTOCK, "check", "--config", other], capture_output=True, timeout=60)
            return done.returncode, (done.stdout + done.stderr).decode()
        assert "tls: /CN=localhost valid until" in check()[1]
        os.chmod(key, 0o644)
        status, said = check()
        assert status != 0 and "chmod 600" in said, said
        os.chmod(key, 0o600)
        other_key = os.path.join(folder, "other-key.pem")
        run([need("openssl"), "genpkey", "-algorithm", "RSA", "-out", other_key])
        os.chmod(other_key, 0o600)
        status, said = check(lambda text: text.replace(f"key: {key}", f"key: {other_key}"))
        assert status != 0 and "is not the key of" in said, said
        for kind in ("zcrx", "af_xdp"):
            status, said = check(lambda text: text.replace("protocol: s3", f"protocol: s3\n    receive: {kind}", 1))
            assert status != 0 and "TLS works on receive: socket only" in said, said
        assert "zcrx: TLS needs every byte to be touched" in node.log_text()

shutil.rmtree(folder)
lane.close()
