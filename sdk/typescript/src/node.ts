// The entry point for Node.js. Its own HTTP client, unlike fetch, waits for an answer for as long as it takes, sends
// input while output comes, and speaks over Unix sockets.

import { statSync } from "node:fs";
import {
	Agent as PlainAgent,
	type ClientRequest,
	type IncomingMessage,
	type RequestOptions,
	request as plainRequest,
} from "node:http";
import { Agent as TLSAgent, request as tlsRequest } from "node:https";
import type { Socket } from "node:net";
import { homedir } from "node:os";
import { isAbsolute, resolve } from "node:path";
import { env } from "node:process";
import { setImmediate } from "node:timers";

import { type Answer, type Duplex, type Request, setPlatform } from "./platform.js";

export * from "./index.js";

const plain = new PlainAgent({ keepAlive: true, maxFreeSockets: 16 });
const tls = new TLSAgent({ keepAlive: true, maxFreeSockets: 16 });

setPlatform({
	request: (request) => exchange(request, (message) => answerOf(message)),
	upgrade: (request) =>
		exchange<Duplex | Answer>(request, (message, socket, head) => (socket ? new Bare(socket, head!) : answerOf(message))),
	env: (name) => env[name] || undefined,
	defaultURL,
});

/** Where the daemon is: in the home that is named, or else this user's, or else at the port. */
function defaultURL(): string {
	const chosen = env["FORKD_HOME"];
	const data = env["XDG_DATA_HOME"] ?? "";
	const home = chosen || resolve(isAbsolute(data) ? data : resolve(homedir(), ".local/share"), "forkd");
	const path = resolve(home, "forkd.sock");
	// Who names a home means its daemon, and not the one that has the port.
	if (chosen || statSync(path, { throwIfNoEntry: false })?.isSocket()) return `unix://${encodeURI(path)}`;
	return "http://127.0.0.1:8889";
}

type Finish<T> = (message: IncomingMessage, socket?: Socket, head?: Uint8Array) => T;

/** Sends a request and finishes with what comes of it. */
function exchange<T>({ method, url, socketPath, headers, body, signal }: Request, finish: Finish<T>): Promise<T> {
	return new Promise((resolve, reject) => {
		const secure = url.protocol === "https:" && socketPath === undefined;
		const whole = typeof body === "string" ? new TextEncoder().encode(body) : body;
		const length: Record<string, string> =
			whole instanceof Uint8Array ? { "Content-Length": String(whole.length) } : {};
		const options: RequestOptions = {
			agent: secure ? tls : plain,
			method,
			headers: { ...headers, ...length },
			...(socketPath === undefined ? {} : { socketPath }),
		};
		const outgoing = (secure ? tlsRequest : plainRequest)(url, options);
		// What is to be destroyed is what goes on: the answer, once it has begun.
		let current: { destroy(err: Error): void } = outgoing;
		const stop = () => current.destroy(signal.reason as Error);
		outgoing.on("response", (message) => {
			current = message;
			message.on("close", () => signal.removeEventListener("abort", stop));
			resolve(finish(message));
		});
		outgoing.on("upgrade", (message, socket, head) => {
			signal.removeEventListener("abort", stop);
			resolve(finish(message, socket, head));
		});
		// After the answer has begun this is about what is left to send, which is not wanted.
		outgoing.on("error", reject);
		send(outgoing, whole).catch((err: unknown) => {
			reject(err as Error);
			outgoing.destroy(err as Error);
		});
		if (signal.aborted) stop();
		else signal.addEventListener("abort", stop);
	});
}

/** Sends a body, a piece when the last one is on its way, until the other side has had enough. */
async function send(outgoing: ClientRequest, body: Uint8Array | AsyncIterable<Uint8Array> | undefined): Promise<void> {
	if (body === undefined || body instanceof Uint8Array) {
		outgoing.end(body);
		return;
	}
	for await (const piece of body) {
		// Whoever has had enough says so and closes. That has to be read first, since a failing write destroys it.
		await new Promise<void>((resolve) => setImmediate(resolve));
		if (outgoing.destroyed) return;
		if (!outgoing.write(piece)) await drained(outgoing);
	}
	outgoing.end();
}

function drained(outgoing: ClientRequest): Promise<void> {
	return new Promise((resolve) => {
		const done = () => {
			outgoing.off("drain", done);
			outgoing.off("close", done);
			resolve();
		};
		outgoing.on("drain", done);
		outgoing.on("close", done);
	});
}

function answerOf(message: IncomingMessage): Answer {
	return {
		status: message.statusCode!,
		statusText: message.statusMessage ?? "",
		header: (name) => {
			const value = message.headers[name.toLowerCase()];
			return Array.isArray(value) ? value.join(", ") : (value ?? null);
		},
		body: message,
	};
}

/** A connection that was upgraded. */
class Bare implements Duplex {
	constructor(
		private readonly socket: Socket,
		private readonly head: Uint8Array,
	) {
		socket.setNoDelay(true);
		socket.on("error", () => {}); // whoever reads or writes is told
	}

	get incoming(): AsyncIterable<Uint8Array> {
		return this.read();
	}

	private async *read(): AsyncGenerator<Uint8Array, void> {
		if (this.head.length) yield this.head;
		yield* this.socket;
	}

	send(data: Uint8Array): Promise<void> {
		return new Promise((resolve, reject) => {
			this.socket.write(data, (err) => (err ? reject(err) : resolve()));
		});
	}

	end(): Promise<void> {
		return new Promise((resolve) => this.socket.end(resolve));
	}

	close(): void {
		this.socket.destroy();
	}
}
