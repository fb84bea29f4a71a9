import { boxRoute } from "./controller.js";
import { type Data, bodyOf } from "./data.js";
import { DeadlineError, PortClosedError, UnsupportedError, errorOf, isErrorBody } from "./errors.js";
import { type Duplex, gather, platform } from "./platform.js";
import { type CallOptions, type Transport, before, deadline } from "./transport.js";

/** What an HTTP server in a sandbox answered. */
export interface PortResponse {
	status: number;
	header(name: string): string | null;
	body: Uint8Array;
	text: string;
}

export interface PortRequest extends CallOptions {
	method?: string;
	headers?: Record<string, string>;
	body?: Data;
}

/** Reaches what listens on the TCP ports of a sandbox. */
export class Ports {
	constructor(
		private readonly transport: Transport,
		private readonly id: string,
	) {}

	/**
	 * Returns the URL under which the daemon passes HTTP on to a port.
	 *
	 * WebSocket works, too. If the daemon has a token, requests need it as "Authorization: Bearer TOKEN".
	 */
	url(port: number): string {
		if (this.transport.url.protocol === "unix:") {
			throw new UnsupportedError(`the daemon at ${this.transport.url} has no URL for others`, {
				hint: "name its TCP address, as with FORKD_URL=http://127.0.0.1:8889, or use ports.request or ports.open",
			});
		}
		return new URL(this.path(port), this.transport.url).href;
	}

	private path(port: number): string {
		return `${boxRoute(this.id, "ports", String(port))}/`;
	}

	/** Sends an HTTP request to a port and returns the answer, whatever its status. */
	async request(port: number, path = "/", options: PortRequest = {}): Promise<PortResponse> {
		const { method, body, ...send } = options;
		const target = this.path(port) + path.replace(/^\//, "");
		const data = body === undefined ? {} : { body: bodyOf(body) };
		const reply = await this.transport.begin(method ?? "GET", target, { ...send, ...data, anyStatus: true });
		const bytes = await reply.bytes();
		const text = new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes);
		const { status } = reply.answer;
		if (status >= 400) refuse(text, status, this.id);
		return { status, header: reply.answer.header, body: bytes, text };
	}

	/** Opens a TCP connection to a port. Not in browsers. */
	async open(port: number, options: CallOptions = {}): Promise<Connection> {
		const duplex = await this.transport.upgrade(boxRoute(this.id, "tcp", String(port)), "tcp-chunked", options);
		return new Connection(duplex, port);
	}

	/** Returns when something listens on a port. */
	async wait(port: number, options: { timeoutMs?: number } & CallOptions = {}): Promise<void> {
		const { timeoutMs = 30_000, ...call } = options;
		const begun = Date.now();
		const end = deadline(timeoutMs, call);
		for (let pause = 5; ; pause = Math.min(pause * 1.5, 250)) {
			try {
				if (platform.upgrade) (await this.open(port, before(end, call))).close();
				else await this.request(port, "/", before(end, call));
				return;
			} catch (err) {
				if (!(err instanceof PortClosedError || err instanceof DeadlineError)) throw err;
				if (Date.now() >= end) throw new DeadlineError(`nothing listens on port ${port} after ${(end - begun) / 1000} s`);
			}
			await new Promise((resolve) => setTimeout(resolve, Math.min(pause, end - Date.now())));
		}
	}
}

/** Codes of the daemon that hardly anybody else uses. */
const OWN_CODES = new Set(["port_closed", "paused", "sandbox_dead"]);

/** Throws the error that an answer is, if it is the daemon's and not that of a server in the sandbox. */
function refuse(text: string, status: number, id: string): void {
	let body: unknown;
	try {
		body = JSON.parse(text);
	} catch {
		return;
	}
	if (!isErrorBody(body)) return;
	const { code, error } = body;
	if (OWN_CODES.has(code) || (code === "not_found" && error.includes(id))) throw errorOf(body, status);
}

const LINE_FEED = 10;
const MAX_LINE = 1024;

/**
 * Takes chunks (RFC 9112, 7.1) apart, as their bytes come. It returns whether the last one has come, which tells an end from a
 * break.
 */
async function* unchunk(pieces: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array, boolean> {
	let left = 0; // bytes of a chunk
	let line = ""; // as far as it has come
	let last = false;
	for await (const piece of pieces) {
		for (let at = 0; at < piece.length; ) {
			if (left > 0) {
				const part = piece.subarray(at, at + left);
				at += part.length;
				left -= part.length;
				yield part;
				continue;
			}
			const char = piece[at++]!;
			line += String.fromCharCode(char);
			if (line.length > MAX_LINE) return false;
			if (char !== LINE_FEED) continue;
			const size = line.trim();
			line = "";
			if (size === "") continue; // the end of a chunk
			if (last || !/^[0-9a-f]{1,13}$/i.test(size)) return false;
			left = Number.parseInt(size, 16);
			last = left === 0;
		}
	}
	return last;
}

/**
 * A TCP connection to a port of a sandbox. If the server breaks it, or is gone with its sandbox, that is a `PortClosedError`, and
 * no end.
 */
export class Connection implements AsyncIterable<Uint8Array> {
	private readonly incoming: AsyncGenerator<Uint8Array, void>;
	private closed = false;

	/** @internal */
	constructor(
		private readonly duplex: Duplex,
		private readonly port: number,
	) {
		this.incoming = this.read();
	}

	private async *read(): AsyncGenerator<Uint8Array, void> {
		let whole: boolean;
		try {
			whole = yield* unchunk(this.duplex.incoming);
		} catch (err) {
			throw this.broken(err);
		}
		if (!whole) throw this.broken();
	}

	/** What has become of the connection, if it was not closed here. */
	private broken(cause?: unknown): unknown {
		if (this.closed) return cause;
		return new PortClosedError(`the server in the sandbox broke the connection to port ${this.port}`, { cause });
	}

	/** Sends text or bytes. */
	async send(data: string | Uint8Array): Promise<void> {
		try {
			await this.duplex.send(typeof data === "string" ? new TextEncoder().encode(data) : data);
		} catch (err) {
			throw this.broken(err);
		}
	}

	/** Yields what comes until the other side has ended. */
	[Symbol.asyncIterator](): AsyncIterator<Uint8Array> {
		return this.incoming;
	}

	/** Returns all that comes until the other side has ended. */
	async receiveAll(): Promise<Uint8Array> {
		return await gather(this);
	}

	/** Sends nothing more; what comes can still be received. */
	async end(): Promise<void> {
		await this.duplex.end();
	}

	close(): void {
		this.closed = true;
		this.duplex.close();
	}
}
