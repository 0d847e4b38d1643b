#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Stores, lists, reads, overwrites and deletes with the clients people have: awscli, boto3, rclone, s3cmd, s4cmd, restic; small, large enough for
multipart, streams of unknown length, odd keys. Each against an anonymous and an authenticated listener where the client can."""

import hashlib
import os
import subprocess

from node import Lane, Node, Skip, need, run

KEY, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI-K7MDENG-bPxRfiCYEXAMPLEKEY"
CREDENTIALS = f"""key {KEY} {SECRET}
  allow all *
key READER {SECRET}
  allow read,list curl/public-
"""
ODD = ["plain", "a b+c~(1)=d&e", "\u00fcml\u00e4ut/\u4e2d\u6587", "x/./y", "percent%41", "q'uote\"s<>&", "t" * 900]

lane = Lane()


def environment(node, extra=None):
    # Nothing of the caller's: a setting meant for another store must not reach these clients.
    env = dict(AWS_ACCESS_KEY_ID=KEY, AWS_SECRET_ACCESS_KEY=SECRET, AWS_DEFAULT_REGION="us-east-1",
               AWS_CONFIG_FILE=os.path.join(node.folder, "aws"), AWS_EC2_METADATA_DISABLED="true",
               AWS_SHARED_CREDENTIALS_FILE="/dev/null", RCLONE_CONFIG="/dev/null", HOME=node.folder,
               PATH="/usr/bin:/bin:/usr/sbin:/sbin", LC_ALL="C.UTF-8")
    env.update(extra or {})
    return env


def write(node, name, data):
    path = os.path.join(node.folder, name)
    with open(path, "wb") as f:
        f.write(data)
    return path


def read(path):
    with open(path, "rb") as f:
        return f.read()


def aws(node, *arguments, data=None, api="s3"):
    return run([need("aws"), "--endpoint-url", node.url, api, *arguments], env=environment(node), input=data)


def s3cmd(node, *arguments, data=None):
    host = f"127.0.0.1:{node.s3_port}"
    return run([need("s3cmd"), "-c", "/dev/null", "--no-ssl", "--access_key", KEY, "--secret_key", SECRET, "--host", host,
                "--host-bucket", host, "--region", "us-east-1", *arguments], env=environment(node), input=data)


def rclone(node, *arguments, data=None):
    remote = {"RCLONE_CONFIG_PS_TYPE": "s3", "RCLONE_CONFIG_PS_PROVIDER": "Other", "RCLONE_CONFIG_PS_ENDPOINT": node.url,
              "RCLONE_CONFIG_PS_ACCESS_KEY_ID": KEY, "RCLONE_CONFIG_PS_SECRET_ACCESS_KEY": SECRET,
              "RCLONE_S3_UPLOAD_CUTOFF": "5M", "RCLONE_S3_CHUNK_SIZE": "5M"}
    return run([need("rclone"), *arguments], env=environment(node, remote), input=data)


BOTO = r'''
import boto3, sys, hashlib, io
from botocore.config import Config
url, odd = sys.argv[1], sys.argv[2:]
s3 = boto3.client("s3", endpoint_url=url, config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}))
s3.create_bucket(Bucket="boto")
small, large = b"x" * 1000, bytes(range(256)) * 80000
s3.put_object(Bucket="boto", Key="small", Body=small, Metadata={"a": "b"}, ContentType="text/plain")
got = s3.get_object(Bucket="boto", Key="small")
assert got["Body"].read() == small and got["Metadata"] == {"a": "b"} and got["ContentType"] == "text/plain", got
s3.upload_fileobj(io.BytesIO(large), "boto", "large")
out = io.BytesIO(); s3.download_fileobj("boto", "large", out)
assert out.getvalue() == large
assert s3.head_object(Bucket="boto", Key="large")["ETag"].strip('"').endswith("-3")
for key in odd:
    s3.put_object(Bucket="boto", Key=key, Body=key.encode())
    assert s3.get_object(Bucket="boto", Key=key)["Body"].read() == key.encode(), key
listed = [o["Key"] for page in s3.get_paginator("list_objects_v2").paginate(Bucket="boto", PaginationConfig={"PageSize": 2})
          for o in page.get("Contents", [])]
assert listed == sorted(odd + ["small", "large"], key=str.encode), listed
s3.copy_object(Bucket="boto", Key="copy", CopySource={"Bucket": "boto", "Key": "large"})
assert s3.get_object(Bucket="boto", Key="copy", Range="bytes=100-199")["Body"].read() == large[100:200]
upload = s3.create_multipart_upload(Bucket="boto", Key="parts")["UploadId"]
part = s3.upload_part_copy(Bucket="boto", Key="parts", UploadId=upload, PartNumber=1, CopySource="boto/large",
                           CopySourceRange="bytes=7-6000006")
s3.upload_part(Bucket="boto", Key="parts", UploadId=upload, PartNumber=2, Body=b"tail")
parts = s3.list_parts(Bucket="boto", Key="parts", UploadId=upload)["Parts"]
assert [p["Size"] for p in parts] == [6000000, 4], parts
assert [u["UploadId"] for u in s3.list_multipart_uploads(Bucket="boto")["Uploads"]] == [upload]
s3.complete_multipart_upload(Bucket="boto", Key="parts", UploadId=upload, MultipartUpload={
    "Parts": [{"PartNumber": p["PartNumber"], "ETag": p["ETag"]} for p in parts]})
assert s3.get_object(Bucket="boto", Key="parts")["Body"].read() == large[7:6000007] + b"tail"
gone = s3.create_multipart_upload(Bucket="boto", Key="gone")["UploadId"]
s3.abort_multipart_upload(Bucket="boto", Key="gone", UploadId=gone)
try:
    s3.upload_part(Bucket="boto", Key="gone", UploadId=gone, PartNumber=1, Body=b"x")
    raise SystemExit("a part of an aborted upload was taken")
except s3.exceptions.ClientError as error:
    assert error.response["Error"]["Code"] == "NoSuchUpload", error
everything = [{"Key": o["Key"]} for o in s3.list_objects_v2(Bucket="boto")["Contents"]]
result = s3.delete_objects(Bucket="boto", Delete={"Objects": everything + [{"Key": "absent"}]})
assert len(result["Deleted"]) == len(everything) + 1 and not result.get("Errors"), result
s3.delete_bucket(Bucket="boto")
'''


def round_trip(name, node):
    """The tests of all clients against one node."""
    small, large = os.urandom(1000), os.urandom(20_000_003)
    small_path, large_path = write(node, "small", small), write(node, "large", large)
    back = os.path.join(node.folder, "back")

    def lane_test(function):
        function.__name__ += "_" + name
        return lane.test(function)

    @lane_test
    def boto3_does_everything():
        need("python3")
        done = subprocess.run(["/usr/bin/python3", "-c", "import boto3"], capture_output=True)
        if done.returncode != 0:
            raise Skip("python3-boto3 is not installed")
        run(["/usr/bin/python3", "-c", BOTO, node.url, *ODD], env=environment(node))

    @lane_test
    def awscli_copies_lists_and_removes():
        aws(node, "mb", "s3://aws")
        aws(node, "cp", small_path, "s3://aws/small")
        aws(node, "cp", large_path, "s3://aws/dir/large")
        aws(node, "cp", "-", "s3://aws/stream", data=large)
        for key, want in (("small", small), ("dir/large", large), ("stream", large)):
            aws(node, "cp", f"s3://aws/{key}", back)
            assert read(back) == want, key
        assert b"PRE dir/" in aws(node, "ls", "s3://aws")
        for key in ODD[1:3]:
            aws(node, "put-object", "--bucket", "aws", "--key", key, "--body", small_path, api="s3api")
        aws(node, "rm", "--recursive", "s3://aws")
        aws(node, "rb", "s3://aws")

    @lane_test
    def rclone_copies_checks_and_purges():
        source = os.path.join(node.folder, "tree")
        os.makedirs(os.path.join(source, "sub"), exist_ok=True)
        for path, data in (("small", small), ("sub/large", large), ("sub/a b+c\u00fc", small)):
            write(node, os.path.join("tree", path), data)
        rclone(node, "copy", source, "ps:rclone/tree")
        rclone(node, "check", "--download", source, "ps:rclone/tree")
        rclone(node, "check", source, "ps:rclone/tree")
        rclone(node, "rcat", "ps:rclone/stream", data=large)
        assert rclone(node, "cat", "ps:rclone/stream") == large
        assert rclone(node, "lsf", "-R", "ps:rclone").count(b"\n") == 6
        rclone(node, "purge", "ps:rclone")

    @lane_test
    def s3cmd_puts_gets_and_deletes():
        s3cmd(node, "mb", "s3://cmd")
        s3cmd(node, "put", small_path, "s3://cmd/small")
        s3cmd(node, "put", "--multipart-chunk-size-mb=5", large_path, "s3://cmd/large")
        for key, want in (("small", small), ("large", large)):
            s3cmd(node, "get", "--force", f"s3://cmd/{key}", back)
            assert read(back) == want, key
        s3cmd(node, "cp", "s3://cmd/small", "s3://cmd/copy")
        assert s3cmd(node, "ls", "s3://cmd").count(b"\n") == 3
        s3cmd(node, "info", "s3://cmd/small")
        s3cmd(node, "del", "--recursive", "--force", "s3://cmd")
        s3cmd(node, "rb", "s3://cmd")


    @lane_test
    def s4cmd_puts_lists_and_gets():
        command = [need("s4cmd"), "--endpoint-url", node.url, "--multipart-split-size", "8388608"]
        aws(node, "mb", "s3://four")
        env = environment(node, {"S3_ACCESS_KEY": KEY, "S3_SECRET_KEY": SECRET})
        run([*command, "put", large_path, "s3://four/large"], env=env)
        assert b"large" in run([*command, "ls", "s3://four/"], env=env)
        run([*command, "get", "--force", "s3://four/large", back], env=env)
        assert read(back) == large
        run([*command, "del", "--recursive", "s3://four/"], env=env)

    @lane_test
    def restic_backs_up_checks_and_restores():
        # restic sends signed chunks (STREAMING-AWS4-HMAC-SHA256-PAYLOAD) over plain HTTP.
        env = environment(node, {"RESTIC_PASSWORD": "x", "RESTIC_REPOSITORY": f"s3:{node.url}/restic",
                                 "RESTIC_CACHE_DIR": os.path.join(node.folder, "cache")})
        restic = need("restic")
        source = os.path.join(node.folder, "backup")
        os.makedirs(source, exist_ok=True)
        write(node, "backup/large", large)
        write(node, "backup/small", small)
        run([restic, "init"], env=env)
        run([restic, "backup", source], env=env)
        run([restic, "check", "--read-data"], env=env)
        run([restic, "restore", "latest", "--target", os.path.join(node.folder, "restored-" + name)], env=env)
        assert read(os.path.join(node.folder, "restored-" + name) + source + "/large") == large


with Node(size="512MiB") as anonymous:
    round_trip("anonymous", anonymous)

    @lane.test
    def awscli_works_without_credentials():
        path = write(anonymous, "nobody", b"nobody")
        base = [need("aws"), "--no-sign-request", "--endpoint-url", anonymous.url, "s3"]
        run([*base, "mb", "s3://nobody"], env=environment(anonymous))
        run([*base, "cp", path, "s3://nobody/key"], env=environment(anonymous))
        assert run([*base, "cp", "s3://nobody/key", "-"], env=environment(anonymous)) == b"nobody"

with Node(size="512MiB", credentials=CREDENTIALS) as authenticated:
    round_trip("signed", authenticated)

    @lane.test
    def a_wrong_secret_and_no_credentials_are_refused():
        assert authenticated.request("GET", "/")[0] == 403
        env = environment(authenticated, {"AWS_SECRET_ACCESS_KEY": "wrong"})
        done = subprocess.run([need("aws"), "--endpoint-url", authenticated.url, "s3", "ls"], env=env, capture_output=True)
        assert done.returncode != 0 and b"SignatureDoesNotMatch" in done.stderr, done.stderr

    @lane.test
    def curl_signs_too():
        if "7.88" in run([need("curl"), "--version"]).decode():
            hashed = ["-H", "x-amz-content-sha256: UNSIGNED-PAYLOAD"]
        else:
            hashed = []
        path = write(authenticated, "curl", b"signed by curl")
        base = [need("curl"), "-sS", "-f", "--aws-sigv4", "aws:amz:us-east-1:s3", "--user", f"{KEY}:{SECRET}", *hashed]
        run([*base, "-X", "PUT", authenticated.url + "/curl"])
        run([*base, "-T", path, authenticated.url + "/curl/a+b~(1)"])
        assert run([*base, authenticated.url + "/curl/a+b~(1)"]) == b"signed by curl"

    PRESIGN = """
import boto3, sys
from botocore.config import Config
url, version, method, key, expires = sys.argv[1:]
s3 = boto3.client("s3", endpoint_url=url, config=Config(signature_version=version, s3={"addressing_style": "path"}))
print(s3.generate_presigned_url(method, Params={"Bucket": "curl", "Key": key}, ExpiresIn=int(expires)))
"""

    def presign(method, key, version="s3v4", expires=60):
        return run(["/usr/bin/python3", "-c", PRESIGN, authenticated.url, version, method, key, str(expires)],
                   env=environment(authenticated)).decode().strip()

    def fetch(*arguments):
        out = run([need("curl"), "-sS", "-w", "\n%{http_code}", *arguments])
        body, _, code = out.rpartition(b"\n")
        return int(code), body

    @lane.test
    def presigned_urls_work_until_they_are_changed():
        path = write(authenticated, "presigned", b"by url")
        assert fetch("-T", path, presign("put_object", "public-a b"))[0] == 200
        url = presign("get_object", "public-a b")
        assert fetch(url) == (200, b"by url")
        for changed in (url.replace("public-a", "public-b"), url.replace("X-Amz-Expires=60", "X-Amz-Expires=61")):
            code, body = fetch(changed)
            assert code == 403 and b"SignatureDoesNotMatch" in body, (code, body)
        code, body = fetch(presign("get_object", "public-a b", version="s3"))
        assert code == 400 and b"AWS4-HMAC-SHA256" in body, (code, body)

    @lane.test
    def a_key_may_do_what_its_policy_says_and_nothing_else():
        def reader(*arguments):
            return subprocess.run([need("aws"), "--endpoint-url", authenticated.url, "s3api", *arguments],
                                  env=environment(authenticated, {"AWS_ACCESS_KEY_ID": "READER"}), capture_output=True)
        path = os.path.join(authenticated.folder, "got")
        done = reader("get-object", "--bucket", "curl", "--key", "public-a b", path)
        assert done.returncode == 0 and read(path) == b"by url", done
        assert reader("list-objects-v2", "--bucket", "curl", "--prefix", "public-").returncode == 0
        for refused in (("list-objects-v2", "--bucket", "curl"), ("get-object", "--bucket", "curl", "--key", "a+b~(1)", path),
                        ("delete-object", "--bucket", "curl", "--key", "public-a b"),
                        ("put-object", "--bucket", "curl", "--key", "public-c"),
                        ("create-bucket", "--bucket", "mine")):
            done = reader(*refused)
            assert done.returncode != 0 and b"AccessDenied" in done.stderr, (refused, done)

lane.close()
