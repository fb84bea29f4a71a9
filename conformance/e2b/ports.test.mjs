import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { readFileSync } from 'node:fs'
import http from 'node:http'
import { after, test } from 'node:test'
import { Sandbox } from 'e2b'
import { slowness } from './clock.mjs'
import { address, own, request, route, sha256, sleep, until } from './lib.mjs'

const script = readFileSync(new URL('server.py', import.meta.url), 'utf8')

// template is a snapshot in which the server runs on port 3000: it starts once.
let made
const template = () => (made ??= (async () => {
  const box = await Sandbox.create({ timeoutMs: 300_000 * slowness })
  await box.files.write('/tmp/server.py', script)
  await box.commands.run('python3 /tmp/server.py 3000 nobody', { background: true, timeoutMs: 0 })
  await serves(box)
  const { snapshotId } = await box.createSnapshot()
  await box.kill()
  return snapshotId
})())
after(async () => made && Sandbox.deleteSnapshot(await made))

const serves = (box) => until('it serves', async () => (await request('/', { headers: {
  ...route(box, 3000), ...(box.trafficAccessToken ? { 'e2b-traffic-access-token': box.trafficAccessToken } : {}),
} })).status === 200)

// serving makes a sandbox with the server, which knows whose it is.
async function serving(t, opts) {
  const box = await own(t, { template: await template(), ...opts })
  await box.files.write('/tmp/who', box.sandboxId)
  await serves(box)
  return box
}

test('a port is reached by its host name', async (t) => {
  const box = await serving(t)
  const host = box.getHost(3000)
  assert.match(host, new RegExp(`^3000-${box.sandboxId}\\.`))
  const answer = await request('/a/b?c=d%20e', { headers: { Host: host, 'X-Own': 'mine' } })
  assert.equal(answer.status, 200, answer.text)
  const told = JSON.parse(answer.text)
  assert.deepEqual([told.path, told.headers['x-own'], told.who], ['/a/b?c=d%20e', 'mine', box.sandboxId])
  assert.equal(told.headers.host, host)
})

test('a port is reached by headers', async (t) => {
  const box = await serving(t)
  const answer = await request('/', { headers: route(box, 3000) })
  assert.deepEqual([answer.status, JSON.parse(answer.text).who], [200, box.sandboxId])
  for (const secret of ['x-access-token', 'e2b-traffic-access-token', 'x-api-key', 'authorization'])
    assert.ok(!(secret in JSON.parse(answer.text).headers), secret)
})

test('bodies pass whole in both directions', async (t) => {
  const box = await serving(t)
  const data = randomBytes(4 << 20)
  const sent = await request('/up', { method: 'POST', body: data, headers: { Host: box.getHost(3000), 'Content-Length': data.length } })
  assert.deepEqual(JSON.parse(sent.text), { length: data.length, sha256: sha256(data) })
  const got = await request('/bytes/5000000', { headers: { Host: box.getHost(3000) } })
  assert.equal(sha256(got.data), sha256(Buffer.alloc(5_000_000, 'x')))
})

test('events pass as they happen', async (t) => {
  const box = await serving(t)
  const seen = await new Promise((done, fail) => {
    let text = ''
    http.get({ host: address.hostname, port: address.port, path: '/events', headers: { Host: box.getHost(3000) }, agent: false }, (response) => {
      assert.equal(response.headers['content-type'], 'text/event-stream')
      response.on('data', (part) => {
        text += part
        const count = text.split('data:').length - 1
        box.files.write(`/tmp/event-${count}`, '').catch(fail)
      })
      response.on('end', () => done(text))
    }).on('error', fail)
  })
  assert.equal(seen, 'data: 0\n\ndata: 1\n\ndata: 2\n\n')
})

test('WebSocket passes', async (t) => {
  const box = await serving(t)
  for (const headers of [{ Host: box.getHost(3000) }, route(box, 3000)]) {
    const words = ['hello', 'again', 'and on']
    const answers = await new Promise((done, fail) => {
      const got = []
      const req = http.request({ host: address.hostname, port: address.port, path: '/ws', agent: false, headers: {
        ...headers, Connection: 'Upgrade', Upgrade: 'websocket', 'Sec-WebSocket-Version': '13', 'Sec-WebSocket-Key': 'dGhlIHNhbXBsZSBub25jZQ==' } })
      req.on('error', fail)
      req.on('response', (response) => fail(new Error('no upgrade: ' + response.statusCode)))
      req.on('upgrade', (response, socket, head) => {
        assert.equal(response.headers['sec-websocket-accept'], 's3pPLMBiTxaQ9kYGzzhZRbK+xOo=')
        let data = head
        const send = (word) => {
          const mask = randomBytes(4)
          socket.write(Buffer.concat([Buffer.from([0x81, 0x80 | word.length]), mask, Buffer.from(Buffer.from(word).map((b, i) => b ^ mask[i % 4]))]))
        }
        socket.on('error', fail)
        socket.on('data', (part) => {
          data = Buffer.concat([data, part])
          while (data.length >= 2 && data.length >= 2 + data[1]) {
            got.push(data.subarray(2, 2 + data[1]).toString())
            data = data.subarray(2 + data[1])
            if (got.length === words.length) {
              socket.end(Buffer.from([0x88, 0x80, 0, 0, 0, 0]))
              return done(got)
            }
            send(words[got.length])
          }
        })
        send(words[0])
      })
      req.end()
    })
    assert.deepEqual(answers, ['HELLO', 'AGAIN', 'AND ON'])
  }
})

test('a private sandbox wants its traffic token', async (t) => {
  const box = await serving(t, { network: { allowPublicTraffic: false } })
  assert.ok(box.trafficAccessToken)
  const get = (headers) => request('/', { headers: { Host: box.getHost(3000), ...headers } })
  for (const headers of [{}, { 'e2b-traffic-access-token': 'wrong' }]) {
    const refused = await get(headers)
    assert.equal(refused.status, 403, refused.text)
    assert.equal(JSON.parse(refused.text).code, 403)
  }
  const let_in = await get({ 'e2b-traffic-access-token': box.trafficAccessToken })
  assert.equal(let_in.status, 200, let_in.text)
  assert.ok(!('e2b-traffic-access-token' in JSON.parse(let_in.text).headers))
  assert.equal((await box.commands.run('echo ok')).stdout, 'ok\n')
  const again = await Sandbox.connect(box.sandboxId)
  assert.equal(again.trafficAccessToken, box.trafficAccessToken)
})

test('the Host that a server sees can be masked', async (t) => {
  const box = await serving(t, { network: { maskRequestHost: 'localhost:3000' } })
  const answer = await request('/', { headers: { Host: box.getHost(3000) } })
  assert.equal(JSON.parse(answer.text).headers.host, 'localhost:3000')
})

test('what is not there says so', async (t) => {
  const box = await own(t)
  const closed = await request('/', { headers: { Host: box.getHost(4321) } })
  assert.equal(closed.status, 502)
  const told = JSON.parse(closed.text)
  assert.deepEqual([told.sandboxId, told.port, told.code], [box.sandboxId, 4321, 502])
  assert.ok(told.message)
  const domain = box.getHost(1).slice(box.getHost(1).indexOf('.'))
  const unknown = await request('/', { headers: { Host: '3000-sb000000000000' + domain } })
  assert.equal(unknown.status, 502)
  assert.deepEqual([JSON.parse(unknown.text).sandboxId, JSON.parse(unknown.text).code], ['sb000000000000', 502])
  const headers = await request('/', { headers: { 'E2b-Sandbox-Id': 'sb000000000000', 'E2b-Sandbox-Port': '3000' } })
  assert.equal(headers.status, 502)
  for (const port of ['99999', '-1', 'x', ''])
    assert.equal((await request('/', { headers: { 'E2b-Sandbox-Id': box.sandboxId, 'E2b-Sandbox-Port': port } })).status, 400, port)
})

test('each sandbox answers for itself', async (t) => {
  const box = await serving(t)
  const children = await box.fork({ count: 2 })
  for (const child of children) t.after(() => child.kill())
  for (const [i, child] of children.entries()) {
    await child.files.write('/tmp/who', `child ${i}`)
    const answer = await until('it serves', async () => {
      const got = await request('/', { headers: { Host: child.getHost(3000) } })
      return got.status === 200 && got
    })
    assert.equal(JSON.parse(answer.text).who, `child ${i}`)
  }
  assert.equal(JSON.parse((await request('/', { headers: { Host: box.getHost(3000) } })).text).who, box.sandboxId)
  const host = children[0].getHost(3000)
  await children[0].kill()
  assert.equal((await request('/', { headers: { Host: host } })).status, 502)
})

test('a request resumes a sandbox that asks for it', async (t) => {
  const box = await serving(t, { lifecycle: { onTimeout: 'pause', autoResume: true } })
  await box.pause()
  const answer = await request('/', { headers: { Host: box.getHost(3000) } })
  assert.deepEqual([answer.status, JSON.parse(answer.text).who], [200, box.sandboxId])
  assert.equal((await box.getInfo()).state, 'running')
})

test('a paused sandbox says that it does not run', async (t) => {
  const box = await own(t)
  await box.pause()
  const answer = await request('/', { headers: { Host: box.getHost(3000) } })
  assert.equal(answer.status, 502)
  assert.equal(JSON.parse(answer.text).code, 502)
  await sleep(100)
  assert.equal((await box.getInfo()).state, 'paused')
})

test('the address of the MCP gateway is told', async (t) => {
  const box = await own(t)
  assert.equal(box.getMcpUrl(), `https://${box.getHost(50005)}/mcp`)
  await box.files.write('/etc/mcp-gateway/.token', 'secret', { user: 'root' })
  assert.equal(await box.getMcpToken(), 'secret')
})
