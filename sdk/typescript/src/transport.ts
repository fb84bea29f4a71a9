import { ConnectError, DeadlineError, ForkdError, UnavailableError, UnsupportedError, errorOf, isErrorBody } from "./errors.js";
import { type Answer, type Body, type Duplex, gather, platform } from "./platform.js";

/** What every call may be given. */
export interface CallOptions {
	/** Ends the call, and what it had begun: a command is killed, a run is interrupted. */
	signal?: AbortSignal;
	/** Ends the call with a DeadlineError after so many milliseconds. There is no limit by default. */
	requestTimeoutMs?: number;
}

/** When work that asks repeatedly ends: after `timeoutMs` or the time of a call, whichever is less. */
export function deadline(timeoutMs: number | undefined, options: CallOptions): number {
	return Date.now() + Math.min(timeoutMs ?? Infinity, options.requestTimeoutMs ?? Infinity);
}

/** The options for a call that, if calls have a time limit, takes no longer than until then. */
export function before<T extends CallOptions>(end: number, options: T): T {
	return options.requestTimeoutMs === undefined ? options : { ...options, requestTimeoutMs: Math.max(end - Date.now(), 0) };
}

export interface Send extends CallOptions {
	body?: Body;
	headers?: Record<string, string>;
	/** What comes back is somebody else's answer, whatever its status. */
	anyStatus?: boolean;
}

/** What the system says when nobody can be reached. */
const NOBODY = new Set([
	"ECONNREFUSED",
	"ENOENT",
	"ENOTFOUND",
	"EAI_AGAIN",
	"EHOSTUNREACH",
	"ENETUNREACH",
	"ETIMEDOUT",
]);

/** A stream is never silent for longer than a few seconds while the daemon lives. */
const STREAM_MS = 60_000;

export const JSON_TYPE = "application/json";
export const LINES_TYPE = "application/x-ndjson";
export const BYTES_TYPE = "application/octet-stream";

/** Sends requests to one daemon. */
export class Transport {
	readonly url: URL;
	private readonly token: string;
	/** The Unix socket, if the daemon is at one. */
	private readonly socketPath?: string;

	constructor(url?: string, token?: string) {
		const text = url ?? platform.env("FORKD_URL") ?? platform.defaultURL();
		this.url = parseURL(text);
		if (this.url.protocol === "unix:") this.socketPath = decodeURIComponent(this.url.pathname);
		this.token = token ?? platform.env("FORKD_TOKEN") ?? "";
	}

	/** The headers that say who asks. */
	authorization(): Record<string, string> {
		return this.token ? { Authorization: `Bearer ${this.token}` } : {};
	}

	/** Sends a request and returns its answer, which has to be read or closed; errors are thrown. */
	async begin(method: string, path: string, send: Send = {}): Promise<Reply> {
		const limit = new Limit(send, `waiting for the daemon at ${this.url}`);
		try {
			const answer = await this.talk(limit, () =>
				platform.request({
					method,
					url: this.target(path),
					socketPath: this.socketPath,
					headers: { ...this.authorization(), ...send.headers },
					body: send.body,
					signal: limit.signal,
				}),
			);
			const reply = new Reply(answer, limit, this);
			if (answer.status >= 400 && !send.anyStatus) throw await readError(reply);
			return reply;
		} catch (err) {
			limit.end();
			throw err;
		}
	}

	/** Sends a value as JSON and returns that of the answer; undefined if it has no body. */
	async call<T>(method: string, path: string, value?: unknown, send: Send = {}): Promise<T> {
		const headers = { "Content-Type": JSON_TYPE, ...send.headers };
		const more = value === undefined ? send : { ...send, body: JSON.stringify(value), headers };
		const reply = await this.begin(method, path, more);
		return (await reply.json()) as T;
	}

	/** Sends a value as JSON and returns an answer that is a stream of events. */
	async lines(method: string, path: string, value?: unknown, send: Send = {}): Promise<Reply> {
		const headers: Record<string, string> = { Accept: LINES_TYPE, ...send.headers };
		if (value !== undefined) headers["Content-Type"] ??= JSON_TYPE;
		const body = value === undefined ? send.body : JSON.stringify(value);
		return await this.begin(method, path, { ...send, headers, ...(body === undefined ? {} : { body }) });
	}

	/** Opens a connection with a request for an upgrade; errors are thrown. */
	async upgrade(path: string, protocol: string, options: CallOptions): Promise<Duplex> {
		const open = platform.upgrade;
		if (open === undefined) {
			throw new UnsupportedError("there are no bare connections in a browser", {
				hint: "use HTTP or a WebSocket with getUrl",
			});
		}
		const limit = new Limit(options, `waiting for the daemon at ${this.url}`);
		try {
			const answer = await this.talk(limit, () =>
				open({
					method: "GET",
					url: this.target(path),
					socketPath: this.socketPath,
					headers: { ...this.authorization(), Connection: "Upgrade", Upgrade: protocol },
					signal: limit.signal,
				}),
			);
			if ("incoming" in answer) return answer;
			throw await readError(new Reply(answer, limit, this));
		} finally {
			limit.end();
		}
	}

	/**
	 * Returns what work gives, within the limits of a call, or else undoes it.
	 *
	 * When the call ends before, the work goes on, and is undone when it is done.
	 */
	async finish<T>(work: () => Promise<T>, undo: (result: T) => Promise<void>, options: CallOptions): Promise<T> {
		const limit = new Limit(options, `waiting for the daemon at ${this.url}`);
		try {
			limit.signal.throwIfAborted();
			const working = work();
			try {
				return await unlessAborted(working, limit.signal);
			} catch (err) {
				if (limit.signal.aborted) working.then(undo).catch(() => {}); // there is nobody to tell
				throw err;
			}
		} finally {
			limit.end();
		}
	}

	/** Turns failures of the connection into errors of forkd. */
	async talk<T>(limit: Limit, work: () => Promise<T>): Promise<T> {
		try {
			return await work();
		} catch (err) {
			limit.signal.throwIfAborted();
			if (err instanceof ForkdError) throw err;
			const cause = err as { code?: string; message?: string; cause?: { code?: string; message?: string } };
			const code = cause.code ?? cause.cause?.code ?? "";
			const text = cause.cause?.message || cause.message || code;
			if (NOBODY.has(code)) {
				const hint = "start it with `forkd serve`, or name it with FORKD_URL";
				throw new ConnectError(`no forkd daemon answers at ${this.url}: ${text || code}`, { hint, cause: err });
			}
			throw new UnavailableError(`talking to the daemon at ${this.url}: ${text}`, { cause: err });
		}
	}

	private target(path: string): URL {
		return new URL(path, this.socketPath === undefined ? this.url : "http://localhost");
	}
}

function parseURL(text: string): URL {
	try {
		const url = new URL(text);
		const web = (url.protocol === "http:" || url.protocol === "https:") && url.pathname === "/" && !url.username;
		if (web || (url.protocol === "unix:" && url.pathname.startsWith("/") && !url.host)) return url;
	} catch {
		// as below
	}
	throw new TypeError(`malformed URL of the daemon "${text}": it must be http://host:port or unix:///path`);
}

/** Waits for work, or until a signal is aborted. */
export async function unlessAborted<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
	let stop!: () => void;
	const aborted = new Promise<never>((_, reject) => {
		stop = () => reject(signal.reason);
		signal.addEventListener("abort", stop);
	});
	try {
		return await Promise.race([work, aborted]);
	} finally {
		signal.removeEventListener("abort", stop);
	}
}

/** Ends a call when its signal says so, or its time is over. */
class Limit {
	private readonly controller = new AbortController();
	private readonly given?: AbortSignal;
	private timer?: ReturnType<typeof setTimeout>;

	constructor(
		options: CallOptions,
		private readonly what: string,
	) {
		this.given = options.signal;
		if (this.given?.aborted) this.stop();
		this.given?.addEventListener("abort", this.stop);
		const ms = options.requestTimeoutMs;
		if (ms !== undefined) {
			this.timer = setTimeout(() => this.expire(`the call took longer than ${ms / 1000} s`), ms);
		}
	}

	get signal(): AbortSignal {
		return this.controller.signal;
	}

	readonly stop = (): void => this.controller.abort(this.given?.reason);

	expire(why: string): void {
		this.controller.abort(new DeadlineError(`${this.what}: ${why}`));
	}

	/** The time no longer counts; the signal still does. */
	endTimer(): void {
		clearTimeout(this.timer);
	}

	end(): void {
		this.endTimer();
		this.given?.removeEventListener("abort", this.stop);
	}

	/** Ends the call now. */
	abort(): void {
		this.controller.abort(new UnavailableError("the connection was closed"));
	}
}

/** A good answer, as it comes in. */
export class Reply {
	constructor(
		readonly answer: Answer,
		private readonly limit: Limit,
		private readonly transport: Transport,
	) {}

	/** The time limit of the call was for its beginning. */
	begun(): void {
		this.limit.endTimer();
	}

	/** Closes the connection, which stops what the daemon is doing for it. */
	close(): void {
		this.limit.abort();
		this.limit.end();
	}

	/** The pieces of the body as they come. */
	async *pieces(quietMs?: number): AsyncGenerator<Uint8Array, void> {
		const source = this.answer.body[Symbol.asyncIterator]();
		let complete = false;
		try {
			for (;;) {
				const { done, value } = await this.next(source, quietMs);
				if (done) {
					complete = true;
					return;
				}
				yield value;
			}
		} finally {
			if (!complete) this.limit.abort();
			this.limit.end();
		}
	}

	private async next(source: AsyncIterator<Uint8Array>, quietMs?: number): Promise<IteratorResult<Uint8Array>> {
		const expire = () => this.limit.expire(`nothing came for ${quietMs! / 1000} s`);
		const timer = quietMs === undefined ? undefined : setTimeout(expire, quietMs);
		try {
			return await this.transport.talk(this.limit, () => source.next());
		} finally {
			clearTimeout(timer);
		}
	}

	async bytes(): Promise<Uint8Array> {
		return await gather(this.pieces());
	}

	async json(): Promise<unknown> {
		const text = new TextDecoder().decode(await this.bytes());
		if (!text) return undefined;
		try {
			return JSON.parse(text);
		} catch (err) {
			throw new ForkdError("the answer is not JSON", { cause: err });
		}
	}

	/**
	 * The objects that the answer consists of; one that tells of an error is thrown.
	 *
	 * Whoever stops before the end closes the connection.
	 */
	async *events<T extends object>(): AsyncGenerator<T, void> {
		for await (const event of this.objects<T & { error?: unknown }>()) {
			if (isErrorBody(event.error)) throw errorOf(event.error);
			yield event as T;
		}
	}

	/** The objects that the answer consists of. Whoever stops before the end closes the connection. */
	async *objects<T extends object>(): AsyncGenerator<T, void> {
		for await (const line of lines(this.pieces(STREAM_MS))) yield JSON.parse(line) as T;
	}
}

/** The error of a stream that ends before it should. */
export function cutOff(): ForkdError {
	return new UnavailableError("the daemon stopped answering half way");
}

/** The lines of a body that are not empty, without one that was cut short. */
async function* lines(pieces: AsyncIterable<Uint8Array>): AsyncGenerator<string, void> {
	const decoder = new TextDecoder();
	let parts: string[] = [];
	for await (const piece of pieces) {
		const [first, ...rest] = decoder.decode(piece, { stream: true }).split("\n");
		parts.push(first!);
		for (const part of rest) {
			const line = parts.join("");
			parts = [part];
			if (line.trim()) yield line;
		}
	}
}

async function readError(reply: Reply): Promise<ForkdError> {
	const { status, statusText } = reply.answer;
	try {
		const body = JSON.parse(new TextDecoder().decode(await reply.bytes()));
		if (isErrorBody(body)) return errorOf(body, status);
	} catch (err) {
		if (!(err instanceof SyntaxError)) throw err;
	}
	return new ForkdError(`the answer ${status} ${statusText} is not one of forkd's`, {
		status,
		hint: "check that FORKD_URL names a forkd daemon",
	});
}
