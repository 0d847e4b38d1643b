// SPDX-License-Identifier: Apache-2.0
//
// One operation of the client matrix with the MinIO client for JavaScript; the task comes as JSON on standard input (drivers.py).

const assert = require("assert");
const fs = require("fs");
const { Readable } = require("stream");
const Minio = require("minio");

const task = JSON.parse(fs.readFileSync(0, "utf8"));
const url = new URL(task.url);
const keys = task.anonymous ? {} : { accessKey: task.key, secretKey: task.secret };
const isSecure = url.protocol === "https:";
const connect = (partSize, more) => new Minio.Client({
  endPoint: url.hostname, port: Number(url.port), useSSL: isSecure, region: "us-east-1", pathStyle: true, partSize, ...keys, ...more,
});
const s3 = connect(task.part);
const bucket = task.bucket;

const data = (name) => fs.readFileSync(task.files[name]);
const same = (got, want, what) => assert(Buffer.compare(got, want) === 0, `${what}: ${got.length} of ${want.length} bytes`);
async function all(stream) {
  const got = [];
  for await (const piece of stream) got.push(piece);
  return Buffer.concat(got);
}
const get = async (key) => all(await s3.getObject(bucket, key));

function* pieces(content) {
  for (let at = 0; at < content.length; at += 100001) yield content.subarray(at, at + 100001);
}

const operations = {
  async small() {
    await s3.putObject(bucket, "empty", Buffer.alloc(0));
    await s3.putObject(bucket, "small", data("small"), 1000, { "x-amz-meta-mood": "good", "Content-Type": "text/x-test" });
    const found = await s3.statObject(bucket, "small");
    assert.deepStrictEqual([found.size, found.metaData.mood, found.metaData["content-type"]], [1000, "good", "text/x-test"]);
    same(await get("small"), data("small"), "small");
  },
  async large() {
    const want = data("large");
    await connect(64 << 20).putObject(bucket, "large", want, want.length);
    same(await get("large"), want, "large");
  },
  async multipart() {
    await s3.fPutObject(bucket, "multipart", task.files.large, {});
    same(await get("multipart"), data("large"), "multipart");
  },
  async stream() {
    await s3.putObject(bucket, "stream", Readable.from(pieces(data("large")), { objectMode: false }));
  },
  async ranges() {
    const want = data("large");
    const range = async (begin, end) => all(await s3.getPartialObject(task.shared, "large", begin, end - begin));
    same(await range(100, 7000001), want.subarray(100, 7000001), "range");
    const ranges = [];
    for (let at = 0; at < want.length; at += 1000000) ranges.push(range(at, Math.min(at + 1000000, want.length)));
    same(Buffer.concat(await Promise.all(ranges)), want, "ranges at once");
  },
  async list() {
    const found = [];
    for await (const item of s3.listObjectsV2(task.paging, "", true)) found.push(item.name);
    const first = [];
    for await (const item of s3.listObjects(task.paging, "", true)) first.push(item.name);
    assert.deepStrictEqual(first, found);
    console.log(JSON.stringify(found));
  },
  async delete() {
    await s3.removeObjects(bucket, task.deleted);
  },
  async odd() {
    for (const key of task.odd) {
      await s3.putObject(bucket, key, key);
      same(await get(key), Buffer.from(key), key);
    }
  },
  async overwrite() {
    const got = [];
    let first = true;
    for await (const piece of await s3.getObject(bucket, "busy")) {
      got.push(piece);
      if (first) await s3.putObject(bucket, "busy", data("other"));
      first = false;
    }
    same(Buffer.concat(got), data("large"), "read while overwritten");
    same(await get("busy"), data("other"), "after");
  },
  async early() {
    const codes = [];
    // A connection for each request: nginx ends one whose body it did not read, and this client neither notices in time nor tries again.
    const { Agent } = require(isSecure ? "https" : "http");
    const alone = (partSize) => connect(partSize, { transportAgent: new Agent() });
    for (const body of [data("large"), fs.createReadStream(task.files.large)]) {
      await alone(64 << 20).putObject(task.absent, "k", body, data("large").length).catch((error) => codes.push(error.code));
      await alone(task.part).putObject(bucket, "after", data("small"));
    }
    console.log(JSON.stringify(codes));
  },
};

operations[task.operation]().catch((error) => {
  console.error(error.stack, error.code || "");
  process.exitCode = 1;
});
