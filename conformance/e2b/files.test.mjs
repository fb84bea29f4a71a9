import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { after, test } from 'node:test'
import { gzipSync } from 'node:zlib'
import { AuthenticationError, FileNotFoundError, FileType, getSignature, InvalidArgumentError, NotFoundError } from 'e2b'
import { address, api, failure, own, release, request, route, sha256, shared, sleep, unique } from './lib.mjs'

after(release)

const dir = async (box) => {
  const path = '/home/user/' + unique()
  assert.equal(await box.files.makeDir(path), true)
  return path
}
const stream = (...parts) => new ReadableStream({
  start(c) {
    for (const part of parts) c.enqueue(typeof part === 'string' ? new TextEncoder().encode(part) : part)
    c.close()
  },
})
async function drain(readable) {
  const parts = []
  for await (const part of readable) parts.push(part)
  return Buffer.concat(parts)
}

test('text goes and comes back', async () => {
  const box = await shared()
  const path = (await dir(box)) + '/note.txt'
  const info = await box.files.write(path, 'hello ü ☕\n')
  assert.equal(info.name, 'note.txt')
  assert.equal(info.path, path)
  assert.equal(info.type, FileType.FILE)
  assert.equal(await box.files.read(path), 'hello ü ☕\n')
  await box.files.write(path, 'shorter')
  assert.equal(await box.files.read(path, { format: 'text' }), 'shorter')
  const bom = '\ufeffa\r\nb\r\n'
  await box.files.write(path, bom)
  assert.equal(sha256(Buffer.from(await box.files.read(path, { format: 'bytes' }))), sha256(Buffer.from(bom)))
})

test('bytes go and come back in every form', async () => {
  const box = await shared()
  const path = (await dir(box)) + '/data'
  const data = Buffer.concat([Buffer.from(Array.from({ length: 256 }, (_, i) => i)), randomBytes(1 << 20)])
  const copy = new Uint8Array(data).buffer
  for (const [form, content] of Object.entries({
    ArrayBuffer: copy, Blob: new Blob([data]), stream: stream(data.subarray(0, 1000), data.subarray(1000)),
  })) {
    for (const opts of [{}, { gzip: true }, { useOctetStream: true }]) {
      const given = form === 'stream' ? stream(data.subarray(0, 1000), data.subarray(1000)) : content
      await box.files.write(path, given, opts)
      const label = `${form} with ${JSON.stringify(opts)}`
      const read = await box.files.read(path, { format: 'bytes' })
      assert.ok(read instanceof Uint8Array)
      assert.equal(sha256(read), sha256(data), label)
    }
  }
  const blob = await box.files.read(path, { format: 'blob' })
  assert.ok(blob instanceof Blob)
  assert.equal(sha256(Buffer.from(await blob.arrayBuffer())), sha256(data))
  assert.equal(sha256(await drain(await box.files.read(path, { format: 'stream' }))), sha256(data))
  for (const format of ['bytes', 'stream']) {
    const got = await box.files.read(path, { format, gzip: true })
    assert.equal(sha256(format === 'bytes' ? got : await drain(got)), sha256(data), `gzip ${format}`)
  }
  assert.equal((await box.commands.run(`sha256sum ${path}`)).stdout.slice(0, 64), sha256(data))
})

test('an empty file is read in every form', async () => {
  const box = await shared()
  const path = (await dir(box)) + '/empty'
  await box.files.write(path, '')
  assert.equal(await box.files.read(path), '')
  assert.equal((await box.files.read(path, { format: 'bytes' })).length, 0)
  assert.equal((await box.files.read(path, { format: 'blob' })).size, 0)
  assert.equal((await drain(await box.files.read(path, { format: 'stream' }))).length, 0)
  assert.equal((await box.files.getInfo(path)).size, 0)
})

test('many files are written at once', async () => {
  const box = await shared()
  const base = await dir(box)
  const files = [
    { path: base + '/a', data: 'text' }, { path: base + '/deep/er/b', data: new Uint8Array([1, 2, 255]).buffer },
    { path: base + '/c', data: new Blob(['blob']) }, { path: base + '/d', data: stream('str', 'eam') },
  ]
  for (const [write, opts] of [['write', undefined], ['writeFiles', { useOctetStream: true }]]) {
    const again = files.map((f) => (f.path.endsWith('/d') ? { ...f, data: stream('str', 'eam') } : f))
    const infos = await box.files[write](again, opts)
    assert.deepEqual(infos.map((i) => i.path).sort(), files.map((f) => f.path).sort())
    assert.equal(await box.files.read(base + '/a'), 'text')
    assert.deepEqual([...(await box.files.read(base + '/deep/er/b', { format: 'bytes' }))], [1, 2, 255])
    assert.equal(await box.files.read(base + '/c'), 'blob')
    assert.equal(await box.files.read(base + '/d'), 'stream')
  }
  assert.deepEqual(await box.files.write([]), [])
})

test('files carry metadata', async () => {
  const box = await shared()
  const path = (await dir(box)) + '/tagged'
  const metadata = { author: 'me', 'content-kind': 'a b c' }
  assert.deepEqual((await box.files.write(path, 'x', { metadata })).metadata, metadata)
  assert.deepEqual((await box.files.getInfo(path)).metadata, metadata)
  await box.files.write(path, 'y', { metadata: { author: 'you' }, useOctetStream: true })
  assert.deepEqual((await box.files.getInfo(path)).metadata, { author: 'you' })
})

test('describes what is there', async () => {
  const box = await shared()
  const base = await dir(box)
  await box.files.write(base + '/f', '12345')
  await box.commands.run(`chmod 640 ${base}/f; ln -s f ${base}/link; ln -s nowhere ${base}/dangling`)
  const info = await box.files.getInfo(base + '/f')
  assert.deepEqual([info.name, info.path, info.type, info.size, info.owner, info.group], ['f', base + '/f', FileType.FILE, 5, 'user', 'user'])
  assert.equal(info.mode & 0o777, 0o640)
  assert.match(info.permissions, /rw-r-----$/)
  assert.ok(Math.abs(info.modifiedTime - Date.now()) < 60_000, String(info.modifiedTime))
  assert.equal((await box.files.getInfo(base)).type, FileType.DIR)
  const link = await box.files.getInfo(base + '/link')
  assert.ok(link.symlinkTarget.endsWith('f'), JSON.stringify(link))
  assert.equal(await box.files.exists(base + '/f'), true)
  assert.equal(await box.files.exists(base), true)
  assert.equal(await box.files.exists(base + '/none'), false)
  assert.ok((await failure(box.files.getInfo(base + '/none'))) instanceof FileNotFoundError)
})

test('lists to a depth', async () => {
  const box = await shared()
  const base = await dir(box)
  await box.files.write([{ path: base + '/a', data: '1' }, { path: base + '/d/b', data: '2' }, { path: base + '/d/e/c', data: '3' }])
  const paths = async (opts) => (await box.files.list(base, opts)).map((e) => `${e.path.slice(base.length)}:${e.type}`).sort()
  assert.deepEqual(await paths(), ['/a:file', '/d:dir'])
  assert.deepEqual(await paths({ depth: 2 }), ['/a:file', '/d/b:file', '/d/e:dir', '/d:dir'])
  assert.deepEqual(await paths({ depth: 9 }), ['/a:file', '/d/b:file', '/d/e/c:file', '/d/e:dir', '/d:dir'])
  await assert.rejects(box.files.list(base, { depth: 0 }), InvalidArgumentError)
  assert.ok((await failure(box.files.list(base + '/none'))) instanceof NotFoundError)
  await assert.rejects(box.files.list(base + '/a'))
  const many = await box.commands.run(`mkdir ${base}/many; cd ${base}/many; seq 1 2000 | xargs touch`)
  assert.equal(many.exitCode, 0)
  assert.equal((await box.files.list(base + '/many')).length, 2000)
})

test('makes, renames and removes', async () => {
  const box = await shared()
  const base = await dir(box)
  assert.equal(await box.files.makeDir(base), false)
  assert.equal(await box.files.makeDir(base + '/x/y/z'), true)
  await box.files.write(base + '/x/y/z/f', 'content')
  const moved = await box.files.rename(base + '/x', base + '/w')
  assert.deepEqual([moved.name, moved.path, moved.type], ['w', base + '/w', FileType.DIR])
  assert.equal(await box.files.read(base + '/w/y/z/f'), 'content')
  assert.equal(await box.files.exists(base + '/x'), false)
  await box.files.rename(base + '/w/y/z/f', base + '/g')
  assert.equal(await box.files.read(base + '/g'), 'content')
  assert.ok((await failure(box.files.rename(base + '/none', base + '/h'))) instanceof FileNotFoundError)
  await box.files.remove(base + '/g')
  await box.files.remove(base + '/w')
  assert.deepEqual(await box.files.list(base), [])
})

test('what is missing or wrong is told apart', async () => {
  const box = await shared()
  const base = await dir(box)
  for (const format of ['text', 'bytes', 'blob', 'stream'])
    assert.ok((await failure(box.files.read(base + '/none', { format }))) instanceof FileNotFoundError, format)
  assert.ok((await failure(box.files.read(base))) instanceof InvalidArgumentError)
  assert.ok((await failure(box.files.write(base, 'onto a directory'))) instanceof Error)
  assert.ok((await failure(box.files.write(base + '/' + 'n'.repeat(256), 'x'))) instanceof Error)
  assert.ok((await failure(box.files.read('/etc/hostname', { user: 'nobody-such' }))) instanceof AuthenticationError)
  assert.equal(await box.isRunning(), true)
})

test('paths may be relative to the home', async () => {
  const box = await shared()
  const name = unique()
  const info = await box.files.write(name, 'at home')
  assert.equal(info.path, '/home/user/' + name)
  assert.equal(await box.files.read(name), 'at home')
  assert.equal((await box.files.getInfo(name)).path, '/home/user/' + name)
  await box.files.write(name, 'of root', { user: 'root' })
  assert.equal(await box.files.read('/root/' + name, { user: 'root' }), 'of root')
})

test('files belong to who writes them', async () => {
  const box = await shared()
  const base = await dir(box)
  const path = base + '/new/dir/f'
  await box.files.write(path, 'x\n')
  assert.equal((await box.commands.run(`echo y >> ${path}; stat -c %U ${path} ${base}/new ${base}/new/dir`)).stdout, 'user\nuser\nuser\n')
  await box.files.write(base + '/r', 'x', { user: 'root' })
  assert.equal((await box.files.getInfo(base + '/r')).owner, 'root')
  await box.files.makeDir(base + '/rd', { user: 'root' })
  assert.equal((await box.files.getInfo(base + '/rd')).owner, 'root')
})

test('any name makes the round trip', async () => {
  const box = await shared()
  const base = await dir(box)
  const names = ['a b', 'ü☕', '%2e%2e', 'a?b#c&d=e', '..x', '-rf', `"q"'`, 'new\nline', 'n'.repeat(255), 'e\u0301', '\u00e9', 'a+b', 'a;b\\c']
  for (const name of names) {
    const path = base + '/' + name
    await box.files.write(path, name, { useOctetStream: true })
    assert.equal(await box.files.read(path), name)
    assert.equal((await box.files.getInfo(path)).name, name)
  }
  assert.deepEqual((await box.files.list(base)).map((e) => e.name).sort(), [...names].sort())
  assert.equal(Number((await box.commands.run(`ls -A ${base} -1 --quoting-style=c | wc -l`)).stdout), names.length)
  for (const name of names) {
    await box.files.rename(base + '/' + name, base + '/moved')
    await box.files.remove(base + '/moved')
  }
  assert.deepEqual(await box.files.list(base), [])
})

test('signed addresses need no token', async () => {
  const box = await shared()
  const path = (await dir(box)) + '/signed file.txt'
  const up = new URL(await box.uploadUrl(path))
  const form = new FormData()
  form.append('file', new Blob(['uploaded']), 'ignored.txt')
  const put = await fetch(up, { method: 'POST', body: form })
  assert.equal(put.status, 200, await put.text())
  assert.equal(await box.files.read(path), 'uploaded')
  const down = await box.downloadUrl(path)
  assert.equal(await (await fetch(down)).text(), 'uploaded')
  const limited = await box.downloadUrl(path, { useSignatureExpiration: 60, user: 'user' })
  assert.equal(await (await fetch(limited)).text(), 'uploaded')

  const wrong = async (url, change) => {
    const u = new URL(url)
    change(u.searchParams)
    return (await fetch(u)).status
  }
  assert.equal(await wrong(down, (q) => q.set('signature', 'v1_' + 'A'.repeat(43))), 401)
  assert.equal(await wrong(down, (q) => q.delete('signature')), 401)
  assert.equal(await wrong(down, (q) => q.set('path', '/etc/passwd')), 401)
  assert.equal(await wrong(limited, (q) => q.set('signature_expiration', '99999999999')), 401)
  assert.equal(await wrong(up, () => {}), 401)
  const brief = await box.downloadUrl(path, { useSignatureExpiration: 1 })
  await sleep(2100)
  assert.equal((await fetch(brief)).status, 401)
})

test('signed addresses work in host form', async () => {
  const box = await shared()
  const path = (await dir(box)) + '/f'
  await box.files.write(path, 'by host')
  const url = new URL(await box.downloadUrl(path))
  const answer = await request(url.pathname + url.search, { headers: { Host: box.getHost(49983) } })
  assert.deepEqual([answer.status, answer.text], [200, 'by host'])
})

test('a signature can be made by hand', async () => {
  const box = await shared()
  const path = (await dir(box)) + '/f'
  await box.files.write(path, 'content')
  const { json } = await api('POST', `/sandboxes/${box.sandboxId}/connect`, { timeout: 60 })
  const made = await getSignature({ path, operation: 'read', user: 'user', expirationInSeconds: 60, envdAccessToken: json.envdAccessToken })
  const url = new URL('/files', address)
  for (const [k, v] of Object.entries({ path, username: 'user', signature: made.signature, signature_expiration: made.expiration })) url.searchParams.set(k, v)
  assert.equal(await (await fetch(url, { headers: route(box, 49983) })).text(), 'content')
})

test('reads in ranges and packed', async () => {
  const box = await shared()
  const path = (await dir(box)) + '/f'
  await box.files.write(path, '0123456789'.repeat(1000))
  const url = new URL(await box.downloadUrl(path))
  const get = (headers) => request(url.pathname + url.search, { headers: { ...route(box, 49983), ...headers } })
  const part = await get({ Range: 'bytes=3-6' })
  assert.deepEqual([part.status, part.text, part.headers['content-range']], [206, '3456', 'bytes 3-6/10000'])
  assert.equal((await get({ Range: 'bytes=-4' })).text, '6789')
  assert.equal((await get({ Range: 'bytes=20000-' })).status, 416)
  const packed = await get({ 'Accept-Encoding': 'gzip' })
  assert.equal(packed.headers['content-encoding'], 'gzip')
  assert.ok(packed.data.length < 2000)
  assert.equal((await get({ 'Accept-Encoding': 'identity;q=0, br' })).status, 406)
  const up = new URL(await box.uploadUrl(path))
  const sent = await fetch(up, { method: 'POST', headers: { 'Content-Type': 'application/octet-stream', 'Content-Encoding': 'gzip' }, body: gzipSync('unpacked') })
  assert.equal(sent.status, 200, await sent.text())
  assert.equal(await box.files.read(path), 'unpacked')
  const bad = await fetch(up, { method: 'POST', headers: { 'Content-Type': 'application/octet-stream', 'Content-Encoding': 'gzip' }, body: 'not gzip' })
  assert.equal(bad.status, 400)
})

test('files are put together', async () => {
  const box = await shared()
  const base = await dir(box)
  await box.files.write([{ path: base + '/1', data: 'one ' }, { path: base + '/2', data: 'two' }])
  const { json } = await api('POST', `/sandboxes/${box.sandboxId}/connect`, { timeout: 60 })
  const answer = await fetch(new URL('/files/compose', address), {
    method: 'POST', headers: { ...route(box, 49983), 'X-Access-Token': json.envdAccessToken, 'Content-Type': 'application/json' },
    body: JSON.stringify({ source_paths: [base + '/1', base + '/2'], destination: base + '/both', username: 'user' }),
  })
  assert.equal(answer.status, 200, await answer.clone().text())
  assert.equal((await answer.json()).path, base + '/both')
  assert.equal(await box.files.read(base + '/both'), 'one two')
  assert.equal(await box.files.exists(base + '/1'), false)
})

test('a large file is identical after both ways', async () => {
  const box = await shared()
  const path = (await dir(box)) + '/large'
  const part = randomBytes(1 << 20)
  const data = Buffer.concat(Array.from({ length: 16 }, () => part))
  await box.files.write(path, new Blob([data]))
  assert.equal(sha256(await box.files.read(path, { format: 'bytes' })), sha256(data))
})

test('a full disk is told', async (t) => {
  const box = await own(t)
  const left = async () => Number((await box.commands.run('df -k --output=avail /home/user | tail -1', { user: 'root' })).stdout)
  await box.commands.run(`fallocate -l ${(await left()) - 512}K /home/user/fill`)
  assert.ok((await left()) < 2048)
  const error = await failure(box.files.write('/home/user/more', new Blob([randomBytes(4 << 20)])))
  assert.equal(error.name, 'NotEnoughSpaceError', String(error))
  assert.equal(await box.files.exists('/home/user/more'), false)
})
