// What the tests of this suite share.

import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import http from 'node:http'
import { Sandbox } from '@e2b/code-interpreter'
import { slowness } from './clock.mjs'

// address is where the daemon answers; the packages read the same variables.
export const address = new URL(process.env.E2B_API_URL)
export const key = process.env.E2B_API_KEY

// unique is a word that no other test uses.
export const unique = () => 'u' + Math.random().toString(36).slice(2, 10)

export const sleep = (ms) => new Promise((done) => setTimeout(done, ms))
export const sha256 = (data) => createHash('sha256').update(data).digest('hex')

// boxes holds the sandbox that the tests of a file share, for what leaves no trace.
let sharedBox

// shared returns a sandbox that the tests of a file share.
export function shared() {
  sharedBox ??= Sandbox.create({ timeoutMs: 600_000 * slowness, metadata: { suite: 'shared' } })
  return sharedBox
}

// release ends the shared sandbox; a file calls it in after().
export async function release() {
  await (await sharedBox)?.kill()
}

// own makes a sandbox that ends with the test.
export async function own(t, opts = {}) {
  const box = await Sandbox.create({ timeoutMs: 120_000 * slowness, ...opts })
  t.after(() => box.kill())
  return box
}

// until waits for a condition, and returns what it returned. What is waited for may be a function, which is asked when the
// time is over: it can tell what there was instead.
export async function until(what, condition, ms = 60_000 * slowness) {
  for (const end = Date.now() + ms; ; await sleep(50)) {
    const got = await condition()
    if (got) return got
    if (Date.now() > end) throw new Error(`after ${ms} ms still not: ${typeof what === 'function' ? what() : what}`)
  }
}

// failure returns what a promise is rejected with.
export async function failure(promise) {
  try {
    await promise
  } catch (error) {
    return error
  }
  assert.fail('it did not fail')
}

// api calls the control API as the packages do, for what they cannot ask.
export async function api(method, path, body, headers = {}) {
  const text = typeof body === 'string' ? body : body === undefined ? undefined : JSON.stringify(body)
  const response = await fetch(new URL(path, address), {
    method,
    body: text,
    headers: { 'X-API-KEY': key, ...(text === undefined ? {} : { 'Content-Type': 'application/json' }), ...headers },
  })
  const answer = await response.text()
  let json
  try {
    json = JSON.parse(answer)
  } catch {}
  return { status: response.status, headers: response.headers, text: answer, json }
}

// request sends a plain HTTP request to the daemon with any Host.
export function request(path, { method = 'GET', headers = {}, body } = {}) {
  return new Promise((done, fail) => {
    const req = http.request(
      { host: address.hostname, port: address.port, path, method, headers, agent: false },
      (response) => {
        const parts = []
        response.on('data', (part) => parts.push(part))
        response.on('error', fail)
        response.on('end', () => {
          const data = Buffer.concat(parts)
          done({ status: response.statusCode, headers: response.headers, data, text: data.toString() })
        })
      },
    )
    req.on('error', fail)
    req.end(body)
  })
}

// route are the headers that lead to a port of a sandbox.
export function route(box, port) {
  return { 'E2b-Sandbox-Id': box.sandboxId, 'E2b-Sandbox-Port': String(port) }
}
