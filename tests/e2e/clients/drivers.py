# SPDX-License-Identifier: Apache-2.0
"""How each client does each operation of the matrix. A driver is a class with a method per operation; one that is missing, or
raises NotApplicable, is shown as such with the reason and counted nowhere. Methods raise when something is wrong.

A driver never decides by itself that data is right when the truth (place.py) can be asked.
"""

import base64
import hashlib
import html
import json
import os
import re
import subprocess
import threading
from urllib.parse import quote

from place import ABSENT, KEY, MULTIPART_SIZE, ODD_FILES, ODD_KEYS, PAGING, PAGING_KEYS, READER, SECRET, SHARED

OPERATIONS = {
    "small": "1,000 bytes and none, put and read back",
    "large": "12 MiB in one request, or as the client sends it by itself",
    "multipart": "12 MiB in parts of 5 MiB",
    "stream": "upload of unknown length",
    "ranges": "ranged and parallel reads",
    "list": "1,005 keys in pages",
    "delete": "25 keys at once",
    "odd keys": "space + ~ = @ ( ) % quotes & ; unicode, 1,024 bytes; where the client allows: // first and inside",
    "overwrite": "an object overwritten while it is read: the old bytes or an error, no mixture",
    "early error": "12 MiB to where nothing can be stored: the client shows the server's error code, not a broken connection",
}
DELETED = [f"del/{i:02}" for i in range(20)] + ["del/a b", "del/c+d", "del/e%20f", "del/\u00fc&<x>", "del/g'\"h"]


class NotApplicable(Exception):
    """The client has no such thing; the argument says what it has not."""


class Missing(Exception):
    """The client is not installed."""


def program(name):
    for folder in ("/usr/bin", "/usr/local/bin"):
        path = os.path.join(folder, name)
        if os.access(path, os.X_OK):
            return path
    raise Missing(f"{name} is not installed")


def program_of_release(name):
    """One that not every release has: then nothing could have been installed."""
    try:
        return program(name)
    except Missing:
        known = subprocess.run(["sh", "-c", f"apt-cache show {name} 2>/dev/null"], capture_output=True).stdout
        raise Missing(f"{name} is not installed" if known else f"host: this release has no package {name}")


def run(command, env, data=None, cwd=None, timeout=120):
    done = subprocess.run(command, env=env, input=data, stdin=subprocess.DEVNULL if data is None else None, capture_output=True,
                          timeout=timeout, cwd=cwd)
    assert done.returncode == 0, (f"{' '.join(command[:12])}: status {done.returncode}\n"
                                  f"{done.stdout[-1500:].decode(errors='replace')}\n{done.stderr[-3000:].decode(errors='replace')}")
    return done.stdout


def read(path):
    with open(path, "rb") as f:
        return f.read()


def same(got, want, what):
    assert got == want, (f"{what}: {len(got)} bytes {hashlib.md5(got).hexdigest()}, "
                         f"expected {len(want)} bytes {hashlib.md5(want).hexdigest()}")


class Driver:
    """One client against one transport, with a bucket and a folder of its own. """

    name = ""
    cannot = {}  # transport -> reason

    def __init__(self, place, transport, folder):
        self.place, self.transport, self.folder = place, transport, folder
        self.url, self.truth, self.files, self.data = place.urls[transport], place.truth, place.files, place.data
        self.anonymous = transport == "anonymous"
        self.bucket = f"m-{self.name}-{transport}"
        self.host = self.url.partition("//")[2]
        self.back = os.path.join(folder, "back")
        self.env = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "HOME": folder, "LC_ALL": "C.UTF-8", "TMPDIR": folder,
                    "AWS_DEFAULT_REGION": "us-east-1", "AWS_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true",
                    "AWS_CONFIG_FILE": os.path.join(folder, "aws-config"), "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
                    "RCLONE_CONFIG": "/dev/null", "AWS_RETRY_MODE": "standard", "AWS_MAX_ATTEMPTS": "1"}
        if not self.anonymous:
            self.env.update(AWS_ACCESS_KEY_ID=KEY, AWS_SECRET_ACCESS_KEY=SECRET)
        if self.url.startswith("https"):
            self.env.update(AWS_CA_BUNDLE=place.ca, RCLONE_CA_CERT=place.ca, NODE_EXTRA_CA_CERTS=place.ca)
        with open(self.env["AWS_CONFIG_FILE"], "w") as f:
            f.write(f"[default]\ns3 =\n  addressing_style = path\n  multipart_threshold = 6MB\n"
                    f"  multipart_chunksize = {MULTIPART_SIZE}\n")

    def prepare(self):
        self.truth.call("PUT", self.bucket)

    def stored(self, key, want):
        same(self.truth.get(self.bucket, key), self.data.get(want, want), f"stored {key}")

    def in_parts(self, key):
        etag = self.truth.etag(self.bucket, key)
        assert etag.endswith("-3"), f"ETag {etag} is not that of three parts"

    def fetched(self, want):
        same(read(self.back), self.data[want], "fetched " + want)
        os.unlink(self.back)

    def seed_deletes(self):
        for key in DELETED:
            self.truth.put(self.bucket, key, b"x")
        self.truth.put(self.bucket, "kept", b"x")

    def all_deleted(self):
        left = self.truth.keys(self.bucket)
        assert "kept" in left and not [key for key in left if key.startswith("del/")], left

    def odd_stored(self, also=()):
        have = self.truth.keys(self.bucket)
        for key, content in list(self.place.odd_keys.items()) + [(key, key.encode()) for key in also]:
            assert key in have, f"{key!r} is not there; there is {have}"
            self.stored(key, content)

    def odd_fetched(self, folder):
        for name in ODD_FILES:
            same(read(os.path.join(folder, name)), name.encode(), name)

    def listed(self, keys):
        assert keys == PAGING_KEYS, f"{len(keys)} keys, first {keys[:2]}, last {keys[-2:]}"

    def told(self, command, code, env=None):
        """The client says `code`, at once or between its retries; it is ended as soon as it does."""
        client = subprocess.Popen(command, env=env or self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  cwd=self.folder)
        said = b""
        timer = threading.Timer(60, client.kill)
        timer.start()
        while code.encode() not in said and (piece := client.stdout.read1(65536)):
            said += piece
        timer.cancel()
        client.kill()
        client.communicate()
        assert code.encode() in said, said[-3000:]

    def overwritten_while_piped(self, command, overwrite):
        """The reader is stopped by its full pipe while the object is overwritten."""
        self.truth.put(self.bucket, "busy", self.data["large"])
        reader = subprocess.Popen(command, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  bufsize=0)
        first = reader.stdout.read(10000)
        overwrite()
        rest, errors = reader.communicate(timeout=120)
        self.stored("busy", "other")
        if reader.returncode == 0:
            same(first + rest, self.data["large"], "read while overwritten")
        else:
            assert first == self.data["large"][:len(first)], "the beginning is not of the old object"
            assert re.search(rb"PreconditionFailed|412|Precondition", errors), errors


class Awscli(Driver):
    name = "awscli"

    @classmethod
    def version(cls):
        out = subprocess.run([program("aws"), "--version"], capture_output=True).stdout.decode()
        return out.split()[0].partition("/")[2]

    def aws(self, api, *arguments, data=None):
        return run(self.command(api, *arguments), self.env, data)

    def command(self, api, *arguments):
        sign = ["--no-sign-request"] if self.anonymous else []
        return [program("aws"), "--endpoint-url", self.url, *sign, api, *arguments]

    def object(self, key):
        return f"s3://{self.bucket}/{key}"

    def small(self):
        self.aws("s3", "cp", self.files["empty"], self.object("empty"))
        self.aws("s3", "cp", self.files["small"], self.object("small"))
        self.stored("empty", b"")
        self.stored("small", "small")
        self.aws("s3", "cp", self.object("small"), self.back)
        self.fetched("small")

    def large(self):
        self.aws("s3api", "put-object", "--bucket", self.bucket, "--key", "large", "--body", self.files["large"])
        self.stored("large", "large")
        self.aws("s3api", "get-object", "--bucket", self.bucket, "--key", "large", self.back)
        self.fetched("large")

    def multipart(self):
        self.aws("s3", "cp", self.files["large"], self.object("multipart"))
        self.stored("multipart", "large")
        self.in_parts("multipart")

    def stream(self):
        self.aws("s3", "cp", "-", self.object("stream"), data=self.data["large"])
        self.stored("stream", "large")

    def ranges(self):
        self.aws("s3api", "get-object", "--bucket", SHARED, "--key", "large", "--range", "bytes=100-7000000", self.back)
        same(read(self.back), self.data["large"][100:7000001], "range")
        self.aws("s3", "cp", f"s3://{SHARED}/large", self.back)  # Above the threshold: ranges in parallel, with If-Match
        self.fetched("large")

    def list(self):
        out = self.aws("s3api", "list-objects-v2", "--bucket", PAGING, "--page-size", "100", "--query", "Contents[].Key",
                       "--output", "json")
        self.listed(json.loads(out))

    def delete(self):
        self.seed_deletes()
        wanted = json.dumps({"Objects": [{"Key": key} for key in DELETED]})
        self.aws("s3api", "delete-objects", "--bucket", self.bucket, "--delete", wanted)
        self.all_deleted()

    def odd_keys(self):
        self.aws("s3", "cp", "--recursive", self.place.odd_folder, self.object("odd/"))
        self.odd_stored()
        back = os.path.join(self.folder, "odd-back")
        self.aws("s3", "cp", "--recursive", self.object("odd/"), back)
        self.odd_fetched(back)
        self.aws("s3api", "put-object", "--bucket", self.bucket, "--key", "//lead", "--body", self.files["small"])
        self.stored("//lead", "small")

    def overwrite(self):
        self.overwritten_while_piped(self.command("s3", "cp", self.object("busy"), "-"),
                                     lambda: self.aws("s3", "cp", self.files["other"], self.object("busy")))

    def early_error(self):
        self.told(self.command("s3api", "put-object", "--bucket", ABSENT, "--key", "k", "--body", self.files["large"]), "NoSuchBucket")


class Rclone(Driver):
    name = "rclone"

    @classmethod
    def version(cls):
        return subprocess.run([program("rclone"), "version"], capture_output=True).stdout.decode().split()[1].lstrip("v")

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.env.update(RCLONE_CONFIG_PS_TYPE="s3", RCLONE_CONFIG_PS_PROVIDER="Other", RCLONE_CONFIG_PS_ENDPOINT=self.url,
                        RCLONE_S3_CHUNK_SIZE="5M", RCLONE_S3_UPLOAD_CUTOFF="5M", RCLONE_RETRIES="1")
        self.env.pop("AWS_CA_BUNDLE", None)  # Its SDK stumbles over it; RCLONE_CA_CERT is what it takes.
        if not self.anonymous:
            self.env.update(RCLONE_CONFIG_PS_ACCESS_KEY_ID=KEY, RCLONE_CONFIG_PS_SECRET_ACCESS_KEY=SECRET)

    def rclone(self, *arguments, data=None):
        return run([program("rclone"), *arguments], self.env, data)

    def object(self, key, bucket=None):
        return f"ps:{bucket or self.bucket}/{key}"

    def small(self):
        for name in ("empty", "small"):
            self.rclone("copyto", self.files[name], self.object(name))
            self.stored(name, name)
        self.rclone("copyto", self.object("small"), self.back)
        self.fetched("small")

    def large(self):
        self.rclone("copyto", "--s3-upload-cutoff", "200M", self.files["large"], self.object("large"))
        self.stored("large", "large")
        self.rclone("copyto", self.object("large"), self.back)
        self.fetched("large")

    def multipart(self):
        self.rclone("copyto", self.files["large"], self.object("multipart"))
        self.stored("multipart", "large")
        self.in_parts("multipart")

    def stream(self):
        self.rclone("rcat", self.object("stream"), data=self.data["large"])
        self.stored("stream", "large")

    def ranges(self):
        out = self.rclone("cat", "--offset", "100", "--count", "7000000", self.object("large", SHARED))
        same(out, self.data["large"][100:7000100], "range")
        self.rclone("copyto", "--multi-thread-streams", "4", "--multi-thread-cutoff", "1M", self.object("large", SHARED), self.back)
        self.fetched("large")

    def list(self):
        out = self.rclone("lsf", "-R", "--files-only", "--s3-list-chunk", "100", "ps:" + PAGING)
        self.listed(sorted(out.decode().split()))

    def delete(self):
        self.seed_deletes()
        self.rclone("delete", self.object("del"))
        self.all_deleted()

    def odd_keys(self):
        self.rclone("copy", self.place.odd_folder, self.object("odd"))
        self.odd_stored()
        back = os.path.join(self.folder, "odd-back")
        self.rclone("copy", self.object("odd"), back)
        self.odd_fetched(back)

    def overwrite(self):
        self.overwritten_while_piped([program("rclone"), "cat", self.object("busy")],
                                     lambda: self.rclone("copyto", self.files["other"], self.object("busy")))

    def early_error(self):
        self.told([program("rclone"), "copyto", "--s3-no-check-bucket", "--s3-upload-cutoff", "200M", "--low-level-retries", "1",
                   self.files["large"], self.object("k", ABSENT)], "NoSuchBucket")


class S3cmd(Driver):
    name = "s3cmd"
    cannot = {"anonymous": "s3cmd demands keys"}

    @classmethod
    def version(cls):
        return subprocess.run([program("s3cmd"), "--version"], capture_output=True).stdout.decode().split()[-1]

    def command(self, *arguments):
        secure = ["--ssl", "--ca-certs", self.place.ca] if self.url.startswith("https") else ["--no-ssl"]
        return [program("s3cmd"), "-c", "/dev/null", *secure, "--access_key", KEY, "--secret_key", SECRET, "--host", self.host,
                "--host-bucket", self.host, "--region", "us-east-1", "--no-progress", *arguments]

    def s3cmd(self, *arguments, data=None):
        return run(self.command(*arguments), self.env, data)

    def object(self, key):
        return f"s3://{self.bucket}/{key}"

    def small(self):
        for name in ("empty", "small"):
            self.s3cmd("put", self.files[name], self.object(name))
            self.stored(name, name)
        self.s3cmd("get", self.object("small"), self.back)
        self.fetched("small")

    def large(self):
        self.s3cmd("put", "--disable-multipart", self.files["large"], self.object("large"))
        self.stored("large", "large")
        self.s3cmd("get", self.object("large"), self.back)
        self.fetched("large")

    def multipart(self):
        self.s3cmd("put", "--multipart-chunk-size-mb=5", self.files["large"], self.object("multipart"))
        self.stored("multipart", "large")
        self.in_parts("multipart")

    def stream(self):
        self.s3cmd("put", "--multipart-chunk-size-mb=5", "-", self.object("stream"), data=self.data["large"])
        self.stored("stream", "large")

    def ranges(self):
        with open(self.back, "wb") as f:
            f.write(self.data["large"][:5000001])
        self.s3cmd("get", "--continue", f"s3://{SHARED}/large", self.back)
        self.fetched("large")

    def list(self):
        out = self.s3cmd("ls", "-r", f"s3://{PAGING}/").decode()
        self.listed([line.partition(f"s3://{PAGING}/")[2] for line in out.splitlines()])

    def delete(self):
        self.seed_deletes()
        self.s3cmd("del", "-r", "-f", self.object("del/"))
        self.all_deleted()

    def odd_keys(self):
        self.s3cmd("put", "-r", self.place.odd_folder + "/", self.object("odd/"))
        self.odd_stored()
        back = os.path.join(self.folder, "odd-back")
        os.mkdir(back)
        self.s3cmd("get", "-r", self.object("odd/"), back + "/")
        self.odd_fetched(back)

    def overwrite(self):
        self.overwritten_while_piped(self.command("get", "--quiet", self.object("busy"), "-"),
                                     lambda: self.s3cmd("put", self.files["other"], self.object("busy")))

    def early_error(self):
        self.told(self.command("put", "--disable-multipart", self.files["large"], f"s3://{ABSENT}/k"), "NoSuchBucket")


class S4cmd(Driver):
    name = "s4cmd"
    cannot = {"anonymous": "s4cmd demands keys"}

    @classmethod
    def version(cls):
        return subprocess.run([program("s4cmd"), "--version"], capture_output=True).stdout.decode().split()[-1]

    def s4cmd(self, *arguments):
        self.env.update(S3_ACCESS_KEY=KEY, S3_SECRET_KEY=SECRET)
        return run([program("s4cmd"), "--endpoint-url", self.url, "-c", "4", "-t", "1", *arguments], self.env, cwd=self.folder)

    def object(self, key):
        return f"s3://{self.bucket}/{key}"

    def small(self):
        for name in ("empty", "small"):
            self.s4cmd("put", self.files[name], self.object(name))
            self.stored(name, name)
        self.s4cmd("get", self.object("small"), self.back)
        self.fetched("small")

    def large(self):
        self.s4cmd("put", self.files["large"], self.object("large"))
        self.stored("large", "large")
        self.s4cmd("get", self.object("large"), self.back)
        self.fetched("large")

    def multipart(self):
        self.s4cmd("put", f"--multipart-split-size={MULTIPART_SIZE}", f"--max-singlepart-upload-size={MULTIPART_SIZE}",
                   self.files["large"], self.object("multipart"))
        self.stored("multipart", "large")
        self.in_parts("multipart")

    def stream(self):
        raise NotApplicable("s4cmd sends files only")

    def ranges(self):
        self.s4cmd("get", "--multipart-split-size=1000000", "--max-singlepart-download-size=1000000", f"s3://{SHARED}/large",
                   self.back)
        self.fetched("large")

    def list(self):
        out = self.s4cmd("ls", "-r", f"s3://{PAGING}/").decode()
        self.listed(sorted(line.partition(f"s3://{PAGING}/")[2] for line in out.splitlines() if "s3://" in line))

    def delete(self):
        self.seed_deletes()
        self.s4cmd("del", "-r", self.object("del/"))
        self.all_deleted()

    def odd_keys(self):
        self.s4cmd("put", "-r", self.place.odd_folder, self.object(""))
        self.odd_stored()
        os.mkdir(os.path.join(self.folder, "odd-back"))
        self.s4cmd("get", "-r", self.object("odd/*"), "odd-back/")
        self.odd_fetched(os.path.join(self.folder, "odd-back"))

    def overwrite(self):
        raise NotApplicable("s4cmd cannot be stopped half-way, and asks for ranges without If-Match")

    def early_error(self):
        self.env.update(S3_ACCESS_KEY=KEY, S3_SECRET_KEY=SECRET)
        self.told([program("s4cmd"), "--endpoint-url", self.url, "-t", "1", "put", self.files["large"], f"s3://{ABSENT}/k"], "NoSuchBucket")


class Restic(Driver):
    name = "restic"

    @classmethod
    def version(cls):
        return subprocess.run([program("restic"), "version"], capture_output=True).stdout.decode().split()[1]

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.env["RESTIC_PASSWORD"] = "secret"
        self.env["RESTIC_CACHE_DIR"] = os.path.join(self.folder, "cache")

    def restic(self, *arguments, data=None):
        secure = ["--cacert", self.place.ca] if self.url.startswith("https") else []
        if self.anonymous and tuple(map(int, self.version().split(".")[:2])) >= (0, 17):
            secure += ["-o", "s3.unsafe-anonymous-auth=true"]  # Older ones know no such option and go without keys by themselves.
        return run([program("restic"), "-r", f"s3:{self.url}/{self.bucket}/repo", "--no-cache", *secure, *arguments], self.env, data)

    def small(self):
        self.restic("init")
        self.restic("backup", "--tag", "small", self.files["small"])
        same(self.restic("dump", "latest", self.files["small"]), self.data["small"], "small")

    def large(self):
        self.restic("backup", "--tag", "large", self.files["large"])
        self.restic("check", "--read-data")

    def multipart(self):
        raise NotApplicable("restic writes packs of at most 16 MiB, each in one request of signed chunks")

    def stream(self):
        self.restic("backup", "--stdin", "--stdin-filename", "stream", "--tag", "stream", data=self.data["other"])
        same(self.restic("dump", "--tag", "stream", "latest", "/stream"), self.data["other"], "stream")

    def ranges(self):
        back = os.path.join(self.folder, "restored")
        self.restic("restore", "latest", "--tag", "large", "--target", back)
        same(read(back + self.files["large"]), self.data["large"], "restored")

    def list(self):
        listed = sorted(self.restic("list", "packs").decode().split())
        stored = sorted(key.rpartition("/")[2] for key in self.truth.keys(self.bucket, "repo/data/"))
        assert listed and [name[:64] for name in listed] == stored, (listed, stored)

    def delete(self):
        before = len(self.truth.keys(self.bucket, "repo/data/"))
        for snapshot in json.loads(self.restic("snapshots", "--json", "--tag", "stream")):
            self.restic("forget", snapshot["id"])
        self.restic("prune", "--max-unused", "0")
        self.restic("check")
        assert len(self.truth.keys(self.bucket, "repo/data/")) < before

    def odd_keys(self):
        raise NotApplicable("restic names objects by hash")

    def overwrite(self):
        raise NotApplicable("restic never overwrites")

    def early_error(self):
        """It makes its bucket by itself; so a key that may write nothing but locks."""
        if self.anonymous:
            raise NotApplicable("restic makes its bucket by itself, and without keys nothing is forbidden")
        self.restic("backup", "--tag", "error", self.files["small"])
        secure = ["--cacert", self.place.ca] if self.url.startswith("https") else []
        self.told([program("restic"), "-r", f"s3:{self.url}/{self.bucket}/repo", "--no-cache", *secure, "backup", self.files["other"]],
                  "Access denied", env=dict(self.env, AWS_ACCESS_KEY_ID=READER))


class Curl(Driver):
    """A request at a time, as a script would: signed by curl itself, or not at all on the anonymous listener."""

    name = "curl"

    @classmethod
    def version(cls):
        return subprocess.run([program("curl"), "--version"], capture_output=True).stdout.decode().split()[1]

    def command(self, *arguments):
        sign = []
        if not self.anonymous:
            # Curl before 8 signs no payload hash by itself.
            sign = ["--aws-sigv4", "aws:amz:us-east-1:s3", "--user", f"{KEY}:{SECRET}", "-H", "x-amz-content-sha256: UNSIGNED-PAYLOAD"]
        secure = ["--cacert", self.place.ca] if self.url.startswith("https") else []
        return [program("curl"), "-sS", "--fail-with-body", "-g", *sign, *secure, *arguments]

    def curl(self, *arguments, data=None):
        return run(self.command(*arguments), self.env, data)

    def object(self, key, bucket=None):
        return f"{self.url}/{bucket or self.bucket}/{quote(key, safe='/~')}"

    def small(self):
        for name in ("empty", "small"):
            self.curl("-T", self.files[name], self.object(name))
            self.stored(name, name)
        same(self.curl(self.object("small")), self.data["small"], "small")
        self.curl("-X", "PUT", "--data-binary", "@" + self.files["small"], self.object("binary"))
        self.stored("binary", "small")

    def large(self):
        self.curl("-T", self.files["large"], self.object("large"))
        self.stored("large", "large")
        self.curl("-H", "Expect:", "-T", self.files["large"], self.object("unexpected"))
        self.stored("unexpected", "large")
        same(self.curl(self.object("large")), self.data["large"], "large")

    def multipart(self):
        upload = html.unescape(re.search(rb"<UploadId>(.*)</UploadId>", self.curl(
            "-X", "POST", self.object("multipart") + "?uploads=")).group(1).decode())
        parts = ""
        for number in (1, 2, 3):
            piece = self.data["large"][(number - 1) * MULTIPART_SIZE:number * MULTIPART_SIZE]
            heads = self.curl("-D", "-", "-X", "PUT", "--data-binary", "@-",
                              self.object("multipart") + f"?partNumber={number}&uploadId={upload}", data=piece).decode()
            etag = re.search(r"(?im)^etag: *(\S+)", heads).group(1)
            parts += f"<Part><PartNumber>{number}</PartNumber><ETag>{html.escape(etag)}</ETag></Part>"
        self.curl("-X", "POST", "--data-binary", f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>",
                  self.object("multipart") + f"?uploadId={upload}")
        self.stored("multipart", "large")
        self.in_parts("multipart")

    def stream(self):
        self.curl("-T", "-", self.object("stream"), data=self.data["large"])
        self.stored("stream", "large")

    def ranges(self):
        same(self.curl("-r", "100-7000000", self.object("large", SHARED)), self.data["large"][100:7000001], "range")
        same(self.curl("-r", "-5", self.object("large", SHARED)), self.data["large"][-5:], "suffix")
        quarter = len(self.data["large"]) // 4
        readers = [subprocess.Popen(self.command("-r", f"{i * quarter}-{(i + 1) * quarter - 1 if i < 3 else ''}",
                                                 self.object("large", SHARED)), env=self.env, stdout=subprocess.PIPE)
                   for i in range(4)]
        same(b"".join(reader.communicate()[0] for reader in readers), self.data["large"], "four ranges at once")

    def list(self):
        keys, token = [], ""
        while True:
            answer = self.curl(f"{self.url}/{PAGING}?{token}list-type=2&max-keys=400").decode()
            keys += re.findall("<Key>(.*?)</Key>", answer)
            found = re.search("<NextContinuationToken>(.*?)</NextContinuationToken>", answer)
            if not found:
                break
            token = f"continuation-token={found.group(1).replace('/', '%2F').replace('+', '%2B').replace('=', '%3D')}&"
        self.listed(keys)

    def delete(self):
        self.seed_deletes()
        body = "<Delete>" + "".join(f"<Object><Key>{html.escape(key)}</Key></Object>" for key in DELETED) + "</Delete>"
        md5 = base64.b64encode(hashlib.md5(body.encode()).digest()).decode()
        self.curl("-X", "POST", "-H", f"Content-MD5: {md5}", "--data-binary", body, f"{self.url}/{self.bucket}?delete=")
        self.all_deleted()

    def odd_keys(self):
        for key, content in list(self.place.odd_keys.items()) + [(key, key.encode()) for key in ODD_KEYS]:
            self.curl("-X", "PUT", "--data-binary", "@-", self.object(key), data=content)
            same(self.curl(self.object(key)), content, key)
        self.odd_stored(ODD_KEYS)
        # As people type it: sub-delimiters are not escaped in the path.
        self.curl("-X", "PUT", "--data-binary", "x", f"{self.url}/{self.bucket}/typed/a+b~(1)=@:c")
        self.stored("typed/a+b~(1)=@:c", b"x")

    def overwrite(self):
        self.overwritten_while_piped(self.command(self.object("busy")),
                                     lambda: self.curl("-T", self.files["other"], self.object("busy")))

    def early_error(self):
        for more in ([], ["-H", "Expect:"]):
            self.told(self.command(*more, "-T", self.files["large"], self.object("k", ABSENT)), "NoSuchBucket")


class Minio(Driver):
    """MinIO's client, Debian's minio-client."""

    name = "minio-client"

    @classmethod
    def version(cls):
        program_of_release("minio-client")
        out = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", "minio-client"], capture_output=True).stdout.decode()
        return out.partition("-")[0].rpartition("~")[2] or "?"  # 0.0~DATE-REVISION

    def __init__(self, *arguments):
        super().__init__(*arguments)
        scheme, _, host = self.url.partition("://")
        keys = "" if self.anonymous else f"{KEY}:{SECRET}@"
        self.env.update({"MC_HOST_ps": f"{scheme}://{keys}{host}", "MC_CONFIG_DIR": os.path.join(self.folder, "mc"),
                         "MC_QUIET": "true", "MC_NO_COLOR": "true", "MC_DISABLE_PAGER": "true"})
        if scheme == "https":
            self.env["SSL_CERT_FILE"] = self.place.ca

    def command(self, *arguments):
        return [program("minio-client"), *arguments]

    def mc(self, *arguments, data=None):
        return run(self.command(*arguments), self.env, data)

    def object(self, key, bucket=None):
        return f"ps/{bucket or self.bucket}/{key}"

    def small(self):
        for name in ("empty", "small"):
            self.mc("cp", self.files[name], self.object(name))
            self.stored(name, name)
        self.mc("cp", "--checksum", "CRC32C", self.files["small"], self.object("summed"))
        self.stored("summed", "small")
        self.mc("cp", self.object("small"), self.back)
        self.fetched("small")
        self.mc("cp", self.object("small"), self.object("copied"))
        self.stored("copied", "small")

    def large(self):
        self.mc("put", "--disable-multipart", self.files["large"], self.object("large"))
        self.stored("large", "large")
        self.mc("get", self.object("large"), self.back)
        self.fetched("large")

    def multipart(self):
        self.mc("put", "--part-size", "5MiB", self.files["large"], self.object("multipart"))
        self.stored("multipart", "large")
        self.in_parts("multipart")

    def stream(self):
        self.mc("pipe", self.object("stream"), data=self.data["large"])
        self.stored("stream", "large")

    def ranges(self):
        same(self.mc("cat", "--offset", "100", self.object("large", SHARED)), self.data["large"][100:], "from an offset")
        same(self.mc("cat", "--tail", "5", self.object("large", SHARED)), self.data["large"][-5:], "tail")

    def list(self):
        out = self.mc("--json", "ls", "--recursive", "ps/" + PAGING)
        self.listed([json.loads(line)["key"] for line in out.decode().splitlines()])

    def delete(self):
        self.seed_deletes()
        self.mc("rm", "--recursive", "--force", self.object("del/"))
        self.all_deleted()

    def odd_keys(self):
        self.mc("cp", "--recursive", self.place.odd_folder + "/", self.object("odd/"))
        self.odd_stored()
        back = os.path.join(self.folder, "odd-back")
        self.mc("cp", "--recursive", self.object("odd/"), back)
        self.odd_fetched(back)

    def overwrite(self):
        self.overwritten_while_piped(self.command("cat", self.object("busy")),
                                     lambda: self.mc("cp", self.files["other"], self.object("busy")))

    def early_error(self):
        # Its own words for NoSuchBucket.
        self.told(self.command("put", "--disable-multipart", self.files["large"], self.object("k", ABSENT)),
                  f"Bucket `{ABSENT}` does not exist")


class Libs3(Driver):
    """Signs with version 2 only: what matters is that it is told so."""

    name = "libs3"
    cannot = {"anonymous": "the refusal needs a signature"}

    @classmethod
    def version(cls):
        program("s3")
        out = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", "libs3-2"], capture_output=True).stdout.decode()
        return out.partition("-")[0] or "?"

    def small(self):
        env = dict(self.env, S3_ACCESS_KEY_ID=KEY, S3_SECRET_ACCESS_KEY=SECRET, S3_HOSTNAME=self.host)
        if self.url.startswith("https"):
            raise NotApplicable("libs3 takes no certificate authority of its own")
        done = subprocess.run([program("s3"), "-u", "put", f"{self.bucket}/small", "filename=" + self.files["small"]], env=env,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
        said = done.stdout + done.stderr
        assert b"ERROR" in said and b"AWS4-HMAC-SHA256" in said, said
        assert self.truth.keys(self.bucket) == []
        return "refused"

    def other(self):
        raise NotApplicable("libs3 signs with version 2 only, which is refused with a message that names version 4")

    large = multipart = stream = ranges = list = delete = odd_keys = overwrite = early_error = other


class Library(Driver):
    """A script does the operations through a library, one process each, told what to do as JSON; the truth is asked here."""

    command = []

    def call(self, operation):
        task = {"operation": operation, "url": self.url, "bucket": self.bucket, "shared": SHARED, "paging": PAGING,
                "key": KEY, "secret": SECRET, "anonymous": self.anonymous, "files": self.files, "part": MULTIPART_SIZE,
                "deleted": DELETED, "odd": list(self.place.odd_keys) + ODD_KEYS,
                "paging_first": PAGING_KEYS[0], "paging_count": len(PAGING_KEYS), "absent": ABSENT}
        return run(self.command, self.env, json.dumps(task).encode())

    def small(self):
        self.call("small")
        self.stored("small", "small")
        self.stored("empty", b"")

    def large(self):
        self.call("large")
        self.stored("large", "large")

    def multipart(self):
        self.call("multipart")
        self.stored("multipart", "large")
        self.in_parts("multipart")

    def stream(self):
        self.call("stream")
        self.stored("stream", "large")

    def ranges(self):
        self.call("ranges")

    def list(self):
        self.listed(json.loads(self.call("list")))

    def delete(self):
        self.seed_deletes()
        self.call("delete")
        self.all_deleted()

    def odd_keys(self):
        self.call("odd")
        for key in list(self.place.odd_keys) + ODD_KEYS:
            self.stored(key, key.encode())
        assert sorted(k for k in self.truth.keys(self.bucket) if k.startswith(("odd/", "/"))) == sorted(
            list(self.place.odd_keys) + ODD_KEYS)

    def overwrite(self):
        self.truth.put(self.bucket, "busy", self.data["large"])
        self.call("overwrite")
        self.stored("busy", "other")

    def early_error(self):
        """Twice, and each time with a good request behind it: nothing of a refused body may be taken for that."""
        codes = json.loads(self.call("early"))
        assert codes == ["NoSuchBucket"] * 2, codes
        self.stored("after", "small")


class Boto3(Library):
    name = "boto3"
    command = ["/usr/bin/python3", os.path.join(os.path.dirname(os.path.abspath(__file__)), "boto.py")]

    @classmethod
    def version(cls):
        done = subprocess.run(["/usr/bin/python3", "-c", "import boto3; print(boto3.__version__)"], capture_output=True)
        if done.returncode != 0:
            raise Missing("python3-boto3 is not installed")
        return done.stdout.decode().strip()


def npm_version(package):
    program("node")
    folder = os.environ.get("E2E_NPM", "")
    try:
        with open(os.path.join(folder, "node_modules", package, "package.json")) as f:
            return json.load(f)["version"]
    except OSError:
        raise Missing(f"{package} is not installed (npm ci)")


class NodeLibrary(Library):
    cannot = {}

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.env["NODE_PATH"] = os.path.join(os.environ["E2E_NPM"], "node_modules")


class AwsSdk(NodeLibrary):
    name = "aws-sdk-js"
    command = ["/usr/bin/node", os.path.join(os.path.dirname(os.path.abspath(__file__)), "aws-sdk.cjs")]

    @classmethod
    def version(cls):
        return npm_version("@aws-sdk/client-s3")


class MinioJs(NodeLibrary):
    name = "minio-js"
    command = ["/usr/bin/node", os.path.join(os.path.dirname(os.path.abspath(__file__)), "minio.cjs")]

    @classmethod
    def version(cls):
        return npm_version("minio")


DRIVERS = [Awscli, Boto3, Rclone, S3cmd, S4cmd, Restic, Curl, AwsSdk, MinioJs, Minio, Libs3]
