import assert from 'node:assert/strict'
import { after, test } from 'node:test'
import { NotFoundError } from 'e2b'
import { failure, own, release, shared, until } from './lib.mjs'

after(release)

const bytes = (text) => new TextEncoder().encode(text)

// terminal opens one and collects what it shows.
async function terminal(t, box, opts = {}) {
  const term = { text: '' }
  const decoder = new TextDecoder()
  term.handle = await box.pty.create({
    cols: 80, rows: 24, timeoutMs: 60_000, ...opts,
    onData: (data) => {
      assert.ok(data instanceof Uint8Array)
      term.text += decoder.decode(data, { stream: true })
    },
  })
  t.after(() => box.pty.kill(term.handle.pid).catch(() => {}))
  term.send = (text) => box.pty.sendInput(term.handle.pid, bytes(text))
  term.shows = (what) => until(() => `it shows ${what}, but ${JSON.stringify(term.text)}`, () => term.text.match(what))
  term.prompt = () => term.shows(/[$#] $/)
  return term
}

test('a terminal runs a shell', async (t) => {
  const term = await terminal(t, await shared(), { envs: { GREETING: 'hello' }, cwd: '/tmp' })
  await term.send('echo "<$GREETING:$TERM:$LANG:$PWD:$(whoami)>"; tty\n')
  await term.shows(/<hello:xterm-256color:C\.UTF-8:\/tmp:user>/)
  await term.shows(/\/dev\/pts\/\d+/)
  await term.send('exit 3\n')
  const error = await failure(term.handle.wait())
  assert.equal(error.exitCode, 3)
})

test('a terminal has a size that can change', async (t) => {
  const box = await shared()
  const term = await terminal(t, box, { cols: 100, rows: 30 })
  await term.send('stty size\n')
  await term.shows(/30 100/)
  await term.prompt()
  await term.send(`trap 'echo changed $(stty size)' WINCH; echo se""t\n`)
  await term.shows(/set\r\n/)
  await term.prompt()
  await box.pty.resize(term.handle.pid, { cols: 132, rows: 43 })
  await term.send('\n')
  await term.shows(/changed 43 132/)
  for (const size of [{ cols: 1, rows: 1 }, { cols: 0, rows: 0 }, { cols: 9999, rows: 9999 }])
    await box.pty.resize(term.handle.pid, size).catch(() => {})
  await box.pty.resize(term.handle.pid, { cols: 90, rows: 20 })
  await term.send('stty size\n')
  await term.shows(/20 90/)
})

// The programs say themselves that they run. A shell that says it before it starts one is ahead of the program's having
// the terminal: a key in between reaches the shell alone, on any machine, and the program runs on.
test('keys interrupt, end and suspend', async (t) => {
  const term = await terminal(t, await shared())
  await term.send(`sh -c 'echo rea""dy; exec sleep 100'\n`)
  await term.shows(/ready\r\n/)
  await term.send('\x03')
  await term.prompt()
  await term.send('echo "status:$?:"\n')
  await term.shows(/status:130:/)
  await term.prompt()
  await term.send('echo an""swers; cat\n')
  await term.shows(/answers\r\n/) // with the end of its line, or the echo of the next comes in between
  await term.send('line\n')
  await term.shows(/line\r\nline/)
  await term.send('\x04')
  await term.prompt()
  await term.send('echo "after:""cat"\n')
  await term.shows(/after:cat\r\n/)
  await term.prompt()
  await term.send(`sh -c 'echo wait""ing; exec sleep 100'\n`)
  await term.shows(/waiting\r\n/)
  await term.send('\x1a')
  await term.shows(/Stopped/)
  await term.prompt()
  await term.send('jobs; kill %1; echo "end:""of:it"\n')
  await term.shows(/end:of:it\r\n/)
})

test('another connection joins a terminal', async (t) => {
  const box = await shared()
  const term = await terminal(t, box)
  await term.send('x=kept\n')
  await term.handle.disconnect()
  let text = ''
  const again = await box.pty.connect(term.handle.pid, { onData: (d) => { text += new TextDecoder().decode(d) }, timeoutMs: 60_000 })
  assert.equal(again.pid, term.handle.pid)
  await box.pty.sendInput(again.pid, bytes('echo "x is $x."\n'))
  await until('the other hears it', () => text.includes('x is kept.'))
  assert.ok((await box.commands.list()).some((p) => p.pid === again.pid))
  assert.equal(await box.pty.kill(again.pid), true)
  await assert.rejects(again.wait())
  assert.equal(await box.pty.kill(again.pid), false)
  await assert.rejects(box.pty.sendInput(again.pid, bytes('x')), NotFoundError)
  await assert.rejects(box.pty.resize(4_000_000, { cols: 80, rows: 24 }), NotFoundError)
})

test('a terminal belongs to a user', async (t) => {
  const term = await terminal(t, await shared(), { user: 'root' })
  await term.send('echo "<$(id -u):$HOME>"\n')
  await term.shows(/<0:\/root>/)
})

test('a terminal survives a pause and a fork', async (t) => {
  const box = await own(t)
  const term = await terminal(t, box)
  await term.send('x=kept; echo rea""dy\n')
  await term.shows(/ready/)
  await box.pause()
  await box.connect({ timeoutMs: 60_000 })
  const [child] = await box.fork()
  t.after(() => child.kill())
  for (const b of [box, child]) {
    let text = ''
    const again = await b.pty.connect(term.handle.pid, { onData: (d) => { text += new TextDecoder().decode(d) } })
    await b.pty.sendInput(again.pid, bytes('echo "x is $x."\n'))
    await until('it answers', () => text.includes('x is kept.'))
    await again.disconnect()
  }
})
