import assert from 'node:assert/strict'
import { after, test } from 'node:test'
import { InvalidArgumentError, TimeoutError } from 'e2b'
import { address, api, failure, own, release, route, shared, unique, until } from './lib.mjs'

after(release)

test('the last expression is the result', async () => {
  const box = await shared()
  const run = await box.runCode('x = 1; x += 1; x')
  assert.equal(run.text, '2')
  assert.equal(run.error, undefined)
  assert.ok(run.executionCount >= 1)
  assert.equal(run.results.length, 1)
  assert.equal(run.results[0].isMainResult, true)
  assert.deepEqual(run.results[0].formats(), [])
  assert.equal(run.results[0].toJSON().text, '2')
  assert.deepEqual(run.toJSON().logs, { stdout: [], stderr: [] })
  assert.deepEqual((await box.runCode('y = 5')).results, [])
  assert.equal((await box.runCode('y')).text, '5')
  assert.ok((await box.runCode('y')).executionCount > run.executionCount)
  assert.equal((await box.runCode("'text'")).text, 'text')
  assert.equal((await box.runCode('None')).text, undefined)
  assert.equal((await box.runCode('')).text, undefined)
})

test('definitions and imports are kept', async () => {
  const box = await shared()
  const run = await box.runCode(`
import math
def area(r):
    """of a circle"""
    return math.pi * r ** 2
class Point:
    def __repr__(self): return "Point!"
`)
  assert.equal(run.error, undefined)
  assert.equal((await box.runCode('round(area(2), 3)')).text, '12.566')
  assert.equal((await box.runCode('Point()')).text, 'Point!')
})

test('what is printed comes as it happens', async () => {
  const box = await shared()
  const mark = '/tmp/' + unique()
  const seen = []
  const run = await box.runCode(`
import os, sys, time
print("one"); print("warn", file=sys.stderr)
while not os.path.exists("${mark}"): time.sleep(0.02)
print("two")
`, {
    onStdout: async (m) => { seen.push(m); if (m.line.includes('one')) await box.files.write(mark, '') },
    onStderr: (m) => void seen.push(m),
  })
  assert.equal(run.logs.stdout.join(''), 'one\ntwo\n')
  assert.equal(run.logs.stderr.join(''), 'warn\n')
  assert.ok(seen.every((m) => m.timestamp > 1e12))
  assert.equal(seen.filter((m) => m.error).map((m) => m.line).join(''), 'warn\n')
  const child = await box.runCode('import subprocess; subprocess.run(["echo", "from a child"]); print("☕" * 50000)')
  assert.match(child.logs.stdout.join(''), /from a child/)
  assert.ok(child.logs.stdout.join('').includes('☕'.repeat(50000)))
})

test('errors have a name, a value and a traceback', async () => {
  const box = await shared()
  let told
  const run = await box.runCode('def f():\n  return 1/0\nprint("before")\nf()', { onError: (e) => { told = e } })
  assert.equal(run.error.name, 'ZeroDivisionError')
  assert.match(run.error.value, /division by zero/)
  assert.match(run.error.traceback, /ZeroDivisionError/)
  assert.match(run.error.traceback, /return 1\/0/)
  assert.equal(told.name, 'ZeroDivisionError')
  assert.equal(run.logs.stdout.join(''), 'before\n')
  assert.equal((await box.runCode('def broken(:')).error.name, 'SyntaxError')
  assert.equal((await box.runCode('raise SystemExit(3)')).error.name, 'SystemExit')
  assert.equal((await box.runCode('class E(Exception): pass\nraise E("é ☕")')).error.value, 'é ☕')
  assert.equal((await box.runCode('1 + 1')).text, '2')
})

test('results have every form', async () => {
  const box = await shared()
  const forms = []
  const run = await box.runCode(`
class Rich:
    def __repr__(self): return "plain"
    def _repr_html_(self): return "<b>html</b>"
    def _repr_markdown_(self): return "**md**"
    def _repr_latex_(self): return "$x$"
    def _repr_svg_(self): return "<svg/>"
    def _repr_json_(self): return {"a": [1, None, "ü"]}
    def _repr_javascript_(self): return "alert(1)"
    def _repr_png_(self): return b"\\x89PNG\\r\\n\\x1a\\n"
    def _repr_jpeg_(self): return b"\\xff\\xd8\\xff"
    def _repr_pdf_(self): return b"%PDF-1.4"
Rich()
`, { onResult: (r) => void forms.push(r) })
  assert.equal(run.error, undefined)
  const [result] = run.results
  assert.equal(forms.length, 1)
  assert.deepEqual([result.text, result.html, result.markdown, result.latex, result.svg, result.javascript],
    ['plain', '<b>html</b>', '**md**', '$x$', '<svg/>', 'alert(1)'])
  assert.deepEqual(result.json, { a: [1, null, 'ü'] })
  assert.equal(Buffer.from(result.png, 'base64').toString('latin1'), '\x89PNG\r\n\x1a\n')
  assert.equal(Buffer.from(result.jpeg, 'base64').toString('latin1'), '\xff\xd8\xff')
  assert.equal(Buffer.from(result.pdf, 'base64').toString(), '%PDF-1.4')
  for (const form of ['html', 'markdown', 'latex', 'svg', 'json', 'javascript', 'png', 'jpeg', 'pdf'])
    assert.ok(result.formats().includes(form), form)
})

test('what is displayed is a result too', async () => {
  const box = await shared()
  const run = await box.runCode(`
from IPython.display import display, HTML, Markdown, Image, JSON
display(HTML("<i>one</i>"))
display("two", 3)
display(Markdown("*m*"))
display({"text/plain": "t", "application/x-own": "mine"}, raw=True)
42
`)
  assert.equal(run.error, undefined, run.error?.traceback)
  assert.equal(run.results[0].html, '<i>one</i>')
  assert.deepEqual(run.results.slice(1, 3).map((r) => r.text), ['two', '3'])
  assert.equal(run.results[3].markdown, '*m*')
  assert.equal(run.results[4].extra['application/x-own'], 'mine')
  assert.deepEqual(run.results.map((r) => r.isMainResult), [false, false, false, false, false, true])
  assert.equal(run.text, '42')
})

test('top-level await, magics and shell lines run', async () => {
  const box = await shared()
  const run = await box.runCode('import asyncio\nawait asyncio.sleep(0.01)\n"awaited"')
  assert.equal(run.text, 'awaited', run.error?.traceback)
  const shell = await box.runCode('!echo from the shell')
  assert.match(shell.logs.stdout.join(''), /from the shell/)
})

test('javascript runs', async () => {
  const box = await shared()
  const js = (code, opts) => box.runCode(code, { language: 'javascript', ...opts })
  assert.equal((await js('let n = 40; n + 2')).text, '42')
  assert.equal((await js('n + 3')).text, '43')
  const printed = await js('console.log("out", {a: 1}); console.error("err")')
  assert.equal(printed.logs.stdout.join(''), 'out { a: 1 }\n')
  assert.equal(printed.logs.stderr.join(''), 'err\n')
  const error = await js('throw new TypeError("wrong")')
  assert.equal(error.error.name, 'TypeError')
  assert.match(error.error.value, /wrong/)
  assert.match(error.error.traceback, /TypeError/)
  assert.equal((await js('await new Promise(r => setTimeout(() => r("later"), 10))')).text, 'later')
  assert.equal((await js('const os = require("os"); os.platform()')).text, 'linux')
})

test('bash runs', async () => {
  const box = await shared()
  const bash = (code, opts) => box.runCode(code, { language: 'bash', ...opts })
  assert.equal((await bash('X=kept; echo one; echo two >&2')).logs.stdout.join(''), 'one\n')
  assert.equal((await bash('echo $X; cd /tmp')).logs.stdout.join(''), 'kept\n')
  assert.equal((await bash('pwd')).logs.stdout.join(''), '/tmp\n')
  assert.equal((await bash('echo e >&2')).logs.stderr.join(''), 'e\n')
  const error = await bash('(exit 3)')
  assert.ok(error.error, JSON.stringify(error))
  assert.match(error.error.name + error.error.value, /3/)
})

test('a language that is not there is refused in words', async () => {
  const box = await shared()
  for (const language of ['cobol', 'r', 'java']) {
    const run = await box.runCode('1', { language }).catch((error) => ({ error: { value: error.message } }))
    assert.match(run.error.value, new RegExp(language))
  }
  assert.equal((await box.runCode('1+1')).text, '2')
})

test('contexts keep apart', async () => {
  const box = await shared()
  const one = await box.createCodeContext({ cwd: '/tmp' })
  const two = await box.createCodeContext()
  assert.deepEqual([one.language, one.cwd, two.cwd], ['python', '/tmp', '/home/user'])
  await box.runCode('v = 1', { context: one })
  await box.runCode('v = 2', { context: two })
  assert.equal((await box.runCode('v', { context: one })).text, '1')
  assert.equal((await box.runCode('v', { context: two })).text, '2')
  assert.equal((await box.runCode('import os; os.getcwd()', { context: one })).text, '/tmp')
  assert.equal((await box.runCode('v')).error.name, 'NameError')
  const listed = await box.listCodeContexts()
  for (const c of [one, two]) assert.ok(listed.some((l) => l.id === c.id && l.language === 'python'), JSON.stringify(listed))
  await box.restartCodeContext(one)
  assert.equal((await box.runCode('v', { context: one })).error.name, 'NameError')
  await box.removeCodeContext(one.id)
  await box.removeCodeContext(two)
  assert.ok(!(await box.listCodeContexts()).some((l) => [one.id, two.id].includes(l.id)))
  for (const call of [
    () => box.runCode('1', { context: one }), () => box.removeCodeContext(one), () => box.restartCodeContext('no-such'),
  ]) await assert.rejects(call(), /no|found|exist/i)
  await assert.rejects(box.runCode('1', { context: one, language: 'python' }), InvalidArgumentError)
  await assert.rejects(box.createCodeContext({ cwd: '/no/such/place' }), /no\/such\/place/)
})

test('contexts of other languages keep apart', async () => {
  const box = await shared()
  const js = await box.createCodeContext({ language: 'javascript' })
  const bash = await box.createCodeContext({ language: 'bash', cwd: '/usr' })
  await box.runCode('globalThis.v = 7', { context: js })
  assert.equal((await box.runCode('v', { context: js })).text, '7')
  assert.equal((await box.runCode('typeof v', { language: 'javascript' })).text, 'undefined')
  assert.equal((await box.runCode('pwd', { context: bash })).logs.stdout.join(''), '/usr\n')
  for (const c of [js, bash]) await box.removeCodeContext(c)
})

test('contexts run at the same time', async () => {
  const box = await shared()
  const [one, two] = [await box.createCodeContext(), await box.createCodeContext()]
  const mark = '/tmp/' + unique()
  const waiting = box.runCode(`import os, time\nwhile not os.path.exists("${mark}"): time.sleep(0.02)\n"went"`, { context: one })
  await box.runCode(`open("${mark}", "w").close()`, { context: two })
  assert.equal((await waiting).text, 'went')
  for (const c of [one, two]) await box.removeCodeContext(c)
})

test('variables hold for one run', async (t) => {
  const box = await own(t, { envs: { A: 'sandbox' } })
  const show = 'import os; (os.environ.get("A"), os.environ.get("B"))'
  assert.equal((await box.runCode(show)).text, "('sandbox', None)")
  assert.equal((await box.runCode(show, { envs: { A: 'run', B: 'ü' } })).text, "('run', 'ü')")
  assert.equal((await box.runCode(show)).text, "('sandbox', None)")
  assert.equal((await box.runCode('echo $A-$B', { language: 'bash', envs: { B: 'b' } })).logs.stdout.join(''), 'sandbox-b\n')
  assert.equal((await box.runCode('process.env.B', { language: 'javascript', envs: { B: 'b' } })).text, 'b')
})

test('a limit interrupts and keeps the state', async () => {
  const box = await shared()
  await box.runCode('kept = 1')
  const error = await failure(box.runCode('import time\nwhile True: time.sleep(0.01)', { timeoutMs: 700 }))
  assert.ok(error instanceof TimeoutError, String(error))
  await until('it answers again', async () => (await box.runCode('kept + 1', { timeoutMs: 5000 }).catch(() => ({}))).text === '2')
})

test('an interpreter that dies is said to', async (t) => {
  const box = await own(t)
  const dead = await box.runCode('import os; os._exit(7)').catch((e) => e)
  const said = dead instanceof Error ? dead.message : JSON.stringify(dead.error ?? dead)
  assert.ok(dead instanceof Error || dead.error, said)
  await until('it answers again', async () => (await box.runCode('1 + 1').catch(() => ({}))).text === '2')
})

test('runs where commands and files are', async () => {
  const box = await shared()
  const name = unique()
  await box.runCode(`open("${name}", "w").write("from python")`)
  assert.equal(await box.files.read('/home/user/' + name), 'from python')
  assert.equal((await box.commands.run(`cat ${name}`)).stdout, 'from python')
  await box.files.write('/home/user/' + name + '2', 'from outside')
  assert.equal((await box.runCode(`import os; (os.getcwd(), open("${name}2").read())`)).text, "('/home/user', 'from outside')")
})

test('the stream is typed lines', async () => {
  const box = await shared()
  const { json } = await api('POST', `/sandboxes/${box.sandboxId}/connect`, { timeout: 60 })
  const call = (body) => fetch(new URL('/execute', address), {
    method: 'POST', body: JSON.stringify(body),
    headers: { ...route(box, 49999), 'X-Access-Token': json.envdAccessToken, 'Content-Type': 'application/json' },
  })
  const answer = await call({ code: 'print("a")\n1 + 1' })
  assert.equal(answer.status, 200)
  const lines = (await answer.text()).trim().split('\n').map((line) => JSON.parse(line))
  const types = lines.map((l) => l.type)
  assert.equal(types.at(-1), 'end_of_execution')
  for (const type of ['stdout', 'result', 'number_of_executions']) assert.ok(types.includes(type), types.join())
  assert.ok('timestamp' in lines.find((l) => l.type === 'stdout'))
  assert.equal(lines.find((l) => l.type === 'result').is_main_result, true)
  assert.equal((await call({ code: '1', context_id: 'x', language: 'python' })).status, 400)
  assert.equal((await call({ code: '1', context_id: 'no-such' })).status, 404)
  assert.equal((await call({})).status >= 400, true)
  const health = await fetch(new URL('/health', address), { headers: route(box, 49999) })
  assert.equal(health.status, 200)
})

test('long silence is filled', async () => {
  const box = await shared()
  const { json } = await api('POST', `/sandboxes/${box.sandboxId}/connect`, { timeout: 60 })
  const answer = await fetch(new URL('/execute', address), {
    method: 'POST', body: JSON.stringify({ code: 'import time; time.sleep(6)' }),
    headers: { ...route(box, 49999), 'X-Access-Token': json.envdAccessToken, 'Content-Type': 'application/json' },
  })
  assert.match(await answer.text(), /"type":\s*"keepalive"/)
})
