import assert from 'node:assert/strict'
import { after, test } from 'node:test'
import { release, shared } from './lib.mjs'

after(release)

// chart draws and returns the one result that has a chart.
async function chart(t, code) {
  const box = await shared()
  const have = await box.runCode('import importlib.util; importlib.util.find_spec("matplotlib") is not None')
  if (have.text !== 'True') return t.skip('the template has no matplotlib')
  const run = await box.runCode('import matplotlib.pyplot as plt\n' + code + '\nplt.show()', { timeoutMs: 120_000 })
  assert.equal(run.error, undefined, run.error?.traceback)
  const drawn = run.results.filter((r) => r.chart)
  assert.equal(drawn.length, 1, JSON.stringify(run.results.map((r) => r.formats())))
  assert.equal(Buffer.from(drawn[0].png, 'base64').subarray(1, 4).toString(), 'PNG')
  return drawn[0].chart
}

test('a line chart has its points', async (t) => {
  const got = await chart(t, `
plt.plot([1, 2, 3], [1, 4, 9], label="squares"); plt.plot([1, 2, 3], [1, 2, 3], label="same")
plt.title("T"); plt.xlabel("n (s)"); plt.ylabel("v"); plt.legend()`)
  if (!got) return
  assert.deepEqual([got.type, got.title, got.y_label], ['line', 'T', 'v'])
  assert.match(got.x_label, /^n/)
  assert.deepEqual(got.elements.map((e) => [e.label, e.points]), [['squares', [[1, 1], [2, 4], [3, 9]]], ['same', [[1, 1], [2, 2], [3, 3]]]])
  assert.equal(got.x_scale, 'linear')
  assert.ok(got.x_ticks.length && got.x_tick_labels.length && got.y_ticks.length)
})

test('a scatter chart has its points', async (t) => {
  const got = await chart(t, `plt.scatter([1, 2], [3, 4], label="dots"); plt.yscale("log")`)
  if (!got) return
  assert.deepEqual([got.type, got.y_scale], ['scatter', 'log'])
  assert.deepEqual(got.elements.map((e) => [e.label, e.points]), [['dots', [[1, 3], [2, 4]]]])
})

test('a bar chart has its bars', async (t) => {
  const got = await chart(t, `plt.bar(["a", "b"], [3, 5]); plt.title("bars")`)
  if (!got) return
  assert.deepEqual([got.type, got.title], ['bar', 'bars'])
  assert.deepEqual(got.elements.map((e) => [e.label, Number(e.value)]), [['a', 3], ['b', 5]])
})

test('a pie chart has its slices', async (t) => {
  const got = await chart(t, `plt.pie([1, 3], labels=["a", "b"])`)
  if (!got) return
  assert.equal(got.type, 'pie')
  assert.deepEqual(got.elements.map((e) => [e.label, Math.round(e.angle)]), [['a', 90], ['b', 270]])
})

test('a box plot has its quartiles', async (t) => {
  const got = await chart(t, `plt.boxplot([[1, 2, 3, 4, 5]], patch_artist=True)`)
  if (!got) return
  assert.equal(got.type, 'box_and_whisker')
  const [b] = got.elements
  assert.deepEqual([b.min, b.first_quartile, b.median, b.third_quartile, b.max], [1, 2, 3, 4, 5])
})

test('several axes are one chart of charts', async (t) => {
  const got = await chart(t, `
fig, (a, b) = plt.subplots(1, 2)
a.plot([1, 2], [3, 4]); b.bar(["x"], [1])`)
  if (!got) return
  assert.equal(got.type, 'superchart')
  assert.deepEqual(got.elements.map((e) => e.type), ['line', 'bar'])
})
