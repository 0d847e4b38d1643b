// SPDX-License-Identifier: Apache-2.0
// One client against one node: node clients.mjs sdk|minio URL KEY SECRET. Throws when something is not as S3 has it.
import assert from "node:assert";
import { Readable } from "node:stream";
import { randomBytes } from "node:crypto";

const [client, url, key, secret] = process.argv.slice(2);
const small = randomBytes(1000);
const large = randomBytes(12_000_001);
const odd = ["plain", "a b+c~(1)=d&e", "\u00fcml\u00e4ut/\u4e2d\u6587", "percent%41"];

async function bytes(stream) {
  const pieces = [];
  for await (const piece of stream) pieces.push(piece);
  return Buffer.concat(pieces);
}

async function sdk() {
  const s3 = await import("@aws-sdk/client-s3");
  const { Upload } = await import("@aws-sdk/lib-storage");
  const Bucket = "jssdk";
  const c = new s3.S3Client({ endpoint: url, region: "us-east-1", forcePathStyle: true, maxAttempts: 1,
                              credentials: { accessKeyId: key, secretAccessKey: secret } });
  const get = async (Key, more = {}) => bytes((await c.send(new s3.GetObjectCommand({ Bucket, Key, ...more }))).Body);
  await c.send(new s3.CreateBucketCommand({ Bucket }));
  await c.send(new s3.PutObjectCommand({ Bucket, Key: "small", Body: small, Metadata: { a: "b" } }));
  assert.deepEqual(await get("small"), small);
  await c.send(new s3.PutObjectCommand({ Bucket, Key: "large", Body: large }));
  assert.deepEqual(await get("large", { Range: "bytes=5-1004" }), large.subarray(5, 1005));
  // A stream goes as STREAMING-UNSIGNED-PAYLOAD-TRAILER in HTTP chunks, also without TLS.
  await c.send(new s3.PutObjectCommand({ Bucket, Key: "stream", Body: Readable.from([large]), ContentLength: large.length }));
  assert.deepEqual(await get("stream"), large);
  await new Upload({ client: c, params: { Bucket, Key: "unknown", Body: Readable.from([small, large, small]) } }).done();
  assert.deepEqual(await get("unknown"), Buffer.concat([small, large, small]));
  for (const Key of odd) {
    await c.send(new s3.PutObjectCommand({ Bucket, Key, Body: Key }));
    assert.equal((await get(Key)).toString(), Key);
  }
  const listed = await c.send(new s3.ListObjectsV2Command({ Bucket }));
  assert.equal(listed.KeyCount, odd.length + 4);
  await c.send(new s3.CopyObjectCommand({ Bucket, Key: "copy", CopySource: `${Bucket}/large` }));
  await assert.rejects(c.send(new s3.PutObjectCommand({ Bucket, Key: "small", Body: "x", IfNoneMatch: "*" })),
                       (e) => e.name === "PreconditionFailed");
  await assert.rejects(get("absent"), (e) => e.name === "NoSuchKey");
  const all = (await c.send(new s3.ListObjectsV2Command({ Bucket }))).Contents.map(({ Key }) => ({ Key }));
  const gone = await c.send(new s3.DeleteObjectsCommand({ Bucket, Delete: { Objects: all } }));
  assert.equal(gone.Deleted.length, all.length);
  await c.send(new s3.DeleteBucketCommand({ Bucket }));
}

async function minio() {
  const { Client } = await import("minio");
  const at = new URL(url);
  const c = new Client({ endPoint: at.hostname, port: Number(at.port), useSSL: false, accessKey: key, secretKey: secret });
  const bucket = "miniojs";
  await c.makeBucket(bucket, "us-east-1");
  await c.putObject(bucket, "small", small);
  assert.deepEqual(await bytes(await c.getObject(bucket, "small")), small);
  await c.putObject(bucket, "stream", Readable.from([large, small]));
  assert.deepEqual(await bytes(await c.getObject(bucket, "stream")), Buffer.concat([large, small]));
  for (const name of odd) {
    await c.putObject(bucket, name, Buffer.from(name));
    assert.equal((await bytes(await c.getObject(bucket, name))).toString(), name);
  }
  const names = [];
  for await (const item of c.listObjectsV2(bucket, "", true)) names.push(item.name);
  assert.equal(names.length, odd.length + 2);
  assert.equal((await c.statObject(bucket, "small")).size, small.length);
  await c.removeObjects(bucket, names);
  await c.removeBucket(bucket);
}

await { sdk, minio }[client]();
