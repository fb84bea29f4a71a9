// Tells of every test in a line of JSON: name, how it went and how long it took.

export default async function* report(events) {
  for await (const { type, data } of events) {
    if ((type !== 'test:pass' && type !== 'test:fail') || data.nesting > 0) continue
    const error = type === 'test:fail' ? describe(data.details.error) : undefined
    const skip = data.skip === undefined ? undefined : String(data.skip)
    yield JSON.stringify({ name: data.name, skip, error, ms: Math.round(data.details.duration_ms) }) + '\n'
  }
}

function describe(error) {
  const cause = error?.cause ?? error
  return cause?.stack ?? String(cause)
}
