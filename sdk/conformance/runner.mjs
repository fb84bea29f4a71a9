// Runs the table of behaviours with the TypeScript SDK: node runner.mjs [pattern].
//
// FORKD_URL names the daemon, FORKD_TAG the snapshot, FORKD_SDK the built package
// (default: the one beside this, after "npm run build").

import { randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const sdk = process.env.FORKD_SDK ?? new URL("../typescript", import.meta.url).pathname;
const forkd = await import(pathToFileURL(`${sdk}/dist/esm/node.js`));

const PATIENCE = 60_000;

class Mismatch extends Error {}

function pattern(size) {
	const bytes = new Uint8Array(size);
	for (let i = 0; i < size; i++) bytes[i] = i % 251;
	return bytes;
}

function hexBytes(hex) {
	return Uint8Array.from(hex.match(/../g) ?? [], (pair) => Number.parseInt(pair, 16));
}

function sameBytes(a, b) {
	return a instanceof Uint8Array && Buffer.compare(a, b) === 0;
}

const snake = (key) => key.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
const camel = (key) => key.replace(/_([a-z])/g, (_, letter) => letter.toUpperCase());

// Whose keys are the user's own.
const OWN = new Set(["env", "metadata", "attrs", "data", "value", "headers"]);

/** Turns what the SDK returns into what the table speaks of. */
function plain(x) {
	if (x instanceof forkd.EvalError) return { type: x.type, text: x.text, traceback: x.traceback };
	if (x instanceof forkd.Result) {
		return { main: x.main, data: x.data, chart: x.chart, text: x.text, png: x.png, html: x.html };
	}
	if (x instanceof forkd.Process) return { pid: x.pid };
	if (Array.isArray(x)) return x.map(plain);
	if (typeof x !== "object" || x === null || x instanceof Uint8Array || x instanceof Date) return x;
	return Object.fromEntries(Object.entries(x).map(([key, each]) => [snake(key), OWN.has(key) ? each : plain(each)]));
}

function short(x) {
	const text = x instanceof Uint8Array ? `${x.length} bytes ${Buffer.from(x.subarray(0, 40)).toString("hex")}` : JSON.stringify(x);
	return text?.length > 300 ? `${text.slice(0, 300)}…` : String(text);
}

/** Compares a result with what the table expects of it. */
function match(want, got, where = "result") {
	const check = (ok, text) => {
		if (!ok) throw new Mismatch(`${where} is ${short(got)}, want ${text}`);
	};
	if (Array.isArray(want)) {
		check(Array.isArray(got) && got.length === want.length, `${want.length} elements: ${short(want)}`);
		want.forEach((w, i) => match(w, got[i], `${where}[${i}]`));
	} else if (want === null) {
		check(got === null || got === undefined, "nothing");
	} else if (typeof want !== "object") {
		check(got === want, short(want));
	} else if (!Object.keys(want).some((key) => key.startsWith("$"))) {
		check(typeof got === "object" && got !== null, short(want));
		for (const [key, w] of Object.entries(want)) match(w, got[key], `${where}.${key}`);
	} else {
		for (const [key, w] of Object.entries(want)) check(MATCHERS[key](w, got), short({ [key]: w }));
	}
}

function fits(want, got) {
	try {
		match(want, got);
		return true;
	} catch (err) {
		if (err instanceof Mismatch) return false;
		throw err;
	}
}

const MATCHERS = {
	$contains: (w, g) => [w].flat().every((each) => g?.includes(each)),
	$lacks: (w, g) => !g.includes(w),
	$size: (w, g) => g?.length === w,
	$pattern: (w, g) => sameBytes(g, pattern(w)),
	$hex: (w, g) => sameBytes(g, hexBytes(w)),
	$matches: (w, g) => typeof g === "string" && new RegExp(w).test(g),
	$over: (w, g) => g > w,
	$set: (w, g) => short(w.map(String).sort()) === short(g.map(String).sort()),
	$some: (w, g) => g.some((each) => fits(w, each)),
	$none: (w, g) => !g.some((each) => fits(w, each)),
	$not: (w, g) => !fits(w, g),
	$order: (w, g) => {
		let at = 0;
		return w.every((one) => {
			while (at < g.length) if (fits(one, g[at++])) return true;
			return false;
		});
	},
};

/** Options of the table as the SDK has them: camel case, and milliseconds. */
function options({ timeout, idle_timeout, within, ...rest } = {}) {
	const out = Object.fromEntries(Object.entries(rest).map(([key, each]) => [camel(key), each]));
	if (timeout !== undefined && timeout !== null) out.timeoutMs = timeout * 1000;
	if (idle_timeout !== undefined) out.idleTimeoutMs = idle_timeout * 1000;
	if (within !== undefined) out.requestTimeoutMs = within * 1000;
	return out;
}

/** Runs one case: its variables, and what it has to end. */
class Case {
	vars = { unique: randomUUID().replaceAll("-", "").slice(0, 10), tag: process.env.FORKD_TAG ?? "pyagent" };
	boxes = [];
	tags = [];
	workspaces = [];

	constructor(controller) {
		this.controller = controller;
	}

	async run(item) {
		try {
			if (item.box ?? true) this.vars.box = await this.create();
			for (const [i, step] of item.steps.entries()) {
				try {
					await this.step(step);
				} catch (err) {
					if (!(err instanceof Mismatch || err instanceof forkd.ForkdError)) throw err;
					throw new Mismatch(`step ${i + 1} (${step.do}): ${err instanceof Mismatch ? "" : `${err.name}: `}${err.message}`);
				}
			}
		} finally {
			const ignore = () => {};
			for (const box of this.boxes) await box.kill().catch(ignore);
			for (const name of this.workspaces) await this.controller.deleteWorkspace(name).catch(ignore);
			for (const tag of this.tags.reverse()) await this.controller.deleteSnapshot(tag, { cascade: true }).catch(ignore);
		}
	}

	async create(args = {}) {
		const box = await forkd.Sandbox.create({ controller: this.controller, ...options(args) });
		this.boxes.push(box);
		return box;
	}

	async step(step) {
		const end = Date.now() + PATIENCE;
		for (;;) {
			try {
				return await this.once(step);
			} catch (err) {
				if (!step.eventually || !(err instanceof Mismatch) || Date.now() > end) throw err;
			}
			await new Promise((resolve) => setTimeout(resolve, 100));
		}
	}

	async once(step) {
		const args = this.fill(step.args ?? {});
		const box = "on" in step ? this.fill(step.on) : this.vars.box;
		if (!(step.do in VERBS)) throw new Error(`no verb ${step.do}`);
		let got;
		try {
			got = await VERBS[step.do](box, args, this);
		} catch (err) {
			if (!(err instanceof forkd.ForkdError) || !("error" in step)) throw err;
			match(this.fill(step.error), failure(err), "error");
			return;
		}
		if ("error" in step) throw new Mismatch(`${short(plain(got))} instead of an error`);
		if ("save" in step) this.vars[step.save] = got;
		if ("expect" in step) match(this.fill(step.expect), plain(got));
	}

	/** Puts the values of variables in. */
	fill(x) {
		if (typeof x === "string") {
			if (/^\$[a-z_0-9.]+$/.test(x)) return this.lookup(x.slice(1));
			return x.replace(/\$\{([a-z_0-9.]+)\}/g, (_, path) => String(this.lookup(path)));
		}
		if (Array.isArray(x)) return x.map((each) => this.fill(each));
		if (typeof x !== "object" || x === null) return x;
		if (Object.keys(x).length === 1 && "$bytes" in x) return pattern(x.$bytes);
		if (Object.keys(x).length === 1 && "$hexbytes" in x) return hexBytes(x.$hexbytes);
		return Object.fromEntries(Object.entries(x).map(([key, each]) => [key, this.fill(each)]));
	}

	lookup(path) {
		const [name, ...rest] = path.split(".");
		if (!(name in this.vars)) throw new Error(`no variable ${name}`);
		return rest.reduce((found, part) => found[camel(part)], this.vars[name]);
	}
}

function failure(err) {
	return {
		class: err.name,
		code: err.code,
		text: err.message,
		status: err.status,
		dependents: err.dependents,
		result: err.result && plain(err.result),
	};
}

function outcome(got) {
	const told = { id: got.sandboxId, isRepr: got.value instanceof forkd.Repr, error: null };
	try {
		const value = got.get();
		return { ...told, value: told.isRepr ? String(value) : value };
	} catch (err) {
		return { ...told, value: got.value, error: failure(err) };
	}
}

async function* inPieces(bytes) {
	for (let at = 0; at < bytes.length; at += 50_000) yield bytes.subarray(at, at + 50_000);
}

const VERBS = {
	async run(box, { cmd, when, stop, ...args }, test) {
		const told = [];
		const errors = [];
		const abort = new AbortController();
		let acted = false;
		const onStdout = async (text) => {
			told.push(text);
			if (stop && told.join("").includes(stop)) abort.abort();
			if (when && !acted && told.join("").includes(when.has)) {
				acted = true;
				for (const step of when.steps) await test.step(step);
			}
		};
		const call = { ...options(args), onStdout, onStderr: (text) => void errors.push(text), signal: abort.signal };
		try {
			const result = await box.commands.run(cmd, call);
			if (stop) throw new Mismatch("it ended before it could be stopped");
			return { ...result, pieces: told.length, told: told.join(""), toldErr: errors.join("") };
		} catch (err) {
			if (stop && err.name === "AbortError") return { stopped: true };
			throw err;
		}
	},
	start: (box, { cmd, ...args }) => box.commands.start(cmd, options(args)),
	attach: (box, { process }) => box.commands.attach(process),
	processes: (box) => box.commands.list(),
	kill_process: (box, { process }) => box.commands.kill(process),
	wait: (_, { process }) => process.wait(),
	output: (_, { process }) => ({ stdout: process.stdout, stderr: process.stderr }),
	send_stdin: (_, { process, data }) => process.sendStdin(data),
	close_stdin: (_, { process }) => process.closeStdin(),
	send_signal: (_, { process, signal }) => process.sendSignal(signal),
	resize: (_, { process, cols, rows }) => process.resize(cols, rows),
	disconnect: (_, { process }) => process.disconnect(),

	write: (box, { path, data, pieces, ...args }) => box.files.write(path, pieces ? inPieces(data) : data, options(args)),
	read: (box, { path, ...args }) => box.files.read(path, options(args)),
	read_text: (box, { path }) => box.files.readText(path),
	async stream(box, { path }) {
		const parts = [];
		for await (const piece of box.files.stream(path)) parts.push(piece);
		return new Uint8Array(Buffer.concat(parts));
	},
	list: (box, { path, ...args }) => box.files.list(path, options(args)),
	stat: (box, { path }) => box.files.stat(path),
	exists: (box, { path }) => box.files.exists(path),
	mkdir: (box, { path, ...args }) => box.files.mkdir(path, options(args)),
	rename: (box, args) => box.files.rename(args.old, args.new),
	remove: (box, { path, ...args }) => box.files.remove(path, options(args)),
	compose: (box, { path, sources }) => box.files.compose(path, sources),
	watch: (box, { path, ...args }) => box.files.watch(path, options(args)),
	async changes(_, { watch, until }) {
		const seen = [];
		for await (const change of watch) {
			seen.push(plain(change));
			if (change.name === until) break;
		}
		return seen;
	},

	async eval(box, { code, ...args }) {
		const got = await box.eval(code, options(args));
		return got instanceof forkd.Repr ? { value: String(got), isRepr: true } : { value: got, isRepr: false };
	},
	/** Returns the outcomes as they come. */
	async eval_all(_, { sandboxes, code, stop_after, ...args }, test) {
		const came = [];
		for await (const [sandbox, got] of test.controller.evalAll(sandboxes, code, options(args))) {
			if (!sandboxes.includes(sandbox) || (sandbox.id ?? sandbox) !== got.sandboxId) {
				throw new Mismatch(`${short(sandbox)} has the outcome ${short(got)}`);
			}
			came.push(outcome(got));
			if (came.length === stop_after) break;
		}
		return came;
	},
	eval_each: async (_, { sandboxes, code, ...args }, test) =>
		(await test.controller.evalEach(sandboxes, code, options(args))).map(outcome),
	async run_code(box, { code, ...args }) {
		const told = [];
		const got = await box.runCode(code, {
			...options(args),
			onStdout: (text) => void told.push(["stdout", text]),
			onStderr: (text) => void told.push(["stderr", text]),
			onResult: (result) => void told.push(["result", result.text]),
		});
		return { ...got, told };
	},
	interrupt: (box) => box.interrupt(),
	contexts: (box) => box.contexts.list(),
	create_context: (box, args) => box.contexts.create(args),
	remove_context: (box, { id }) => box.contexts.remove(id),
	restart_context: (box, { id }) => box.contexts.restart(id),

	create: (_, args, test) => test.create(args),
	async cancelled_creates(_, { n, metadata }, test) {
		for (let i = 0; i < n; i++) {
			const abort = new AbortController();
			const timer = setTimeout(() => abort.abort(), 0.5 + Math.random() * 30);
			try {
				const box = await forkd.Sandbox.create({ controller: test.controller, metadata, signal: abort.signal });
				await box.kill();
			} catch (err) {
				if (err.name !== "AbortError") throw err;
			} finally {
				clearTimeout(timer);
			}
		}
	},
	connect: (_, { id }, test) => forkd.Sandbox.connect(id, { controller: test.controller }),
	async fork(box, { n, ...args }, test) {
		const children = await box.fork(n, options(args));
		test.boxes.push(...children);
		return children;
	},
	async branch(box, args, test) {
		const made = await box.branch(args);
		test.tags.push(made.tag);
		return made;
	},
	rollback: (box, { tag }) => box.rollback(tag),
	snapshot: (_, { tag }, test) => test.controller.getSnapshot(tag),
	delete_snapshot: (_, { tag, ...args }, test) => test.controller.deleteSnapshot(tag, args),
	derive(_, { tag, new_tag, ...work }, test) {
		test.tags.push(new_tag);
		return test.controller.deriveSnapshot(tag, new_tag, work);
	},
	kill: (box) => box.kill(),
	pause: (box) => box.pause(),
	resume: (box, args) => box.resume(options(args)),
	set_timeout: (box, { secs, ...args }) => box.setTimeout(secs === null ? null : secs * 1000, args),
	info: (box) => box.info(),
	metrics: (box) => box.metrics(),
	ping: (box) => box.ping(),
	sandboxes: (_, args, test) => test.controller.listSandboxes(args),

	wait_port: (box, { port, ...args }) => box.ports.wait(port, options(args)),
	async request(box, { port, path, ...args }) {
		const { status, text, body } = await box.ports.request(port, path, args);
		return { status, text, body };
	},
	/** Asks like any other HTTP client. */
	async fetch(box, { port, path }) {
		const response = await fetch(box.getUrl(port) + path);
		return { status: response.status, body: new Uint8Array(await response.arrayBuffer()) };
	},
	/** Sends all, and returns all that comes. */
	async talk(box, { port, data }) {
		const connection = await box.ports.open(port);
		try {
			await connection.send(data);
			await connection.end();
			return await connection.receiveAll();
		} finally {
			connection.close();
		}
	},

	async create_workspace(_, { name, ...limits }, test) {
		const made = await test.controller.createWorkspace(name, test.vars.tag, options(limits));
		test.workspaces.push(name);
		return made;
	},
	suspend_workspace: (_, { name }, test) => test.controller.suspendWorkspace(name),
	resume_workspace: (_, { name }, test) => test.controller.resumeWorkspace(name),
	delete_workspace: (_, { name }, test) => test.controller.deleteWorkspace(name),
};

const cases = JSON.parse(readFileSync(new URL("cases.json", import.meta.url), "utf8"));
const wanted = new RegExp(process.argv[2] ?? "");
const controller = new forkd.Controller();
for (const item of cases) {
	if (!wanted.test(item.name)) continue;
	try {
		await new Case(controller).run(item);
		console.log("ok", item.name);
	} catch (err) {
		process.exitCode = 1;
		if (!(err instanceof Mismatch || err instanceof forkd.ForkdError)) console.error(err);
		console.log("FAIL", item.name, "-", err.message);
	}
}
