# SPDX-License-Identifier: Apache-2.0
"""One operation of the client matrix with boto3; the task comes as JSON on standard input (drivers.py, Library)."""

import io
import json
import sys

import boto3
from boto3.s3.transfer import TransferConfig
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import ClientError

task = json.load(sys.stdin)
bucket, files = task["bucket"], task["files"]
options = dict(signature_version=UNSIGNED) if task["anonymous"] else {}
s3 = boto3.client("s3", endpoint_url=task["url"], config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 0}, **options))
parts = TransferConfig(multipart_threshold=task["part"], multipart_chunksize=task["part"], max_concurrency=4)


def data(name):
    with open(files[name], "rb") as f:
        return f.read()


def get(key, name=bucket, **more):
    return s3.get_object(Bucket=name, Key=key, **more)["Body"].read()


class Endless(io.RawIOBase):
    """Can neither seek nor tell its size."""

    def __init__(self, content):
        self.content = io.BytesIO(content)

    def readable(self):
        return True

    def read(self, size=-1):
        return self.content.read(size)


def small():
    s3.put_object(Bucket=bucket, Key="empty", Body=b"")
    s3.put_object(Bucket=bucket, Key="small", Body=data("small"), Metadata={"mood": "good"}, ContentType="text/x-test")
    got = s3.get_object(Bucket=bucket, Key="small")
    assert got["Body"].read() == data("small")
    assert got["Metadata"] == {"mood": "good"} and got["ContentType"] == "text/x-test", got


def large():
    with open(files["large"], "rb") as f:
        s3.put_object(Bucket=bucket, Key="large", Body=f)
    assert get("large") == data("large")


def multipart():
    s3.upload_file(files["large"], bucket, "multipart", Config=parts)
    out = io.BytesIO()
    s3.download_fileobj(bucket, "multipart", out, Config=parts)
    assert out.getvalue() == data("large")


def stream():
    s3.upload_fileobj(Endless(data("large")), bucket, "stream", Config=parts)


def ranges():
    want = data("large")
    assert get("large", task["shared"], Range="bytes=100-7000000") == want[100:7000001]
    assert get("large", task["shared"], Range="bytes=-5") == want[-5:]
    out = io.BytesIO()
    config = TransferConfig(multipart_threshold=1000000, multipart_chunksize=1000000, max_concurrency=8)
    s3.download_fileobj(task["shared"], "large", out, Config=config)
    assert out.getvalue() == want


def list_():
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=task["paging"], PaginationConfig={"PageSize": 100})
    second = [item["Key"] for item in pages.search("Contents[]")]
    pages = s3.get_paginator("list_objects").paginate(Bucket=task["paging"], PaginationConfig={"PageSize": 300})
    assert [item["Key"] for item in pages.search("Contents[]")] == second, "the two listings differ"
    print(json.dumps(second))


def delete():
    done = s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": key} for key in task["deleted"]]})
    assert len(done["Deleted"]) == len(task["deleted"]) and not done.get("Errors"), done


def odd():
    for key in task["odd"]:
        s3.put_object(Bucket=bucket, Key=key, Body=key.encode())
        assert get(key) == key.encode(), key


def overwrite():
    body = s3.get_object(Bucket=bucket, Key="busy")["Body"]
    first = body.read(10000)
    s3.put_object(Bucket=bucket, Key="busy", Body=data("other"))
    assert first + body.read() == data("large")
    assert get("busy") == data("other")


def early():
    codes = []
    for _ in range(2):
        try:
            with open(files["large"], "rb") as f:
                s3.put_object(Bucket=task["absent"], Key="k", Body=f)
        except ClientError as error:
            codes.append(error.response["Error"]["Code"])
        s3.put_object(Bucket=bucket, Key="after", Body=data("small"))
    print(json.dumps(codes))


{"small": small, "large": large, "multipart": multipart, "stream": stream, "ranges": ranges, "list": list_, "delete": delete,
 "odd": odd, "overwrite": overwrite, "early": early}[task["operation"]]()
