// Holds the compatibility page to what the packages export.

import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { surface } from './surface.mjs'

const page = process.env.E2B_COMPATIBILITY_PAGE

for (const name of ['e2b', '@e2b/code-interpreter']) {
  test(`the page lists every method of ${name}`, (t) => {
    if (!page) return t.skip('E2B_COMPATIBILITY_PAGE does not say where the page is')
    const exported = surface(readFileSync(join(import.meta.dirname, 'node_modules', name, 'dist/index.d.ts'), 'utf8'))
    assert.ok(exported.size >= 10, [...exported].join())
    const [, section] = readFileSync(page, 'utf8').split(`\n## Methods of \`${name}\`\n`)
    assert.ok(section, 'the page has no section of ' + name)
    const listed = [...section.split('\n## ')[0].matchAll(/^\| `([^`]+)` \|/gm)].map(([, method]) => method)
    assert.deepEqual([...listed].sort(), [...exported].sort())
  })
}
