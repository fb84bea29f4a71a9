// What forkd does not have is refused in words, at once, and leaves nothing behind.

import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Sandbox, Secret, SecretError, Volume, VolumeError } from 'e2b'
import { api, failure, key, unique } from './lib.mjs'

const refused = (error, kind) => {
  assert.ok(error instanceof kind, `${error.name}: ${error.message}`)
  assert.match(error.message, /support/)
}

test('volumes', async () => {
  for (const call of [
    () => Volume.create('v'), () => Volume.list(), () => Volume.connect('v'), () => Volume.getInfo('v'), () => Volume.destroy('v'),
  ]) refused(await failure(call()), VolumeError)
  const box = await Sandbox.create({ volumeMounts: { '/v': 'v' } }).catch((error) => error)
  refused(box, Error)
})

test('the content of volumes', async () => {
  const volume = new Volume('v', 'name', key)
  assert.deepEqual([volume.volumeId, volume.name, volume.token], ['v', 'name', key])
  const opts = { apiUrl: process.env.E2B_API_URL }
  for (const call of [
    () => volume.list('/', opts), () => volume.makeDir('/d', opts), () => volume.getInfo('/d', opts), () => volume.exists('/d', opts),
    () => volume.updateMetadata('/d', { mode: 0o700 }, opts), () => volume.readFile('/f', opts), () => volume.writeFile('/f', 'x', opts),
    () => volume.remove('/f', opts),
  ]) assert.match((await failure(call())).message, /support/, String(call))
})

test('secrets', async () => {
  for (const call of [
    () => Secret.create('s', 'value'), () => Secret.update('s', 'value'), () => Secret.getInfo('s'), () => Secret.list().nextItems(),
    () => Secret.exists('s'), () => Secret.destroy('s'),
  ]) refused(await failure(call()), SecretError)
  assert.equal(Secret.fill('s'), '${e2b.secrets.s}')
  const token = Secret.iamToken({ audience: 'a', tokenType: 'JWT-SVID' })
  refused(await failure(Sandbox.create({ iam: { tokens: { token } } })), Error)
})

test('an MCP gateway, egress proxies and rules for requests', async () => {
  const run = unique()
  for (const opts of [
    { mcp: { exa: {} } }, { network: { egressProxy: { address: 'proxy.example.com:1080' } } },
    { network: { rules: { 'api.example.com': [{ transform: { headers: { A: 'b' } } }] } } },
  ]) refused(await failure(Sandbox.create({ metadata: { run }, ...opts })), Error)
  assert.deepEqual(await Sandbox.list({ query: { metadata: { run } } }).nextItems(), [])
})

test('a pause without memory', async (t) => {
  const box = await Sandbox.create()
  t.after(() => box.kill())
  refused(await failure(box.pause({ keepMemory: false })), Error)
  refused(await failure(Sandbox.create({ lifecycle: { onTimeout: { action: 'pause', keepMemory: false } } })), Error)
  assert.equal((await box.getInfo()).state, 'running')
})

test('routes that nobody knows', async () => {
  for (const [method, path] of [['GET', '/volumes'], ['POST', '/volumes'], ['GET', '/secrets'], ['GET', '/volumecontent/v/path']]) {
    const answer = await api(method, path, method === 'POST' ? {} : undefined)
    assert.ok([400, 501].includes(answer.status), `${path}: ${answer.status} ${answer.text}`)
    assert.equal(answer.json.code, answer.status)
  }
})
