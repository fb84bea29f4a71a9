// Warm JavaScript: runs code that the agent sends, in the global scope of this process, as a console does.
//
// Started by the guest agent with descriptors 0 = /dev/null, 1 and 2 = pipes to the agent, 3 = line for runs, 4 = line for
// commands, which a thread of its own obeys (node_control.js), 5 = line on which this thread waits while it is held.
//
// Code is evaluated through the inspector, in the mode of its console: await works outside of functions, and what has been
// declared can be declared again.
'use strict';

const crypto = require('crypto');
const fs = require('fs');
const inspector = require('inspector');
const Module = require('module');
const net = require('net');
const path = require('path');
const util = require('util');
const vm = require('vm');
const { Worker } = require('worker_threads');

// Frame types and limits, as in package wire.
const OK = 3, RUN = 50, DISPLAY = 51, RUN_END = 52;
const MAX_TEXT = 1 << 20;
const MAX_FORM = 8 << 20;

const control = {};
const CONTROL = 'process[Symbol.for("forkd.control")]';
Object.defineProperty(process, Symbol.for('forkd.control'), { value: control });

const session = new inspector.Session();
session.connect();
const line = new net.Socket({ fd: 3, readable: true, writable: true });

function send(kind, body) {
  const payload = Buffer.from(JSON.stringify(body));
  const frame = Buffer.allocUnsafe(5 + payload.length);
  frame.writeUInt32LE(payload.length, 0);
  frame[4] = kind;
  payload.copy(frame, 5);
  line.write(frame);
}

// Evaluation.

let count = 0;
let current = null; // the run at hand

class Interrupted extends Error {
  constructor() {
    super('the run was interrupted');
    this.name = 'Interrupted';
    this.stack = `${this.name}: ${this.message}`;
  }
}

// evaluate resolves to [value], or rejects with what was thrown.
function evaluate(code) {
  return new Promise((resolve, reject) => {
    const expression = `${code}\n//# sourceURL=Cell[${count}]`;
    session.post('Runtime.evaluate', { expression, replMode: true, awaitPromise: true, objectGroup: 'run' }, (error, answer) => {
      if (error) reject(/terminated/.test(error.message) ? new Interrupted() : error);
      else if (answer.exceptionDetails) reject(local(answer.exceptionDetails.exception));
      else resolve([local(answer.result)]);
    });
  });
}

// local returns the value that the inspector speaks of.
function local(remote) {
  if (!remote) return undefined;
  if (remote.unserializableValue !== undefined) return vm.runInThisContext(`(${remote.unserializableValue})`);
  if (!remote.objectId) return remote.subtype === 'null' ? null : remote.value;
  session.post('Runtime.callFunctionOn', {
    objectId: remote.objectId,
    arguments: [{ objectId: remote.objectId }],
    functionDeclaration: `function (value) { ${CONTROL}.taken = value; }`,
  });
  const value = control.taken;
  control.taken = undefined;
  return value;
}

async function run({ id, code, env = [] }) {
  const mine = { end: { id, count: ++count }, restore: setEnv(env) };
  const stopped = new Promise((_, reject) => { mine.stop = () => reject(new Interrupted()); });
  stopped.catch(() => {});
  current = mine;
  try {
    place();
    const [value] = await Promise.race([evaluate(translate(code)), stopped]);
    if (value !== undefined) show(value, true);
  } catch (error) {
    mine.end.error = describe(error);
  }
  finish(mine);
}

// finish may be called again if it did not come to its end.
function finish(mine) {
  if (current !== mine) return;
  session.post('Runtime.releaseObjectGroup', { objectGroup: 'run' });
  mine.restore();
  send(RUN_END, mine.end);
  current = null;
}

function setEnv(entries) {
  const former = entries.map((entry) => {
    const at = entry.indexOf('=');
    const name = entry.slice(0, at);
    const old = process.env[name];
    process.env[name] = entry.slice(at + 1);
    return [name, old];
  });
  return () => {
    for (const [name, old] of former.toReversed()) {
      if (old === undefined) delete process.env[name];
      else process.env[name] = old;
    }
  };
}

// Error texts leave out the frames below the code.
function describe(error) {
  if (!(error instanceof Error) && !(error && typeof error === 'object' && 'stack' in error && 'message' in error)) {
    const text = plain(error);
    return { name: error === null ? 'null' : typeof error, value: text, traceback: `Uncaught ${text}` };
  }
  const stack = [];
  for (const at of String(error.stack).split('\n')) {
    if (/^\s+at .*(node:inspector|[/(]node\.js:\d)/.test(at)) break;
    stack.push(at);
  }
  return { name: String(error.name), value: String(error.message), traceback: stack.join('\n') };
}

// Modules.

let placed;

// place makes require and import start from the working directory.
function place() {
  const dir = process.cwd();
  if (dir === placed) return;
  placed = dir;
  const file = path.join(dir, '[cell]');
  const globals = { require: Module.createRequire(file), __dirname: dir, __filename: file };
  for (const [name, value] of Object.entries(globals)) {
    Object.defineProperty(globalThis, name, { value, writable: true, configurable: true, enumerable: false });
  }
  control.import = new vm.Script('(name, options) => import(name, options)', {
    filename: file,
    importModuleDynamically: vm.constants?.USE_MAIN_CONTEXT_DEFAULT_LOADER,
  }).runInThisContext();
}

// translate replaces what a console does not have: import, as a statement and as an expression.
function translate(code) {
  if (!/\bimport\b/.test(code)) return code;
  const tree = parse(code);
  if (!tree) return code; // the evaluation will tell what is wrong
  const edits = [];
  for (const node of tree.body) {
    if (node.type === 'ImportDeclaration') edits.push([node.start, node.end, importing(node)]);
  }
  walk(tree, (node) => {
    if (node.type === 'ImportExpression') edits.push([node.start, node.start + 'import'.length, `${CONTROL}.import`]);
  });
  edits.sort((a, b) => b[0] - a[0]);
  for (const [start, end, text] of edits) code = code.slice(0, start) + text + code.slice(end);
  return code;
}

function parse(code) {
  let acorn;
  try {
    acorn = require('internal/deps/acorn/acorn/dist/acorn');
  } catch {
    return null;
  }
  for (const sourceType of ['module', 'script']) {
    try {
      return acorn.parse(code, { ecmaVersion: 'latest', sourceType, allowAwaitOutsideFunction: true, allowReturnOutsideFunction: true, allowHashBang: true });
    } catch {
      // the other way, or not at all
    }
  }
  return null;
}

function walk(node, visit) {
  if (Array.isArray(node)) return node.forEach((each) => walk(each, visit));
  if (!node || typeof node.type !== 'string') return;
  visit(node);
  for (const name of Object.keys(node)) if (typeof node[name] === 'object') walk(node[name], visit);
}

function importing({ source, specifiers }) {
  const made = `await ${CONTROL}.import(${source.raw})`;
  const names = [];
  let all;
  for (const { type, imported, local: { name } } of specifiers) {
    if (type === 'ImportNamespaceSpecifier') all = name;
    else if (type === 'ImportDefaultSpecifier') names.push(`default: ${name}`);
    else names.push(`${imported.raw ?? imported.name}: ${name}`);
  }
  const parts = [];
  if (all) parts.push(`${all} = ${made}`);
  if (names.length) parts.push(`{ ${names.join(', ')} } = ${all ?? made}`);
  return parts.length ? `const ${parts.join(', ')};` : `${made};`;
}

// Showing.

const FORMS = [
  ['_toHtml', 'text/html'], ['_toMarkdown', 'text/markdown'], ['_toSvg', 'image/svg+xml'], ['_toPng', 'image/png'],
  ['_toJpeg', 'image/jpeg'], ['_toLatex', 'text/latex'], ['_toJson', 'application/json'],
];

function plain(value) {
  if (typeof value === 'string') return value.slice(0, MAX_TEXT);
  try {
    return util.inspect(value, { depth: 4, maxArrayLength: 1000, maxStringLength: 100000 }).slice(0, MAX_TEXT);
  } catch (error) {
    return `[${typeof value}]`;
  }
}

// forms returns the forms of a value by MIME type: those that it tells by the methods that notebooks ask for, and its text.
function forms(value) {
  let data = {};
  if (value && (typeof value === 'object' || typeof value === 'function')) {
    try {
      const bundle = value[Symbol.for('Jupyter.display')] ?? value._toMime;
      if (typeof bundle === 'function') data = { ...bundle.call(value) };
      for (const [method, kind] of FORMS) {
        if (!(kind in data) && typeof value[method] === 'function') data[kind] = value[method]();
      }
    } catch {
      // its text will have to do
    }
  }
  data['text/plain'] ??= plain(value);
  return data;
}

function encoded(data) {
  const parts = {};
  for (const [kind, form] of Object.entries(data)) {
    const json = kind === 'application/json' || kind.endsWith('+json');
    const made = ArrayBuffer.isView(form) ? Buffer.from(form.buffer, form.byteOffset, form.byteLength).toString('base64') : json ? form : String(form);
    try {
      if (made !== undefined && JSON.stringify(made).length <= MAX_FORM) parts[kind] = made;
    } catch {
      // no JSON after all
    }
  }
  return parts;
}

function show(value, main, raw) {
  const body = { data: encoded(raw ? value : forms(value)) };
  if (main) body.main = true;
  send(DISPLAY, body);
}

Object.defineProperty(globalThis, 'display', {
  value: (value, { raw = false } = {}) => { if (current) show(value, false, raw); },
  writable: true, configurable: true, enumerable: false,
});

// The process lives as long as its context.

class Exit extends Error {
  constructor(code) {
    super(`process.exit(${code ?? ''}) was called; the context goes on`);
    this.name = 'Exit';
  }
}

process.exit = (code) => { throw new Exit(code); };
process.on('uncaughtException', (error) => { process.stderr.write(`Uncaught ${describe(error).traceback}\n`); });
process.on('unhandledRejection', (error) => { process.stderr.write(`Uncaught (in promise) ${describe(error).traceback}\n`); });

// Randomness. V8's own generator cannot be given a new state, so there is one here that can.

const UUIDS = 128, INTEGERS = 1024; // that Node.js draws at a time

const state = new Uint32Array(4);

function reseed(seed) {
  const bytes = Buffer.from(seed, 'hex');
  for (let i = 0; i < 4; i++) state[i] = bytes.readUInt32LE(4 * i);
  for (let i = 0; i < 16; i++) word();
  process.dlopen({ exports: {} }, control.poll); // renews OpenSSL's generator
  // What has been drawn ahead from the one before is used up.
  for (let i = 0; i < UUIDS; i++) crypto.randomUUID();
  for (let i = 0; i < INTEGERS; i++) crypto.randomInt(2);
}

// word is sfc32.
function word() {
  const sum = (state[0] + state[1] + state[3]) >>> 0;
  state[3]++;
  state[0] = state[1] ^ (state[1] >>> 9);
  state[1] = state[2] + (state[2] << 3);
  state[2] = ((state[2] << 21) | (state[2] >>> 11)) + sum;
  return sum;
}

const random = { random() { return ((word() >>> 5) * 67108864 + (word() >>> 6)) / 9007199254740992; } }.random;
Object.defineProperty(Math, 'random', { value: random, writable: true, configurable: true, enumerable: false });

// Commands, which the other thread has this one execute wherever it is.

// interrupt ends the execution of user code beneath it. If there is none the run is waiting for something, and no longer:
// ending what this thread does next would strike something else.
control.interrupt = () => {
  const mine = current;
  if (!mine) return;
  mine.stop();
  // It may strike what follows the code.
  setTimeout(() => {
    if (current !== mine) return;
    mine.end.error = describe(new Interrupted());
    finish(mine);
  }, 100);
  // The next call that this thread makes is struck, so it must not be one of this function.
  if (/ \(?Cell\[\d+\]:/.test(new Error().stack)) session.post('Runtime.terminateExecution', () => {});
};
control.reseed = reseed;

// hold waits until the agent ends it. No code runs on this thread meanwhile.
control.hold = () => {
  fs.writeSync(5, 'h');
  const answer = Buffer.alloc(256);
  let size = 0;
  while (size < answer.length && answer[size - 1] !== 10) size += fs.readSync(5, answer, size, 1, null) || process.reallyExit(70);
  const seed = answer.toString('latin1', 0, size).trim();
  if (seed) reseed(seed);
};

// Runs come as frames, one after another.

let received = Buffer.alloc(0);
line.on('data', (data) => {
  received = Buffer.concat([received, data]);
  while (received.length >= 5 && received.length >= 5 + received.readUInt32LE(0)) {
    const size = received.readUInt32LE(0);
    const request = JSON.parse(received.toString('utf8', 5, 5 + size));
    received = received.subarray(5 + size);
    if (request.code === undefined) greet(request);
    else setImmediate(run, request); // apart from the socket, in whose affairs an interrupt must not end
  }
});
line.on('close', () => process.reallyExit(70));

function greet({ seed, poll }) {
  control.poll = poll;
  reseed(seed);
  place();
  Error.stackTraceLimit = Infinity;
  const worker = new Worker(path.join(__dirname, 'node_control.js'));
  worker.on('message', () => send(OK, { version: process.version.slice(1) }));
  worker.unref();
}
