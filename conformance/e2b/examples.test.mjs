// Runs the examples that the packages carry in their documentation, unchanged.

import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { slowness } from './clock.mjs'

const base = import.meta.dirname

// examples yields the code blocks of a file of a package.
function* examples(name, file) {
  const text = readFileSync(join(base, 'node_modules', name, file), 'utf8')
  for (const [, code] of text.matchAll(/```ts\n([\s\S]*?)```/g)) yield code.replaceAll(/^ *\* ?/gm, '')
}

// needs is what an example must not use to be run here: other keys, placeholders, what is not supported.
const needs = /e2b_\*|e2b_\.\.\.|<template|egressProxy|iam|rules|httpsPorts|\bVolume|\bSecret|Template|sk-|keepMemory/

// run runs an example. What it starts in the background may go on; it is ended then.
function run(code) {
  const dir = mkdtempSync(join(base, 'example-'))
  writeFileSync(join(dir, 'example.mjs'), code)
  const timeout = (code.includes('background') ? 5_000 : 60_000) * slowness
  return new Promise((done) =>
    execFile(process.execPath, ['--import=../clock.mjs', 'example.mjs'], { cwd: dir, timeout }, (error, stdout, stderr) => {
      rmSync(dir, { recursive: true })
      const goesOn = error?.killed && code.includes('background') && stderr === ''
      done({ error: goesOn ? null : error, stdout, stderr })
    }))
}

for (const [name, files] of [['e2b', ['README.md', 'dist/index.d.ts']], ['@e2b/code-interpreter', ['README.md', 'dist/index.d.ts']]]) {
  test(`the examples of ${name} run unchanged`, async () => {
    let ran = 0
    const all = files.flatMap((file) => [...examples(name, file)])
    for (const code of all.filter((c) => c.includes('Sandbox.') && !needs.test(c))) {
      const whole = code.includes('import ') ? code : `import { Sandbox } from '${name}'\n` + code
      const { error, stdout, stderr } = await run(whole)
      assert.equal(error, null, `${whole}\n${stdout}\n${stderr}`)
      for (const [, want] of code.matchAll(/console\.log\(.*?\) *\/\/ (?:outputs )?(.+)/g)) assert.equal(stdout.trim(), want, whole)
      ran++
    }
    assert.ok(ran >= (name === 'e2b' ? 10 : 2), `only ${ran} examples were found`)
  })
}
