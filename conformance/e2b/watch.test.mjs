import assert from 'node:assert/strict'
import { after, test } from 'node:test'
import { FilesystemEventType, FileType, NotFoundError } from 'e2b'
import { api, address, failure, own, release, route, shared, sleep, unique, until } from './lib.mjs'

after(release)

// watched makes a directory and collects what happens in it.
async function watched(t, box, opts) {
  const path = '/home/user/' + unique()
  await box.files.makeDir(path)
  const events = []
  const handle = await box.files.watchDir(path, (event) => void events.push(event), opts)
  t.after(() => handle.stop())
  const saw = (type, name) => until(() => `${type} of ${name} in ${JSON.stringify(events)}`, () => events.find((e) => e.type === type && e.name === name))
  return { path, events, handle, saw }
}

test('tells what happens in a directory', async (t) => {
  const box = await shared()
  const { path, saw } = await watched(t, box)
  await box.files.write(path + '/a', 'x')
  await saw(FilesystemEventType.CREATE, 'a')
  await saw(FilesystemEventType.WRITE, 'a')
  await box.commands.run(`chmod 600 ${path}/a`)
  await saw(FilesystemEventType.CHMOD, 'a')
  await box.files.rename(path + '/a', path + '/b')
  await saw(FilesystemEventType.RENAME, 'a')
  await saw(FilesystemEventType.CREATE, 'b')
  await box.files.remove(path + '/b')
  await saw(FilesystemEventType.REMOVE, 'b')
  await box.files.makeDir(path + '/ü d')
  await saw(FilesystemEventType.CREATE, 'ü d')
})

test('stops when it is told to', async (t) => {
  const box = await shared()
  let ended = 0
  const { path, events, handle, saw } = await watched(t, box, { onExit: () => { ended++ } })
  await box.files.write(path + '/a', 'x')
  await saw(FilesystemEventType.CREATE, 'a')
  await handle.stop()
  await until('it has ended', () => ended)
  const before = events.length
  await box.files.write(path + '/late', 'x')
  await sleep(300)
  assert.equal(events.length, before)
  assert.equal(ended, 1)
})

test('does not look below unless asked', async (t) => {
  const box = await shared()
  const { path, events, saw } = await watched(t, box)
  await box.files.makeDir(path + '/d')
  await box.files.write(path + '/d/f', 'x')
  await box.files.write(path + '/mark', 'x')
  await saw(FilesystemEventType.CREATE, 'mark')
  assert.ok(!events.some((e) => e.name.includes('f')), JSON.stringify(events))
})

test('looks below, in new directories too', async (t) => {
  const box = await shared()
  const { path, events, saw } = await watched(t, box, { recursive: true })
  const rounds = 10
  for (let i = 0; i < rounds; i++) {
    await box.commands.run(`cd ${path} && mkdir -p a${i}/b/c && echo x > a${i}/b/c/f && mv a${i} z${i} && echo y > z${i}/b/g`)
  }
  for (let i = 0; i < rounds; i++) {
    const has = (pattern) => until(() => `${pattern} of ${JSON.stringify(events.slice(-8))}`, () => events.some((e) => e.type === 'create' && pattern.test(e.name)))
    await has(new RegExp(`^[az]${i}/b/c/f$`))
    await has(new RegExp(`^[az]${i}/b/g$`))
  }
  await saw(FilesystemEventType.RENAME, 'a0')
})

test('describes the entries when asked', async (t) => {
  const box = await shared()
  const { path, saw } = await watched(t, box, { includeEntry: true })
  await box.files.makeDir(path + '/d')
  const { entry } = await saw(FilesystemEventType.CREATE, 'd')
  assert.deepEqual([entry.name, entry.path, entry.type, entry.owner], ['d', path + '/d', FileType.DIR, 'user'])
})

test('network mounts may be asked for', async (t) => {
  const box = await shared()
  const { path, saw } = await watched(t, box, { allowNetworkMounts: true })
  await box.files.write(path + '/a', 'x')
  await saw(FilesystemEventType.CREATE, 'a')
})

test('a limit ends it', async (t) => {
  const box = await shared()
  let error
  await watched(t, box, { timeoutMs: 700, onExit: (e) => { error = e ?? 'no error' } })
  await until('it has ended', () => error)
  assert.equal(error.name, 'TimeoutError', String(error))
})

test('refuses what is no directory', async () => {
  const box = await shared()
  assert.ok((await failure(box.files.watchDir('/home/user/none', () => {}))) instanceof NotFoundError)
  const file = await box.files.write(unique(), 'x')
  assert.ok((await failure(box.files.watchDir(file.path, () => {}))) instanceof Error)
})

test('ends with its sandbox', async (t) => {
  const box = await own(t)
  let ended
  await watched(t, box, { onExit: (e) => { ended = e ?? 'no error' } })
  await box.kill()
  await until('it has ended', () => ended)
})

test('can be asked for events instead', async () => {
  const box = await shared()
  const path = '/home/user/' + unique()
  await box.files.makeDir(path)
  const { json } = await api('POST', `/sandboxes/${box.sandboxId}/connect`, { timeout: 60 })
  const call = async (method, body) => {
    const answer = await fetch(new URL('/filesystem.Filesystem/' + method, address), {
      method: 'POST', body: JSON.stringify(body),
      headers: { ...route(box, 49983), 'X-Access-Token': json.envdAccessToken, 'Content-Type': 'application/json', 'Connect-Protocol-Version': '1' },
    })
    return { status: answer.status, ...(await answer.json()) }
  }
  const { watcherId } = await call('CreateWatcher', { path, recursive: true })
  assert.ok(watcherId)
  await box.files.write(path + '/a', 'x')
  const seen = []
  await until('it is told', async () => {
    seen.push(...((await call('GetWatcherEvents', { watcherId })).events ?? []))
    return seen.some((e) => e.name === 'a' && e.type === 'EVENT_TYPE_CREATE')
  })
  assert.equal((await call('RemoveWatcher', { watcherId })).status, 200)
  assert.equal((await call('GetWatcherEvents', { watcherId })).code, 'not_found')
})
