// Time passes more slowly for this suite where processors are slow: whoever waits here, be it a test or a package, waits
// E2B_SLOWNESS times as long, and a limit that a request tells the daemon is as much longer. So the limits that the
// packages set by themselves, too, mean as much work as elsewhere.

export const slowness = Number(process.env.E2B_SLOWNESS ?? 1)

if (slowness !== 1) {
  const { setTimeout: wait } = globalThis
  globalThis.setTimeout = (call, ms, ...args) => wait(call, ms * slowness, ...args)

  const { timeout } = AbortSignal
  AbortSignal.timeout = (ms) => timeout.call(AbortSignal, ms * slowness)

  const { set } = Headers.prototype
  Headers.prototype.set = function (name, value) {
    return set.call(this, name, /^connect-timeout-ms$/i.test(name) ? String(value * slowness) : value)
  }
}
