import assert from 'node:assert/strict'
import { after, test } from 'node:test'
import {
  ALL_TRAFFIC, ApiClient, AuthenticationError, ConnectionConfig, NotFoundError, Sandbox as Core, SandboxError,
  SandboxNotFoundError, TimeoutError,
} from 'e2b'
import { E2B, Sandbox } from '@e2b/code-interpreter'
import { slowness } from './clock.mjs'
import { address, api, failure, key, own, release, shared, sleep, unique, until } from './lib.mjs'

after(release)

async function pages(paginator) {
  const all = []
  while (paginator.hasNext) all.push(await paginator.nextItems())
  return all
}
const listed = async (query) => (await pages(Sandbox.list({ query }))).flat()

test('creates with metadata, variables and a lifetime', async (t) => {
  const metadata = { user: unique(), 'odd key': 'ü & = ?' }
  const before = Date.now()
  const box = await own(t, { metadata, envs: { GREETING: 'hello world' }, timeoutMs: 90_000 })
  assert.match(box.sandboxId, /^[a-z0-9]+$/)
  const info = await box.getInfo()
  assert.equal(info.sandboxId, box.sandboxId)
  assert.deepEqual(info.metadata, metadata)
  assert.equal(info.state, 'running')
  assert.ok(info.templateId)
  assert.ok(info.cpuCount >= 1 && info.memoryMB >= 64, JSON.stringify(info))
  assert.match(info.envdVersion, /^\d+\.\d+\.\d+$/)
  assert.ok(Math.abs(info.startedAt - before) < 30_000, `started at ${info.startedAt}`)
  assert.ok(Math.abs(info.endAt - info.startedAt - 90_000) < 5_000, `ends at ${info.endAt}`)
  assert.deepEqual(info.lifecycle, { onTimeout: 'kill', autoResume: false })
  assert.equal((await box.commands.run('echo "$GREETING"')).stdout, 'hello world\n')
})

test('creates from a named template', async (t) => {
  for (const make of [
    () => Core.create(), () => Core.create('base'), () => Core.create('code-interpreter-v1', { timeoutMs: 60_000 }),
    () => Sandbox.create({ template: 'base' }),
  ]) {
    const box = await make()
    t.after(() => box.kill())
    assert.equal((await box.commands.run('echo ok')).stdout, 'ok\n')
  }
})

test('refuses an unknown template by name', async () => {
  const error = await failure(Sandbox.create('no-such-template'))
  assert.match(error.message, /no-such-template/)
})

test('refuses what a request cannot mean', async () => {
  for (const timeout of [-1, 0, 1.5, '5', 1e308, 2 ** 63, true]) {
    for (const path of ['/sandboxes', '/v2/sandboxes']) {
      const answer = await api('POST', path, { templateID: 'base', timeout })
      if (answer.status === 201) await api('DELETE', '/sandboxes/' + answer.json.sandboxID)
      assert.equal(answer.status, 400, `${path} with timeout ${JSON.stringify(timeout)}: ${answer.text}`)
      assert.equal(answer.json.code, 400)
      assert.match(answer.json.message, /timeout/)
    }
  }
  const box = await shared()
  const base = '/sandboxes/' + box.sandboxId
  for (const [path, body] of [
    ['/sandboxes', '{"templateID":'], ['/sandboxes', '[]'], ['/sandboxes', '"x"'],
    ['/sandboxes', { templateID: 5 }], ['/sandboxes', { templateID: 'base', metadata: { a: 1 } }],
    ['/sandboxes', { templateID: 'base', envVars: { 'A=B': 'x' } }],
    [base + '/timeout', { timeout: -1 }], [base + '/timeout', '{'], [base + '/timeout', {}],
    [base + '/connect', { timeout: -5 }], ['/v2' + base + '/connect', { timeout: 'x' }],
    [base + '/fork', { count: 0 }], [base + '/fork', { count: 101 }], [base + '/fork', '{"count":'],
    ['/v2' + base + '/fork', { count: -1 }], [base + '/refreshes', { duration: -1 }], [base + '/snapshots', '[1]'],
    [base + '/pause', '{"memory":3}'],
  ]) {
    const answer = await api('POST', path, body)
    if (answer.status === 201 && answer.json?.sandboxID) await api('DELETE', '/sandboxes/' + answer.json.sandboxID)
    assert.equal(answer.status, 400, `${path} ${JSON.stringify(body)}: ${answer.status} ${answer.text}`)
    assert.equal(answer.json.code, 400, answer.text)
    assert.ok(answer.json.message)
  }
  assert.equal(await box.isRunning(), true)
  assert.equal((await box.getInfo()).state, 'running')
})

test('lists in pages', async (t) => {
  const run = unique()
  const made = []
  for (let i = 0; i < 5; i++) made.push(await own(t, { metadata: { run, i: String(i) } }))
  const ids = made.map((box) => box.sandboxId)
  const got = await pages(Sandbox.list({ query: { metadata: { run } }, limit: 2 }))
  assert.deepEqual(got.map((page) => page.length), [2, 2, 1])
  assert.deepEqual(got.flat().map((info) => info.sandboxId).sort(), [...ids].sort())
  for (const info of got.flat()) {
    assert.equal(info.metadata.run, run)
    assert.equal(info.state, 'running')
    assert.ok(info.startedAt instanceof Date && info.endAt > info.startedAt)
    assert.ok(info.cpuCount >= 1 && info.memoryMB >= 64)
  }
  const ascending = await pages(Sandbox.list({ query: { metadata: { run } }, limit: 3, order: 'asc' }))
  assert.deepEqual(ascending.flat().map((info) => info.sandboxId), ids)
  const descending = await pages(Sandbox.list({ query: { metadata: { run } }, limit: 2, order: 'desc' }))
  assert.deepEqual(descending.flat().map((info) => info.sandboxId), [...ids].reverse())

  const first = Sandbox.list({ query: { metadata: { run } }, limit: 3 })
  const page = await first.nextItems()
  const second = Sandbox.list({ query: { metadata: { run } }, limit: 3, nextToken: first.nextToken })
  const all = [...page, ...(await second.nextItems())]
  assert.equal(new Set(all.map((info) => info.sandboxId)).size, 5)
  assert.equal(second.hasNext, false)
  await assert.rejects(second.nextItems())
})

test('lists what is asked for', async (t) => {
  const run = unique()
  const [one, two] = [await own(t, { metadata: { run, part: 'a b' } }), await own(t, { metadata: { run, part: 'ü=&' } })]
  assert.deepEqual((await listed({ metadata: { run, part: 'a b' } })).map((i) => i.sandboxId), [one.sandboxId])
  assert.deepEqual((await listed({ metadata: { run, part: 'ü=&' } })).map((i) => i.sandboxId), [two.sandboxId])
  assert.deepEqual(await listed({ metadata: { run, part: 'c' } }), [])
  await two.pause()
  const states = Object.fromEntries((await listed({ metadata: { run } })).map((i) => [i.sandboxId, i.state]))
  assert.deepEqual(states, { [one.sandboxId]: 'running', [two.sandboxId]: 'paused' })
  assert.deepEqual((await listed({ metadata: { run }, state: ['paused'] })).map((i) => i.sandboxId), [two.sandboxId])
  assert.deepEqual((await listed({ metadata: { run }, state: ['running'] })).map((i) => i.sandboxId), [one.sandboxId])
  assert.equal((await listed({ metadata: { run }, state: ['running', 'paused'] })).length, 2)
  const { startedAt, templateId } = await one.getInfo()
  assert.equal((await listed({ metadata: { run }, startedAfter: new Date(+startedAt + 60_000) })).length, 0)
  assert.equal((await listed({ metadata: { run }, startedAfter: new Date(+startedAt - 60_000) })).length, 2)
  assert.equal((await listed({ metadata: { run }, template: templateId })).length, 2)
  assert.equal((await listed({ metadata: { run }, template: 'no-such-template' })).length, 0)
})

test('the first generation of routes lists too', async (t) => {
  const run = unique()
  const box = await own(t, { metadata: { run } })
  const answer = await api('GET', '/sandboxes?metadata=' + encodeURIComponent('run=' + run))
  assert.equal(answer.status, 200, answer.text)
  assert.deepEqual(answer.json.map((i) => [i.sandboxID, typeof i.clientID]), [[box.sandboxId, 'string']])
})

test('both generations of create, connect and fork answer', async (t) => {
  for (const prefix of ['', '/v2']) {
    const made = await api('POST', prefix + '/sandboxes', { templateID: 'base', timeout: 60, metadata: { a: 'b' }, secure: prefix === '' ? true : undefined })
    assert.equal(made.status, 201, made.text)
    const id = made.json.sandboxID
    t.after(() => api('DELETE', '/sandboxes/' + id))
    for (const field of ['templateID', 'sandboxID', 'clientID', 'envdVersion', 'envdAccessToken', 'domain'])
      assert.equal(typeof made.json[field], 'string', `${field} of ${made.text}`)
    const connected = await api('POST', `${prefix}/sandboxes/${id}/connect`, { timeout: 60 })
    assert.equal(connected.status, 200, connected.text)
    assert.equal(connected.json.envdAccessToken, made.json.envdAccessToken)
    const forked = await api('POST', `${prefix}/sandboxes/${id}/fork`)
    assert.equal(forked.status, 201, forked.text)
    assert.equal(forked.json.length, 1)
    assert.ok(forked.json[0].sandbox.sandboxID, forked.text)
    await api('DELETE', '/sandboxes/' + forked.json[0].sandbox.sandboxID)
  }
  const box = await shared()
  const empty = await api('POST', `/v2/sandboxes/${box.sandboxId}/connect`)
  assert.equal(empty.status, 200, empty.text)
})

test('a sandbox that is gone is told apart', async () => {
  const box = await Sandbox.create()
  assert.equal(await box.isRunning(), true)
  assert.equal(await box.kill(), true)
  assert.equal(await box.kill(), false)
  assert.equal(await Sandbox.kill(box.sandboxId), false)
  assert.equal(await box.isRunning(), false)
  for (const call of [
    () => box.getInfo(), () => Sandbox.getInfo(box.sandboxId), () => Sandbox.connect(box.sandboxId), () => box.setTimeout(5000),
    () => box.pause(), () => box.createSnapshot(), () => box.getMetrics(), () => box.fork(), () => box.updateNetwork({}),
  ]) {
    const error = await failure(call())
    assert.ok(error instanceof SandboxNotFoundError, `${call}: ${error}`)
  }
  assert.ok((await failure(box.commands.run('true'))) instanceof SandboxNotFoundError)
  assert.ok((await failure(box.commands.list())) instanceof TimeoutError)
  assert.ok((await failure(box.files.read('/etc/hostname'))) instanceof TimeoutError)
  assert.ok((await failure(box.runCode('1'))) instanceof TimeoutError)
  const answer = await api('GET', '/sandboxes/' + box.sandboxId)
  assert.deepEqual([answer.status, answer.json.code], [404, 404])
})

test('connects from another process', async () => {
  const box = await shared()
  await box.files.write('/tmp/seen', 'from the first')
  for (const other of [await Sandbox.connect(box.sandboxId), await Core.connect(box.sandboxId)]) {
    assert.equal(other.sandboxId, box.sandboxId)
    assert.equal(await other.files.read('/tmp/seen'), 'from the first')
  }
  assert.equal(await box.connect(), box)
})

test('connecting never shortens a lifetime', async (t) => {
  const box = await own(t, { timeoutMs: 1_800_000 })
  const end = async () => +(await box.getInfo()).endAt
  const first = await end()
  await Sandbox.connect(box.sandboxId)
  await Sandbox.connect(box.sandboxId, { timeoutMs: 60_000 })
  await box.connect({ timeoutMs: 60_000 })
  assert.ok((await end()) >= first - 1000)
  await Sandbox.connect(box.sandboxId, { timeoutMs: 3_600_000 })
  assert.ok((await end()) > first + 1_000_000)
  await box.setTimeout(60_000)
  assert.ok((await end()) < Date.now() + 65_000)
  await Sandbox.setTimeout(box.sandboxId, 120_000)
  assert.ok((await end()) > Date.now() + 100_000)
  const answer = await api('POST', `/sandboxes/${box.sandboxId}/refreshes`, { duration: 900 })
  assert.equal(answer.status, 204, answer.text)
  assert.ok((await end()) > Date.now() + 800_000)
})

test('a lifetime ends a sandbox', async () => {
  const box = await Sandbox.create({ timeoutMs: 1000, metadata: { run: unique() } })
  await until('it is gone', async () => !(await box.isRunning()))
  assert.ok((await failure(box.getInfo())) instanceof SandboxNotFoundError)
  assert.ok((await failure(box.commands.run('true'))) instanceof SandboxNotFoundError)
  const other = await Sandbox.create()
  await other.setTimeout(1000)
  await until('it is gone', async () => !(await other.isRunning()))
})

test('a command in flight learns that its sandbox was killed', async () => {
  const box = await Sandbox.create()
  const handle = await box.commands.run('sleep 60', { background: true })
  const ended = failure(handle.wait())
  await box.kill()
  const error = await ended
  assert.ok(error instanceof TimeoutError || error instanceof SandboxError, String(error))
})

test('pauses and resumes with memory', async (t) => {
  const box = await own(t, { metadata: { run: unique() } })
  await box.runCode('kept = 41')
  const handle = await box.commands.run('i=0; while :; do i=$((i+1)); echo $i > /dev/shm/new; mv /dev/shm/new /dev/shm/count; sleep 0.1; done', { background: true })
  await until('it counts', () => box.files.exists('/dev/shm/count'))
  assert.equal(await box.pause(), true)
  assert.equal(await box.pause(), false)
  assert.equal(await Sandbox.pause(box.sandboxId), false)
  assert.equal((await box.getInfo()).state, 'paused')
  assert.equal(await box.isRunning(), false)
  const count = async (b) => Number(await b.files.read('/dev/shm/count'))
  const again = await Sandbox.connect(box.sandboxId, { timeoutMs: 60_000 })
  assert.equal((await again.getInfo()).state, 'running')
  const before = await count(again)
  assert.ok(before > 0)
  await until('it counts on', async () => (await count(again)) > before)
  assert.ok((await again.commands.list()).some((p) => p.pid === handle.pid))
  assert.equal(await again.commands.kill(handle.pid), true)
  assert.equal((await again.runCode('kept + 1')).text, '42')
  assert.equal(await again.betaPause(), true)
  await box.connect()
  assert.equal((await box.runCode('kept + 2')).text, '43')
})

test('pauses when its lifetime is over', async (t) => {
  const box = await own(t, { timeoutMs: 1500 * slowness, lifecycle: { onTimeout: 'pause' } })
  await box.files.write('/dev/shm/mark', 'kept')
  await until('it is paused', async () => (await box.getInfo()).state === 'paused')
  assert.deepEqual((await box.getInfo()).lifecycle, { onTimeout: 'pause', autoResume: false })
  const error = await failure(box.commands.run('true'))
  assert.ok(error instanceof SandboxError, String(error))
  assert.equal((await box.getInfo()).state, 'paused')
  await box.connect({ timeoutMs: 60_000 })
  assert.equal(await box.files.read('/dev/shm/mark'), 'kept')
  assert.equal((await box.getInfo()).state, 'running')
})

test('a paused sandbox outlives its lifetime', async (t) => {
  const box = await own(t, { timeoutMs: 1000 * slowness })
  assert.equal(await box.pause(), true)
  await sleep(1500)
  assert.equal((await box.getInfo()).state, 'paused')
  await box.connect({ timeoutMs: 60_000 })
  assert.equal((await box.commands.run('echo back')).stdout, 'back\n')
})

test('traffic resumes a sandbox that asks for it', async (t) => {
  const box = await own(t, { lifecycle: { onTimeout: 'pause', autoResume: true } })
  assert.deepEqual((await box.getInfo()).lifecycle, { onTimeout: 'pause', autoResume: true })
  await box.files.write('/dev/shm/mark', 'kept')
  await box.pause()
  assert.equal((await box.commands.run('cat /dev/shm/mark')).stdout, 'kept')
  assert.equal((await box.getInfo()).state, 'running')
  await box.pause()
  assert.equal(await box.files.read('/dev/shm/mark'), 'kept')
  await box.pause()
  assert.equal((await box.runCode('40 + 2')).text, '42')
})

test('a paused sandbox can be killed', async () => {
  const box = await Sandbox.create()
  await box.pause()
  assert.equal(await box.kill(), true)
  assert.equal(await box.kill(), false)
})

test('forks with memory, disk and processes', async (t) => {
  const box = await own(t, { envs: { FLAVOUR: 'salt' } })
  await box.runCode('import random; kept = [1, 2, 3]')
  await box.files.write('/home/user/file', 'before')
  const handle = await box.commands.run('sleep 300', { background: true })
  const children = await box.fork({ count: 3, timeoutMs: 60_000 * slowness })
  for (const child of children) t.after(() => child.kill())
  assert.equal(children.length, 3)
  assert.equal(new Set([box, ...children].map((b) => b.sandboxId)).size, 4)
  for (const [i, child] of children.entries()) {
    assert.ok(child instanceof Sandbox)
    assert.equal((await child.runCode(`kept.append(${i}); kept`)).text, `[1, 2, 3, ${i}]`)
    await child.files.write('/home/user/file', `child ${i}`)
    assert.equal((await child.commands.run('echo $FLAVOUR')).stdout, 'salt\n')
    assert.ok((await child.commands.list()).some((p) => p.pid === handle.pid))
    assert.ok(Math.abs((await child.getInfo()).endAt - Date.now() - 60_000 * slowness) < 10_000 * slowness)
  }
  for (const [i, child] of children.entries()) assert.equal(await child.files.read('/home/user/file'), `child ${i}`)
  assert.equal(await box.files.read('/home/user/file'), 'before')
  assert.equal((await box.runCode('kept')).text, '[1, 2, 3]')
  const [more] = await Sandbox.fork(box.sandboxId)
  t.after(() => more.kill())
  assert.equal((await more.runCode('kept')).text, '[1, 2, 3]')
})

test('a fork has randomness and an identity of its own', async (t) => {
  const box = await own(t)
  const children = [box, ...(await box.fork({ count: 3 }))]
  for (const child of children) t.after(() => child.kill())
  const draws = await Promise.all(children.map((c) => c.commands.run('head -c 16 /dev/urandom | sha256sum; cat /proc/sys/kernel/random/uuid')))
  assert.equal(new Set(draws.map((d) => d.stdout)).size, 4)
})

test('takes snapshots, and creates from them', async (t) => {
  const box = await own(t)
  const name = unique()
  await box.runCode('kept = "in memory"')
  await box.files.write('/home/user/file', 'on disk')
  const named = await box.createSnapshot({ name })
  t.after(() => Sandbox.deleteSnapshot(named.snapshotId))
  await box.files.write('/home/user/file', 'later')
  const plain = await Sandbox.createSnapshot(box.sandboxId)
  t.after(() => Sandbox.deleteSnapshot(plain.snapshotId))
  assert.ok(named.snapshotId && plain.snapshotId && named.snapshotId !== plain.snapshotId)
  assert.ok(named.names.some((n) => n.includes(name)), JSON.stringify(named))
  await box.kill()
  for (const [id, content] of [[named.snapshotId, 'on disk'], [name, 'on disk'], [plain.snapshotId, 'later']]) {
    const child = await own(t, { template: id })
    assert.equal(await child.files.read('/home/user/file'), content)
    assert.equal((await child.runCode('kept')).text, 'in memory')
  }
  const ids = (list) => list.map((s) => s.snapshotId).sort()
  const both = [named.snapshotId, plain.snapshotId].sort()
  assert.deepEqual(ids((await pages(box.listSnapshots())).flat()), both)
  const paged = await pages(Sandbox.listSnapshots({ sandboxId: box.sandboxId, limit: 1 }))
  assert.deepEqual(paged.map((p) => p.length), [1, 1])
  assert.deepEqual(ids(paged.flat()), both)
  assert.deepEqual(ids((await pages(Sandbox.listSnapshots({ name }))).flat()), [named.snapshotId])
  const all = ids((await pages(Sandbox.listSnapshots())).flat())
  assert.ok(both.every((id) => all.includes(id)))
})

test('deletes a snapshot', async (t) => {
  const box = await own(t)
  const { snapshotId } = await box.createSnapshot()
  await box.kill()
  assert.equal(await Sandbox.deleteSnapshot(snapshotId), true)
  assert.equal(await Sandbox.deleteSnapshot(snapshotId), false)
  assert.equal(await Sandbox.deleteSnapshot('no-such-snapshot'), false)
  assert.match((await failure(Sandbox.create(snapshotId))).message, new RegExp(snapshotId))
})

test('tells what a sandbox uses', async () => {
  const box = await shared()
  await box.commands.run('true')
  for (const metrics of [
    await box.getMetrics(), await Sandbox.getMetrics(box.sandboxId),
    await box.getMetrics({ start: new Date(Date.now() - 60_000), end: new Date(Date.now() + 1000) }),
  ]) {
    assert.ok(metrics.length >= 1)
    const last = metrics.at(-1)
    assert.ok(Math.abs(last.timestamp - Date.now()) < 60_000, String(last.timestamp))
    assert.ok(last.cpuCount >= 1 && last.cpuUsedPct >= 0)
    assert.ok(last.memUsed > 0 && last.memUsed < last.memTotal && last.memCache >= 0)
    assert.ok(last.diskUsed > 0 && last.diskUsed < last.diskTotal)
  }
  const answer = await api('GET', '/sandboxes/metrics?sandbox_ids=' + box.sandboxId)
  assert.equal(answer.status, 200, answer.text)
  assert.match(answer.text, new RegExp(box.sandboxId))
})

test('network rules are kept and told', async (t) => {
  const network = { allowOut: ['1.1.1.1', '*.example.com'], denyOut: [ALL_TRAFFIC], allowPublicTraffic: true }
  const box = await own(t, { network })
  let info = await box.getInfo()
  assert.deepEqual(info.network.allowOut, network.allowOut)
  assert.deepEqual(info.network.denyOut, network.denyOut)
  await box.updateNetwork({ denyOut: ['10.0.0.0/8'] })
  info = await box.getInfo()
  assert.deepEqual(info.network.denyOut, ['10.0.0.0/8'])
  assert.ok(!info.network.allowOut?.length)
  await Sandbox.updateNetwork(box.sandboxId, { allowInternetAccess: false })
  info = await box.getInfo()
  assert.equal(info.allowInternetAccess, false)
  const closed = await own(t, { allowInternetAccess: false })
  assert.equal((await closed.getInfo()).allowInternetAccess, false)
  assert.ok((await failure(own(t, { network: { denyOut: ['not an address'] } }))) instanceof Error)
})

test('a command reads the logs', async () => {
  const box = await shared()
  for (const path of [`/sandboxes/${box.sandboxId}/logs`, `/v2/sandboxes/${box.sandboxId}/logs`]) {
    const answer = await api('GET', path)
    assert.equal(answer.status, 200, answer.text)
    assert.ok(Array.isArray(answer.json.logs), answer.text)
  }
  assert.equal((await api('GET', '/sandboxes/nosuchbox/logs')).status, 404)
})

test('a key is needed', async () => {
  const wrong = 'e2b_' + 'f'.repeat(40)
  assert.ok((await failure(Sandbox.create({ apiKey: wrong }))) instanceof AuthenticationError)
  assert.ok((await failure(Sandbox.list({ apiKey: wrong }).nextItems())) instanceof AuthenticationError)
  assert.ok((await failure(Sandbox.kill('sbx', { apiKey: wrong }))) instanceof AuthenticationError)
  for (const path of ['/v2/sandboxes', '/sandboxes', '/snapshots', '/teams']) {
    const answer = await api('GET', path, undefined, { 'X-API-KEY': '' })
    assert.equal(answer.status, 401, path)
    assert.equal(answer.json.code, 401)
  }
  assert.equal((await api('GET', '/health', undefined, { 'X-API-KEY': '' })).status, 204)
})

test('a sandbox is entered with its own token only', async () => {
  const box = await shared()
  const headers = { 'E2b-Sandbox-Id': box.sandboxId, 'E2b-Sandbox-Port': '49983', 'Content-Type': 'application/json', 'Connect-Protocol-Version': '1' }
  const call = (extra) => fetch(new URL('/process.Process/List', address), { method: 'POST', body: '{}', headers: { ...headers, ...extra } })
  const without = await call({})
  assert.equal(without.status, 401)
  assert.ok((await without.json()).message)
  assert.equal((await call({ 'X-Access-Token': 'wrong' })).status, 401)
  const other = await Sandbox.create()
  const { json } = await api('POST', `/sandboxes/${other.sandboxId}/connect`, { timeout: 60 })
  assert.equal((await call({ 'X-Access-Token': json.envdAccessToken })).status, 401)
  await other.kill()
  const own = await api('POST', `/sandboxes/${box.sandboxId}/connect`, { timeout: 60 })
  assert.equal((await call({ 'X-Access-Token': own.json.envdAccessToken })).status, 200)
  const files = await fetch(new URL('/files?path=/etc/hostname', address), { headers })
  assert.equal(files.status, 401)
})

test('a client carries its own settings', async (t) => {
  const client = new E2B({ apiKey: key, apiUrl: address.origin, sandboxUrl: address.origin })
  const box = await client.Sandbox.create({ metadata: { run: unique() } })
  t.after(() => box.kill())
  assert.equal((await box.commands.run('echo ok')).stdout, 'ok\n')
  assert.ok((await client.Sandbox.list().nextItems()).length >= 1)
  const stranger = new E2B({ apiKey: 'e2b_' + 'e'.repeat(40), apiUrl: address.origin })
  assert.ok((await failure(stranger.Sandbox.create())) instanceof AuthenticationError)
})

test('the raw client and its settings work', async () => {
  const config = new ConnectionConfig()
  assert.equal(config.apiUrl, process.env.E2B_API_URL)
  assert.equal(config.getSandboxUrl('sb1', { sandboxDomain: 'x', envdPort: 49983 }), process.env.E2B_SANDBOX_URL)
  assert.equal(config.getSandboxDirectUrl('sb1', { sandboxDomain: 'x', envdPort: 49983 }), process.env.E2B_SANDBOX_URL)
  assert.equal(config.getHost('sb1', 3000, 'example.com'), '3000-sb1.example.com')
  assert.ok(config.getSignal(1000) instanceof AbortSignal)
  assert.equal(ConnectionConfig.mergeOpts({ domain: 'a' }, { apiKey: 'b' }).domain, 'a')
  ConnectionConfig.setIntegration('forkd-conformance')
  const box = await shared()
  const { data, response } = await new ApiClient(new ConnectionConfig()).api.GET('/sandboxes/{sandboxID}', { params: { path: { sandboxID: box.sandboxId } } })
  ConnectionConfig.setIntegration(undefined)
  assert.equal(response.status, 200)
  assert.equal(data.sandboxID, box.sandboxId)
  const full = await Sandbox.getFullInfo(box.sandboxId)
  assert.equal(full.sandboxId, box.sandboxId)
})

test('many are created at once', async (t) => {
  const boxes = await Promise.all(Array.from({ length: 16 }, () => own(t)))
  const names = await Promise.all(boxes.map((b) => b.commands.run('cat /proc/sys/kernel/random/boot_id')))
  assert.equal(new Set(boxes.map((b) => b.sandboxId)).size, 16)
  assert.equal(new Set(names.map((n) => n.stdout)).size, 16)
})

test('what is not there is refused in words', async () => {
  for (const body of [
    { templateID: 'base', mcp: { exa: {} } }, { templateID: 'base', volumeMounts: [{ name: 'v', path: '/v' }] },
    { templateID: 'base', iam: { tokens: { a: { audience: 'x', tokenType: 'JWT-SVID' } } } },
    { templateID: 'base', network: { egressProxy: { address: 'proxy.example.com:1080' } } },
  ]) {
    const answer = await api('POST', '/v2/sandboxes', body)
    if (answer.status === 201) await api('DELETE', '/sandboxes/' + answer.json.sandboxID)
    assert.ok([400, 501].includes(answer.status), `${JSON.stringify(body)}: ${answer.status} ${answer.text}`)
    assert.equal(answer.json.code, answer.status)
    assert.match(answer.json.message, /support/)
  }
  const unknown = await api('GET', '/no/such/route')
  assert.equal(unknown.status, 404)
  assert.equal(unknown.json.code, 404)
  assert.ok((await failure(Sandbox.getInfo('not-a-sandbox'))) instanceof NotFoundError)
})
