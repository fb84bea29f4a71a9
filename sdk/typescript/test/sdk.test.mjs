// What a well-behaved daemon does not show: broken answers, lost connections, odd URLs, both with the client of Node.js
// and with fetch alone, as in a browser. They run against a small server of their own.

import assert from "node:assert/strict";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, beforeEach, test } from "node:test";

const BOX = { id: "sb1", snapshot_tag: "t", metadata: { some_key: "kept" } };

const asked = [];
const answers = new Map();
const server = createServer(async (request, response) => {
	const parts = [];
	for await (const part of request) parts.push(part);
	const path = request.url.split("?")[0];
	asked.push({ method: request.method, url: request.url, headers: request.headers, body: Buffer.concat(parts).toString() });
	const answer = answers.get(`${request.method} ${path}`);
	if (answer === undefined) {
		response.writeHead(404).end(JSON.stringify({ error: "none", code: "not_found", hint: "ask for another" }));
	} else if (typeof answer === "function") {
		answer(request, response);
	} else {
		response.writeHead(answer.status ?? 200).end(typeof answer.body === "string" ? answer.body : JSON.stringify(answer.body));
	}
});
server.listen(0, "127.0.0.1");
await once(server, "listening");
const url = `http://127.0.0.1:${server.address().port}`;
after(() => {
	server.closeAllConnections();
	server.close();
});
beforeEach(() => {
	asked.length = 0;
	answers.clear();
});

const forkd = await import("../dist/esm/node.js");
// The modules that both entry points share use what the last one has said. What they
// use as long as nobody says anything is in another copy.
const { platform: node, setPlatform } = await import("../dist/esm/platform.js");
const { platform: web } = await import("../dist/esm/platform.js?web");

for (const [entry, platform] of Object.entries({ web, node })) {
	const controller = new forkd.Controller({ url, token: "s3cret" });
	const box = new forkd.Sandbox("sb1", controller);
	const is = (name, work) =>
		test(`${entry}: ${name}`, async () => {
			setPlatform(platform);
			await work();
		});

	is("errors are typed by their code", async () => {
		const body = { error: "in use", code: "in_use", hint: "end it", dependents: ["a"] };
		answers.set("DELETE /v1/snapshots/t", { status: 409, body });
		await assert.rejects(controller.deleteSnapshot("t"), (err) => {
			assert.ok(err instanceof forkd.InUseError && err instanceof forkd.ForkdError && err instanceof Error);
			assert.deepEqual([err.name, err.code, err.hint, err.status, err.dependents], ["InUseError", "in_use", "end it", 409, ["a"]]);
			assert.equal(err.message, "in use (end it)");
			return true;
		});
		await assert.rejects(box.files.stat("/x"), forkd.NotFoundError);
		assert.equal(await box.files.exists("/x"), false);
		answers.set("GET /v1/sandboxes", { status: 418, body: { error: "new", code: "a_new_code" } });
		await assert.rejects(controller.listSandboxes(), (err) => err.constructor === forkd.ForkdError && err.code === "a_new_code");
	});

	is("answers of others are told apart", async () => {
		for (const body of ["<html>", "", "[1]", '{"a":1}']) {
			answers.set("GET /v1/sandboxes", { status: 502, body });
			await assert.rejects(controller.listSandboxes(), (err) => err.status === 502 && /not one of forkd's/.test(err.message));
		}
		answers.set("GET /v1/sandboxes", { body: "hello" });
		await assert.rejects(controller.listSandboxes(), /not JSON/);
	});

	is("keys are renamed, those of users are not; the token is sent", async () => {
		answers.set("GET /v1/sandboxes", { body: [BOX] });
		assert.deepEqual(await controller.listSandboxes({ metadata: { a_b: "c&d" }, state: ["running", "paused"] }), [
			{ id: "sb1", snapshotTag: "t", metadata: { some_key: "kept" } },
		]);
		assert.equal(asked[0].headers.authorization, "Bearer s3cret");
		assert.equal(asked[0].url, "/v1/sandboxes?state=running&state=paused&metadata=a_b%3Dc%26d");
		answers.set("POST /v1/sandboxes", { status: 201, body: [BOX] });
		await controller.spawnSandboxes("t", { n: 2, timeoutMs: 1500, onTimeout: "pause", env: { A_b: "c" } });
		assert.deepEqual(JSON.parse(asked[1].body), { snapshot_tag: "t", n: 2, timeout_secs: 1.5, on_timeout: "pause", env: { A_b: "c" } });
	});

	is("some children are an error that names them, and a fork undoes them", async () => {
		const body = { sandboxes: [{ id: "sb2" }], errors: [{ index: 1, error: "no room", code: "no_space" }] };
		answers.set("POST /v1/sandboxes", { status: 207, body });
		answers.set("DELETE /v1/sandboxes/sb2", { status: 204, body: "" });
		await assert.rejects(box.fork(2), (err) => err instanceof forkd.PartialSpawnError && err.code === "no_space");
		assert.equal(asked.at(-1).url, "/v1/sandboxes/sb2");
	});

	is("a stream that is cut off is an error", async () => {
		for (const body of ["", '{"stdout":"half"}\n', '{"exit":{"exit_code":0']) {
			answers.set("POST /v1/sandboxes/sb1/exec/stream", { body });
			await assert.rejects(box.commands.run("true"), (err) => err instanceof forkd.UnavailableError && /half way/.test(err.message));
		}
		answers.set("POST /v1/sandboxes/sb1/run", { body: '\n{"error":{"error":"it is paused","code":"paused"}}\n' });
		await assert.rejects(box.runCode("1"), forkd.PausedError);
	});

	is("events may come in any pieces", async () => {
		const text = '\n{"stdout":"aü☃"}\n\n{"stderr_b64":"/w=="}\n{"exit":{"exit_code":3,"signal":null,"timed_out":false}}\n';
		answers.set("POST /v1/sandboxes/sb1/exec/stream", async (_, response) => {
			for (const byte of Buffer.from(text)) {
				response.write(Uint8Array.of(byte));
				await new Promise(setImmediate);
			}
			response.end();
		});
		const { stdout, stderr, stderrBytes, exitCode } = await box.commands.run("x");
		assert.deepEqual([stdout, stderr, [...stderrBytes], exitCode], ["aü☃", "\ufffd", [255], 3]);
	});

	is("calls end when their time is over, or when they are aborted", async () => {
		answers.set("POST /v1/sandboxes/sb1/eval", () => {});
		await assert.rejects(box.eval("1", { requestTimeoutMs: 30 }), forkd.DeadlineError);
		const abort = new AbortController();
		setTimeout(() => abort.abort(), 30);
		await assert.rejects(box.eval("1", { signal: abort.signal }), { name: "AbortError" });
		await assert.rejects(box.eval("1", { signal: AbortSignal.abort() }), { name: "AbortError" });
	});

	is("the time of a call is for all that is asked", async () => {
		const closed = { status: 502, body: { error: "closed", code: "port_closed" } };
		answers.set("GET /v1/sandboxes/sb1/tcp/9", closed);
		answers.set("GET /v1/sandboxes/sb1/ports/9/", closed);
		const limits = { timeoutMs: 3000, requestTimeoutMs: 100 };
		await assert.rejects(box.ports.wait(9, limits), /nothing listens on port 9 after 0\.1/);
		answers.set("GET /v1/snapshots/b/info", { body: { tag: "b", status: "writing" } });
		await assert.rejects(controller.waitSnapshot("b", limits), forkd.DeadlineError);
		assert.ok(asked.length < 40, `${asked.length} requests`);
	});

	is("a value that was cut says so", async () => {
		for (const [told, cut] of [[{ result_truncated: true }, true], [{ result_truncated: false }, false], [{}, false]]) {
			answers.set("POST /v1/sandboxes/sb1/eval", { body: { result: "b'x", error: null, ...told } });
			const value = await box.eval("1");
			assert.deepEqual([String(value), value.truncated], ["b'x", cut]);
		}
	});

	is("the limit of an evaluation and a timeout of the code are told apart", async () => {
		const raise = async (message, traceback) => {
			const error = { type: "TimeoutError", message, traceback };
			answers.set("POST /v1/sandboxes/sb1/eval", { body: { result: null, error } });
			return (await box.eval("1").catch((err) => err)).constructor;
		};
		assert.equal(await raise("after 1s", "Traceback\nKeyboardInterrupt"), forkd.EvalTimeout);
		assert.equal(await raise("mine", "Traceback\nTimeoutError: mine"), forkd.EvalError);
		assert.equal(await raise("", "Traceback\nTimeoutError"), forkd.EvalError);
	});

	const line = (id, answer) => `${JSON.stringify({ sandbox_id: id, ...answer })}\n`;
	const good = (id, result) => line(id, { result: { result: null, error: null, exit_code: 0, ...result } });

	is("each of many has its outcome", async () => {
		const error = { type: "KeyError", message: "'x'", traceback: "Traceback\nKeyError: 'x'" };
		const lines = [
			good("c", { value: [1] }),
			"\n",
			line("b", { error: { error: "no sandbox b", code: "not_found", hint: "see ls" } }),
			good("sb1", { error }),
			good("d", { result: "nan", result_truncated: false }),
		];
		answers.set("POST /v1/eval", { body: lines.join("") });
		const boxes = [box, "b", { id: "c" }, "d"];
		const order = [];
		for await (const [sandbox, outcome] of controller.evalAll(boxes, "x", { timeoutMs: 1500 })) {
			assert.equal(typeof sandbox === "string" ? sandbox : sandbox.id, outcome.sandboxId);
			order.push(sandbox);
		}
		assert.deepEqual(order, [boxes[2], boxes[1], boxes[0], boxes[3]]);
		assert.deepEqual(JSON.parse(asked[0].body), { sandboxes: ["sb1", "b", "c", "d"], code: "x", timeout_secs: 1.5 });
		const [mine, b, c, d] = await controller.evalEach(boxes, "x");
		assert.deepEqual([c.get(), c.error, c.answer.exitCode], [[1], undefined, 0]);
		assert.deepEqual([String(d.get()), d.value instanceof forkd.Repr], ["nan", true]);
		assert.deepEqual([b.error.constructor, b.error.hint, b.answer], [forkd.NotFoundError, "see ls", undefined]);
		assert.deepEqual([mine.error.type, mine.value, mine.answer.error], ["KeyError", undefined, error]);
		assert.throws(() => mine.get(), forkd.EvalError);
	});

	is("who of many has not answered is named", async () => {
		const ask = async (came) => {
			for await (const [id] of controller.evalAll(["a", "b"], "1")) came.push(id);
		};
		const [first, second] = [good("a", { value: 1 }), good("b", { value: 2 })];
		for (const [body, missing] of [["", ["a", "b"]], [second, ["a"]], [first + second.slice(0, -1), ["b"]]]) {
			const broken = (_, response) => {
				response.writeHead(200, { "Content-Length": body.length + 1 }).write(body);
				setTimeout(() => response.destroy(), 30);
			};
			for (const answer of [{ body }, broken]) {
				answers.set("POST /v1/eval", answer);
				const came = [];
				await assert.rejects(ask(came), (err) => {
					assert.ok(err instanceof forkd.PartialEvalError && err instanceof forkd.UnavailableError, err);
					assert.deepEqual([err.missing, err.code, came.length], [missing, "unavailable", 2 - missing.length]);
					return err.message.includes(`${missing.length} of 2`) && err.message.includes(missing.at(-1));
				});
			}
		}
		answers.set("POST /v1/eval", (_, response) => {
			response.writeHead(200, { "Content-Length": first.length + second.length + 1 }).write(second + first);
			setTimeout(() => response.destroy(), 30);
		});
		await ask([]); // all have answered
		answers.set("POST /v1/eval", { body: good("c", { value: 1 }) });
		await assert.rejects(ask([]), (err) => err.constructor === forkd.ForkdError && /no place here/.test(err.message));
		answers.set("POST /v1/eval", { status: 400, body: { error: "sandboxes: must be 1 to 1000", code: "invalid_argument" } });
		await assert.rejects(controller.evalEach([], "1"), forkd.InvalidArgumentError);
	});

	is("what is no list of sandboxes is told so", async () => {
		for (const wrong of ["sb1", { id: "a" }, undefined]) {
			const says = { name: "TypeError", message: /^sandboxes must be a list, such as / };
			assert.throws(() => controller.evalAll(wrong, "1"), says);
			await assert.rejects(controller.evalEach(wrong, "1"), says);
		}
		for (const wrong of [null, { tag: "a" }, 7]) {
			assert.throws(() => controller.evalAll([wrong], "1"), { name: "TypeError", message: /a sandbox must be a/ });
		}
		assert.deepEqual(asked, []);
	});

	is("who stops listening to many ends the request", async () => {
		const held = () => {
			let gone;
			answers.set("POST /v1/eval", (_, response) => {
				gone = once(response, "close");
				response.writeHead(200).write(good("a", { value: 1 }));
			});
			return () => gone;
		};
		let gone = held();
		for await (const [id] of controller.evalAll(["a", "b"], "1")) {
			assert.equal(id, "a");
			break;
		}
		await gone();
		gone = held();
		const late = async (says, missing) => {
			await assert.rejects(controller.evalEach(["a", "b"], "1", { requestTimeoutMs: 200 }), (err) => {
				assert.ok(err instanceof forkd.DeadlineError && err.message.endsWith(`longer than 0.2 s; ${says}`), err);
				assert.deepEqual(err.missing, missing);
				return true;
			});
			await gone();
		};
		await late("1 of 2 sandboxes have not answered: b", ["b"]);
		answers.set("POST /v1/eval", (_, response) => {
			const closed = once(response, "close");
			gone = () => closed;
		});
		await late("2 of 2 sandboxes have not answered: a, b", ["a", "b"]);
		gone = held();
		const abort = new AbortController();
		await assert.rejects(async () => {
			for await (const _ of controller.evalAll(["a", "b"], "1", { signal: abort.signal })) abort.abort();
		}, { name: "AbortError" });
		await gone();
	});

	is("a lost connection is an error, and nothing is repeated", async () => {
		answers.set("POST /v1/sandboxes/sb1/eval", (request) => request.socket.destroy());
		await assert.rejects(box.eval("1"), forkd.UnavailableError);
		assert.equal(asked.length, 1);
		await assert.rejects(new forkd.Controller({ url: "http://127.0.0.1:1" }).version(), (err) => {
			// Without Node.js nobody tells why.
			return err instanceof forkd.UnavailableError && (platform === web || /forkd serve/.test(err.hint));
		});
	});

	is("the sandbox ends with its use, and the error of the work is the one to see", async () => {
		answers.set("POST /v1/sandboxes", { status: 201, body: [BOX] });
		answers.set("DELETE /v1/sandboxes/sb1", { status: 500, body: { error: "cannot", code: "internal" } });
		const work = () => Promise.reject(new RangeError("mine"));
		await assert.rejects(forkd.Sandbox.use(work, { controller }), RangeError);
		await assert.rejects(forkd.Sandbox.use(async () => {}, { controller }), forkd.ForkdError);
		assert.equal(asked.filter(({ method }) => method === "DELETE").length, 2);
	});

	is("a server in a sandbox may answer as it likes", async () => {
		answers.set("GET /v1/sandboxes/sb1/ports/80/x", { status: 404, body: { error: "mine", code: "not_found" } });
		assert.equal((await box.ports.request(80, "/x")).status, 404);
		answers.set("GET /v1/sandboxes/sb1/ports/80/x", { status: 502, body: { error: "nobody", code: "port_closed" } });
		await assert.rejects(box.ports.request(80, "/x"), forkd.PortClosedError);
		assert.equal(box.getUrl(80), `${url}/v1/sandboxes/sb1/ports/80/`);
	});
}

test("the end and a break of a connection are told apart", async () => {
	setPlatform(node);
	let said = ""; // by the server in the sandbox, in pieces; then the connection ends
	const upgrades = [];
	const daemon = createServer().on("upgrade", (request, socket) => {
		upgrades.push(request.headers.upgrade);
		const [first, ...more] = said.split("~");
		socket.write(`HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: tcp-chunked\r\n\r\n${first}`);
		const rest = () => (more.length ? socket.write(more.shift(), () => setTimeout(rest, 5)) : socket.end());
		setTimeout(rest, 5);
	});
	daemon.listen(0, "127.0.0.1");
	await once(daemon, "listening");
	const box = new forkd.Sandbox("sb1", new forkd.Controller({ url: `http://127.0.0.1:${daemon.address().port}` }));
	for (const [text, want] of [
		["4\r\nhalf\r\n0\r\n\r\n", "half"],
		["4~\r\nha~lf\r~\n5\r\n and \r\n0~\r~\n\r\n", "half and "],
		["0\r\n\r\n", ""],
		["4\r\nhalf\r\n"],
		["9\r\nha~lf"],
		[""],
		["no chunk\r\n"],
		["0\r\n\r\n4\r\nmore\r\n"],
		["1".repeat(2000)],
	]) {
		said = text;
		const connection = await box.ports.open(9);
		const all = connection.receiveAll();
		if (want === undefined) {
			await assert.rejects(all, (err) => err instanceof forkd.PortClosedError && /broke the connection to port 9/.test(err.message), text);
		} else {
			assert.equal(new TextDecoder().decode(await all), want);
		}
		connection.close();
	}
	assert.deepEqual([...new Set(upgrades)], ["tcp-chunked"]);
	daemon.close();
});

test("URLs", async () => {
	const { Controller } = await import("../dist/esm/node.js");
	for (const bad of ["127.0.0.1:8889", "ftp://x", "unix://", "unix://a/b", "http://", "http://x/y", "unix:"]) {
		assert.throws(() => new Controller({ url: bad }), TypeError, bad);
	}
	for (const name of ["FORKD_URL", "XDG_DATA_HOME"]) delete process.env[name];
	process.env.FORKD_HOME = "/nobody/here";
	assert.equal(new Controller().transport.url.href, "unix:///nobody/here/forkd.sock");
	process.env.FORKD_URL = "http://other:1";
	assert.equal(new Controller().transport.url.href, "http://other:1/");
});

test("Unix sockets", async () => {
	setPlatform(node);
	const dir = mkdtempSync(join(tmpdir(), "forkd-"));
	const path = join(dir, "a b.sock");
	const other = createServer((_, response) => response.end('{"api":"v1","started_at_unix":1}'));
	other.listen(path);
	await once(other, "listening");
	try {
		const { Controller, Sandbox, UnsupportedError } = await import("../dist/esm/node.js");
		const controller = new Controller({ url: `unix://${path}` });
		assert.deepEqual(await controller.version(), { api: "v1", startedAtUnix: 1 });
		assert.throws(() => new Sandbox("x", controller).getUrl(80), UnsupportedError);
		setPlatform(web);
		await assert.rejects(controller.version(), (err) => {
			return err instanceof UnsupportedError && err.message.includes(path) && /imports "forkd"/.test(err.hint);
		});
	} finally {
		setPlatform(node);
		other.closeAllConnections();
		other.close();
		rmSync(dir, { recursive: true });
	}
});

test("names that are not text", async () => {
	const { decodeName, quoteName } = await import("../dist/esm/data.js");
	for (const [bytes, name, quoted] of [
		[[0xc3, 0xbc], "ü", "%C3%BC"],
		[[0x61, 0xff, 0xe2, 0x98, 0x83, 0x80], "a\udcff☃\udc80", "a%FF%E2%98%83%80"],
		[[0xf0, 0x9f, 0x98, 0x80, 0xc3], "😀\udcc3", "%F0%9F%98%80%C3"],
		[[0xed, 0xb3, 0xbf], "\udced\udcb3\udcbf", "%ED%B3%BF"],
	]) {
		assert.equal(decodeName(Uint8Array.from(bytes)), name);
		assert.equal(quoteName(name), quoted);
	}
});

test("a CommonJS program has the same", async () => {
	const { createRequire } = await import("node:module");
	const old = createRequire(import.meta.url)("forkd");
	const esm = await import("forkd");
	assert.deepEqual(Object.keys(old).sort(), Object.keys(esm).sort());
});
