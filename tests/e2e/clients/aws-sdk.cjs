// SPDX-License-Identifier: Apache-2.0
//
// One operation of the client matrix with the AWS SDK for JavaScript; the task comes as JSON on standard input (drivers.py, Library).

const assert = require("assert");
const fs = require("fs");
const { Readable } = require("stream");
const {
  S3Client, PutObjectCommand, GetObjectCommand, DeleteObjectsCommand, paginateListObjectsV2,
} = require("@aws-sdk/client-s3");
const { Upload } = require("@aws-sdk/lib-storage");

const task = JSON.parse(fs.readFileSync(0, "utf8"));
const Bucket = task.bucket;
const options = task.anonymous
  ? { signer: { sign: async (request) => request }, credentials: { accessKeyId: "x", secretAccessKey: "x" } }
  : { credentials: { accessKeyId: task.key, secretAccessKey: task.secret } };
const s3 = new S3Client({ endpoint: task.url, region: "us-east-1", forcePathStyle: true, maxAttempts: 1, ...options });

const data = (name) => fs.readFileSync(task.files[name]);
const put = (Key, Body, more) => s3.send(new PutObjectCommand({ Bucket, Key, Body, ...more }));
const ask = (Key, more) => s3.send(new GetObjectCommand({ Bucket, Key, ...more }));
const all = async (answer) => Buffer.from(await answer.Body.transformToByteArray());
const same = (got, want, what) => assert(Buffer.compare(got, want) === 0, `${what}: ${got.length} of ${want.length} bytes`);

// Pieces without a length, and nothing to seek in.
async function* pieces(content) {
  for (let at = 0; at < content.length; at += 100001) yield content.subarray(at, at + 100001);
}

const operations = {
  async small() {
    await put("empty", Buffer.alloc(0));
    await put("small", data("small"), { Metadata: { mood: "good" }, ContentType: "text/x-test" });
    const got = await ask("small");
    assert.deepStrictEqual([got.Metadata.mood, got.ContentType], ["good", "text/x-test"]);
    same(await all(got), data("small"), "small");
  },
  async large() {
    // A stream of known length: the body that this SDK sends in chunks with a trailer.
    await put("large", fs.createReadStream(task.files.large), { ContentLength: data("large").length });
    same(await all(await ask("large", { ChecksumMode: "ENABLED" })), data("large"), "large");
    await put("buffer", data("large"));
    same(await all(await ask("buffer")), data("large"), "buffer");
  },
  async multipart() {
    const params = { Bucket, Key: "multipart", Body: data("large") };
    await new Upload({ client: s3, params, partSize: task.part, queueSize: 3 }).done();
    same(await all(await ask("multipart")), data("large"), "multipart");
  },
  async stream() {
    const params = { Bucket, Key: "stream", Body: Readable.from(pieces(data("large"))) };
    await new Upload({ client: s3, params, partSize: task.part }).done();
  },
  async ranges() {
    const want = data("large");
    const range = async (begin, end) =>
      all(await ask("large", { Bucket: task.shared, Range: `bytes=${begin}-${end - 1}` }));
    same(await range(100, 7000001), want.subarray(100, 7000001), "range");
    const ranges = [];
    for (let at = 0; at < want.length; at += 1000000) ranges.push(range(at, Math.min(at + 1000000, want.length)));
    same(Buffer.concat(await Promise.all(ranges)), want, "ranges at once");
  },
  async list() {
    const keys = [];
    for await (const page of paginateListObjectsV2({ client: s3, pageSize: 100 }, { Bucket: task.paging }))
      keys.push(...page.Contents.map((item) => item.Key));
    console.log(JSON.stringify(keys));
  },
  async delete() {
    const Delete = { Objects: task.deleted.map((Key) => ({ Key })) };
    const done = await s3.send(new DeleteObjectsCommand({ Bucket, Delete }));
    assert(done.Deleted.length === task.deleted.length && !done.Errors, JSON.stringify(done));
  },
  async odd() {
    for (const key of task.odd) {
      await put(key, key);
      same(await all(await ask(key)), Buffer.from(key), key);
    }
  },
  async overwrite() {
    const body = (await ask("busy")).Body;
    const got = [];
    let first = true;
    for await (const piece of body) {
      got.push(piece);
      if (first) await put("busy", data("other"));
      first = false;
    }
    same(Buffer.concat(got), data("large"), "read while overwritten");
    same(await all(await ask("busy")), data("other"), "after");
  },
  async early() {
    const codes = [];
    for (const Body of [data("large"), fs.createReadStream(task.files.large)]) {
      await put("k", Body, { Bucket: task.absent, ContentLength: data("large").length }).catch((error) => codes.push(error.name));
      await put("after", data("small"));
    }
    console.log(JSON.stringify(codes));
  },
};

operations[task.operation]().catch((error) => {
  console.error(error.stack, error.$metadata || "", error.$response ? error.$response.statusCode : "");
  process.exitCode = 1;
});
