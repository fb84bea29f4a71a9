import assert from 'node:assert/strict'
import { after, test } from 'node:test'
import { AuthenticationError, CommandExitError, InvalidArgumentError, NotFoundError, Sandbox, SandboxError, TimeoutError } from 'e2b'
import { slowness } from './clock.mjs'
import { failure, own, release, sha256, shared, sleep, unique, until } from './lib.mjs'

after(release)

// pgrep tells which processes of a sandbox have a word in their command line.
async function pgrep(box, word) {
  const { stdout } = await box.commands.run(`grep -las '[${word[0]}]${word.slice(1)}' /proc/[0-9]*/cmdline; true`)
  return Array.from(stdout.matchAll(/\d+/g), Number)
}

test('runs in the foreground', async () => {
  const box = await shared()
  const result = await box.commands.run('echo out; echo err >&2')
  assert.deepEqual({ ...result }, { exitCode: 0, error: result.error, stdout: 'out\n', stderr: 'err\n' })
  assert.ok(!result.error)
  assert.equal((await box.commands.run('printf x')).stdout, 'x')
  assert.equal((await box.commands.run('true')).stdout, '')
})

test('a status other than zero is an error with all output', async () => {
  const box = await shared()
  const error = await failure(box.commands.run('echo out; echo err >&2; exit 3'))
  assert.ok(error instanceof CommandExitError)
  assert.deepEqual([error.exitCode, error.stdout, error.stderr], [3, 'out\n', 'err\n'])
  assert.equal(typeof error.error, 'string')
  assert.equal((await failure(box.commands.run('no-such-program'))).exitCode, 127)
  assert.equal((await failure(box.commands.run('/etc/passwd'))).exitCode, 126)
  assert.notEqual((await failure(box.commands.run('echo "unclosed'))).exitCode, 0)
})

test('output comes while a command runs', async () => {
  const box = await shared()
  const mark = '/tmp/' + unique()
  const seen = []
  const result = await box.commands.run(`echo one; echo two >&2; until [ -e ${mark} ]; do sleep 0.02; done; echo three`, {
    onStdout: async (data) => {
      seen.push(['out', data])
      if (data.includes('one')) await box.files.write(mark, '')
    },
    onStderr: (data) => seen.push(['err', data]),
  })
  assert.equal(result.stdout, 'one\nthree\n')
  const joined = (kind) => seen.filter(([k]) => k === kind).map(([, data]) => data).join('')
  assert.equal(joined('out'), 'one\nthree\n')
  assert.equal(joined('err'), 'two\n')
})

test('characters survive the cut between pieces', async () => {
  const box = await shared()
  const pieces = []
  const long = await box.commands.run(`python3 -c "import sys; sys.stdout.write('☕' * 100000)"`, { onStdout: (d) => void pieces.push(d) })
  assert.equal(long.stdout, '☕'.repeat(100000))
  assert.equal(pieces.join(''), long.stdout)
  const slow = await box.commands.run(`printf '\\303'; sleep 0.05; printf '\\251'; printf '\\303' >&2; sleep 0.05; printf '\\251' >&2`)
  assert.deepEqual([slow.stdout, slow.stderr], ['é', 'é'])
})

test('runs in the background', async () => {
  const box = await shared()
  const mark = '/tmp/' + unique()
  let out = ''
  const handle = await box.commands.run(`echo started; until [ -e ${mark} ]; do sleep 0.02; done; echo ended; exit 0`, {
    background: true, envs: { MARK: mark }, cwd: '/tmp', onStdout: (d) => { out += d },
  })
  assert.ok(handle.pid > 0)
  await until('it has started', () => out.includes('started'))
  assert.equal(handle.exitCode, undefined)
  const found = (await box.commands.list()).find((p) => p.pid === handle.pid)
  assert.equal(found.cmd, '/bin/bash')
  assert.deepEqual(found.args.slice(0, 2), ['-l', '-c'])
  assert.match(found.args[2], /echo started/)
  assert.equal(found.envs.MARK, mark)
  assert.equal(found.cwd, '/tmp')
  await box.files.write(mark, '')
  const result = await handle.wait()
  assert.deepEqual([result.exitCode, result.stdout], [0, 'started\nended\n'])
  assert.deepEqual([handle.exitCode, handle.stdout, handle.stderr], [0, 'started\nended\n', ''])
  assert.ok(!handle.error)
  assert.ok(!(await box.commands.list()).some((p) => p.pid === handle.pid))
})

test('kills', async () => {
  const box = await shared()
  const word = unique()
  for (const kill of [(h) => h.kill(), (h) => box.commands.kill(h.pid)]) {
    const handle = await box.commands.run(`exec -a ${word} sleep 300`, { background: true })
    await until('it runs', async () => (await pgrep(box, word)).length)
    assert.equal(await kill(handle), true)
    const error = await failure(handle.wait())
    assert.ok(error instanceof CommandExitError, String(error))
    assert.notEqual(error.exitCode, 0)
    assert.equal(await kill(handle), false)
    assert.deepEqual(await pgrep(box, word), [])
  }
  assert.equal(await box.commands.kill(4_000_000), false)
})

test('writes to a command and closes its input', async () => {
  const box = await shared()
  const sort = await box.commands.run('sort', { background: true, stdin: true })
  await sort.sendStdin('pear\nfig\n')
  await box.commands.sendStdin(sort.pid, new TextEncoder().encode('apple\n'))
  await sort.closeStdin()
  assert.equal((await sort.wait()).stdout, 'apple\nfig\npear\n')
  const cat = await box.commands.run('cat', { background: true, stdin: true })
  await box.commands.sendStdin(cat.pid, 'ü\n')
  await until('it comes back', () => cat.stdout === 'ü\n')
  await box.commands.closeStdin(cat.pid)
  assert.equal((await cat.wait()).stdout, 'ü\n')
  const error = await failure(box.commands.sendStdin(cat.pid, 'late'))
  assert.ok(error instanceof NotFoundError || error instanceof SandboxError, String(error))
  await assert.rejects(box.commands.closeStdin(4_000_000), NotFoundError)
  assert.equal(box.commands.supportsStdinClose, true)
})

test('an input larger than a pipe arrives', async () => {
  const box = await shared()
  const data = Buffer.alloc(3 << 20, 'forkd ')
  const handle = await box.commands.run('sha256sum', { background: true, stdin: true })
  for (let at = 0; at < data.length; at += 1 << 20) await handle.sendStdin(data.subarray(at, at + (1 << 20)))
  await handle.closeStdin()
  assert.equal((await handle.wait()).stdout.slice(0, 64), sha256(data))
})

test('without input a command reads the end at once', async () => {
  const box = await shared()
  assert.equal((await box.commands.run('cat', { timeoutMs: 10_000 })).stdout, '')
  assert.equal((await box.commands.run('read x; echo "got:$x"', { timeoutMs: 10_000 })).stdout, 'got:\n')
  const handle = await box.commands.run('sleep 30', { background: true, stdin: false })
  await assert.rejects(handle.sendStdin('x'))
  await handle.kill()
})

test('connects to a running command', async () => {
  const box = await shared()
  const mark = '/tmp/' + unique()
  const handle = await box.commands.run(`until [ -e ${mark} ]; do sleep 0.02; done; seq 1 200; exit 4`, { background: true })
  const outs = ['', '']
  const others = await Promise.all([0, 1].map((i) => box.commands.connect(handle.pid, { onStdout: (d) => { outs[i] += d } })))
  assert.ok(others.every((o) => o.pid === handle.pid))
  await box.files.write(mark, '')
  const want = Array.from({ length: 200 }, (_, i) => `${i + 1}\n`).join('')
  for (const h of [handle, ...others]) {
    const error = await failure(h.wait())
    assert.ok(error instanceof CommandExitError, String(error))
    assert.deepEqual([error.exitCode, error.stdout], [4, want])
  }
  assert.deepEqual(outs, [want, want])
  const late = await failure(box.commands.connect(handle.pid).then((h) => h.wait()))
  assert.ok((late instanceof CommandExitError && late.exitCode === 4) || late instanceof NotFoundError, String(late))
  await assert.rejects(box.commands.connect(4_000_000), NotFoundError)
})

test('a command lives on when nobody listens', async () => {
  const box = await shared()
  const file = '/tmp/' + unique()
  const handle = await box.commands.run(`i=0; while :; do i=$((i+1)); echo $i; echo $i > ${file}.new; mv ${file}.new ${file}; sleep 0.02; done`, { background: true })
  await until('it counts', async () => handle.stdout.includes('2\n'))
  await handle.disconnect()
  const count = async () => Number(await box.files.read(file))
  const before = await count()
  await until('it counts on', async () => (await count()) > before + 3)
  let more = ''
  const again = await box.commands.connect(handle.pid, { onStdout: (d) => { more += d } })
  await until('it is heard again', () => more.length > 0)
  assert.ok(Number(more.split('\n')[0]) > before)
  assert.equal(await again.kill(), true)
  await assert.rejects(again.wait(), CommandExitError)
})

test('a time limit ends a command and all it has started', async () => {
  const box = await shared()
  const word = unique()
  const error = await failure(box.commands.run(`(exec -a ${word} sleep 300) & (exec -a ${word} sleep 300)`, { timeoutMs: 1000 }))
  assert.ok(error instanceof TimeoutError, String(error))
  await until('all are gone', async () => (await pgrep(box, word)).length === 0)
  const slow = await failure(box.commands.run('yes', { timeoutMs: 500, onStdout: () => {} }))
  assert.ok(slow instanceof TimeoutError, String(slow))
})

test('a limit of zero is none', async () => {
  const box = await shared()
  assert.equal((await box.commands.run('sleep 1.5; echo done', { timeoutMs: 0 })).stdout, 'done\n')
})

test('a caller can give up', async () => {
  const box = await shared()
  const abort = new AbortController()
  const word = unique()
  const pending = failure(box.commands.run(`exec -a ${word} sleep 60`, { signal: abort.signal }))
  const [pid] = await until('it runs', async () => { const all = await pgrep(box, word); return all.length && all })
  abort.abort()
  await pending
  await box.commands.kill(pid)
})

test('a command that has started outlives the limit of its request', async () => {
  const box = await shared()
  assert.equal((await box.commands.run(`sleep ${1.5 * slowness}; echo done`, { requestTimeoutMs: 700 })).stdout, 'done\n')
})

test('runs as a user, in a directory, with variables', async () => {
  const box = await shared()
  const run = async (cmd, opts) => (await box.commands.run(cmd, opts)).stdout.trim()
  assert.equal(await run('whoami'), 'user')
  assert.equal(await run('echo $HOME:$USER:$PWD'), '/home/user:user:/home/user')
  assert.equal(await run('whoami; echo $HOME; pwd', { user: 'root' }), 'root\n/root\n/root')
  assert.equal(await run('id -u', { user: 'user' }), await run('id -u'))
  assert.notEqual(await run('id -u'), '0')
  assert.equal(await run('pwd', { cwd: '/tmp' }), '/tmp')
  assert.equal(await run('echo "$A|$B"', { envs: { A: 'a b', B: 'ü$x' } }), 'a b|ü$x')
  const user = await failure(box.commands.run('true', { user: 'nobody-such' }))
  assert.ok(user instanceof AuthenticationError || user instanceof InvalidArgumentError, String(user))
  assert.match(user.message, /nobody-such/)
  const cwd = await failure(box.commands.run('true', { cwd: '/no/such/place' }))
  assert.match(cwd.message, /\/no\/such\/place/)
  assert.ok(!(cwd instanceof CommandExitError && cwd.exitCode === 0))
})

test('variables of the sandbox lie under those of a command', async (t) => {
  const box = await own(t, { envs: { A: 'sandbox', B: 'sandbox' } })
  assert.equal((await box.commands.run('echo $A $B', { envs: { B: 'command' } })).stdout, 'sandbox command\n')
  const pty = await box.commands.run('env', { envs: {} })
  assert.match(pty.stdout, /^A=sandbox$/m)
})

test('scripts of many lines run as they are', async () => {
  const box = await shared()
  const file = '/tmp/' + unique()
  await box.commands.run(`cat <<'EOF' > ${file}\nhello $HOME\n  two\nEOF\n`)
  assert.equal(await box.files.read(file), 'hello $HOME\n  two\n')
  assert.equal((await box.commands.run('echo one # a comment')).stdout, 'one\n')
  assert.equal((await box.commands.run('echo a\\\nb')).stdout, 'ab\n')
  const long = 'x=1\n'.repeat(16_000) + 'echo $x'
  assert.equal((await box.commands.run(long)).stdout, '1\n')
  const tooLong = await failure(box.commands.run('true ' + 'y'.repeat(200_000)))
  assert.match(tooLong.message, /long/)
})

test('what a command leaves behind does not hold it', async () => {
  const box = await shared()
  const word = unique()
  for (const start of [`(exec -a ${word} sleep 300) &`, `nohup bash -c 'exec -a ${word} sleep 300' &`, `setsid bash -c 'exec -a ${word} sleep 300' &`]) {
    assert.match((await box.commands.run(start + ' echo STARTED', { timeoutMs: 20_000 })).stdout, /STARTED/)
  }
  assert.equal((await pgrep(box, word)).length, 3)
  for (const pid of await pgrep(box, word)) await box.commands.run(`kill -9 ${pid}`)
})

test('short commands lose nothing', async () => {
  const box = await shared()
  const results = []
  let next = 0
  await Promise.all(Array.from({ length: 16 }, async () => {
    for (let i = next++; i < 100; i = next++) results[i] = await box.commands.run(`echo ${i}`)
  }))
  results.forEach((result, i) => assert.equal(result.stdout, `${i}\n`))
  const failed = await Promise.all(Array.from({ length: 20 }, () => failure(box.commands.run('printf x; exit 9'))))
  for (const error of failed) assert.deepEqual([error.exitCode, error.stdout], [9, 'x'])
})

test('much output arrives whole', async () => {
  const box = await shared()
  let bytes = 0
  const result = await box.commands.run('head -c 8000000 /dev/zero | tr "\\0" x', { onStdout: (d) => { bytes += d.length } })
  assert.equal(bytes, 8_000_000)
  assert.equal(sha256(result.stdout), sha256(Buffer.alloc(8_000_000, 'x')))
})

test('a slow listener slows the command, and loses nothing', async () => {
  const box = await shared()
  let got = 0
  await box.commands.run('head -c 3000000 /dev/zero | tr "\\0" x', { onStdout: async (d) => { got += d.length; await sleep(5) } })
  assert.equal(got, 3_000_000)
})

test('works by process id from another connection', async () => {
  const box = await shared()
  const handle = await box.commands.run('cat', { background: true, stdin: true })
  const other = await Sandbox.connect(box.sandboxId)
  const listening = await other.commands.connect(handle.pid)
  await other.commands.sendStdin(handle.pid, 'hello\n')
  await until('both hear it', () => handle.stdout === 'hello\n' && listening.stdout === 'hello\n')
  await listening.closeStdin()
  assert.equal((await handle.wait()).stdout, 'hello\n')
  assert.equal((await listening.wait()).exitCode, 0)
})
