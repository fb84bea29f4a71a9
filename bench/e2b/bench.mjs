// Measures a forkd daemon through the official package; see doc.go for what the
// figures mean. Prints JSON.

import { createHash, randomBytes } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { Sandbox } from '@e2b/code-interpreter'

const only = process.argv[2] ? process.argv[2].split(',') : []
const wanted = (...names) => only.length === 0 || names.some((name) => only.includes(name))
const figures = {}

const sorted = (values) => [...values].sort((a, b) => a - b)
const median = (values) => sorted(values)[Math.floor(values.length / 2)]
const round = (value, digits) => Number(value.toFixed(digits))
const sha256 = (data) => createHash('sha256').update(data).digest('hex')
const options = { timeoutMs: 600_000 }

async function timed(work) {
  const start = performance.now()
  await work()
  return performance.now() - start
}

// repeat measures several times, one after the other, after some for warming up.
async function repeat(count, work, warm = 3) {
  for (let i = 0; i < warm; i++) await work()
  const times = []
  for (let i = 0; i < count; i++) times.push(await work())
  return times
}

async function firstCommand() {
  const times = await repeat(30, async () => {
    let box
    const time = await timed(async () => {
      box = await Sandbox.create(options)
      const { stdout } = await box.commands.run('echo ok')
      if (stdout !== 'ok\n') throw new Error(`the first command printed ${JSON.stringify(stdout)}`)
    })
    await box.kill()
    return time
  })
  figures.first_command_p50_ms = round(median(times), 1)
  figures.first_command_p90_ms = round(sorted(times)[Math.floor(times.length * 0.9)], 1)
}

async function burst() {
  const created = []
  const times = await repeat(3, async () => {
    const boxes = []
    let last = 0
    const start = performance.now()
    const time = await timed(() => Promise.all(Array.from({ length: 100 }, async (_, i) => {
      const box = await Sandbox.create(options)
      boxes.push(box)
      last = performance.now() - start
      const { stdout } = await box.commands.run(`echo ${i}`)
      if (stdout !== `${i}\n`) throw new Error(`command ${i} printed ${JSON.stringify(stdout)}`)
    })))
    created.push(last)
    await Promise.all(boxes.map((box) => box.kill()))
    return time
  }, 1)
  figures.burst100_s = round(median(times) / 1000, 2)
  figures.burst100_created_s = round(median(created) / 1000, 2)
}

async function runCode(box) {
  const times = await repeat(200, () => timed(async () => {
    const { text } = await box.runCode('1+1')
    if (text !== '2') throw new Error(`1+1 is ${text}`)
  }), 20)
  figures.run_code_p50_ms = round(median(times), 2)
  figures.run_code_p90_ms = round(sorted(times)[180], 2)
}

async function transfer(box) {
  const data = randomBytes(64 << 20)
  const buffer = data.buffer.slice(data.byteOffset, data.byteOffset + data.length)
  const path = '/home/user/large'
  const megabytes = data.length / 1e6
  let back
  const up = await repeat(5, () => timed(() => box.files.write(path, buffer)), 1)
  const down = await repeat(5, () => timed(async () => { back = await box.files.read(path, { format: 'bytes' }) }), 1)
  figures.upload_mb_s = round((megabytes / median(up)) * 1000, 1)
  figures.download_mb_s = round((megabytes / median(down)) * 1000, 1)
  figures.identical = sha256(back) === sha256(data)
  await box.files.remove(path)
}

// resident is the daemon's resident memory in MiB.
function resident() {
  const [, kib] = /^VmRSS:\s*(\d+)/m.exec(readFileSync(`/proc/${process.env.DAEMON_PID}/status`, 'utf8'))
  return Number(kib) / 1024
}

async function growth(box) {
  const print = async (bytes) => {
    let got = 0
    await box.commands.run(`head -c ${bytes} /dev/zero | tr '\\0' x`, { timeoutMs: 0, onStdout: (data) => { got += data.length } })
    if (got !== bytes) throw new Error(`of ${bytes} bytes ${got} arrived`)
  }
  await print(20_000_000)
  const before = resident()
  let peak = before
  const sampling = setInterval(() => { peak = Math.max(peak, resident()) }, 10)
  const time = await timed(() => print(200_000_000))
  clearInterval(sampling)
  figures.daemon_growth_mib = round(Math.max(peak, resident()) - before, 1)
  figures.stream_mb_s = round(200_000 / time, 1)
}

async function lost() {
  const boxes = await Promise.all(Array.from({ length: 50 }, () => Sandbox.create(options)))
  let missing = 0
  const time = await timed(() => Promise.all(Array.from({ length: 1000 }, async (_, i) => {
    const want = `${i}\n`.repeat(100)
    const { stdout } = await boxes[i % 50].commands.run(`for i in {1..100}; do echo ${i}; done`, { timeoutMs: 0, requestTimeoutMs: 0 })
    if (stdout === want) return
    missing += Math.max(1, Math.abs(want.length - stdout.length))
  })))
  figures.lost_bytes = missing
  figures.commands1000_s = round(time / 1000, 2)
  await Promise.all(boxes.map((box) => box.kill()))
}

if (wanted('first_command_p50_ms')) await firstCommand()
if (wanted('burst100_s')) await burst()
const box = await Sandbox.create(options)
if (wanted('run_code_p50_ms')) await runCode(box)
if (wanted('upload_mb_s', 'download_mb_s')) await transfer(box)
if (wanted('daemon_growth_mib')) await growth(box)
await box.kill()
if (wanted('lost_bytes')) await lost()
console.log(JSON.stringify(figures, null, 2))
