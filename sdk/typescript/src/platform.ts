import { UnsupportedError } from "./errors.js";

/** What is sent: the whole of it, or pieces. */
export type Body = string | Uint8Array | AsyncIterable<Uint8Array>;

/** A request, as a platform sends it. */
export interface Request {
	method: string;
	url: URL;
	/** The Unix socket to send it to, instead of the host in the URL. */
	socketPath?: string | undefined;
	headers: Record<string, string>;
	body?: Body;
	signal: AbortSignal;
}

/** What comes back. To stop iterating over the body closes the connection. */
export interface Answer {
	status: number;
	statusText: string;
	header(name: string): string | null;
	body: AsyncIterable<Uint8Array>;
}

/** A bare connection. */
export interface Duplex {
	/** What comes. */
	incoming: AsyncIterable<Uint8Array>;
	send(data: Uint8Array): Promise<void>;
	/** Sends nothing more. */
	end(): Promise<void>;
	close(): void;
}

/** What the SDK needs of where it runs. */
export interface Platform {
	request(request: Request): Promise<Answer>;
	/** Opens a connection with a request for an upgrade; there is none in browsers. */
	upgrade?(request: Request): Promise<Duplex | Answer>;
	env(name: string): string | undefined;
	/** Where the daemon is if nothing says so. */
	defaultURL(): string;
}

/** Collects pieces. */
export async function gather(pieces: AsyncIterable<Uint8Array>): Promise<Uint8Array> {
	const parts: Uint8Array[] = [];
	let size = 0;
	for await (const piece of pieces) {
		parts.push(piece);
		size += piece.length;
	}
	if (parts.length === 1) return parts[0]!;
	const whole = new Uint8Array(size);
	let at = 0;
	for (const part of parts) {
		whole.set(part, at);
		at += part.length;
	}
	return whole;
}

/** Iterates over a stream of the web. */
export async function* iterate(stream: ReadableStream<Uint8Array>): AsyncGenerator<Uint8Array, void> {
	const reader = stream.getReader();
	try {
		for (;;) {
			const { done, value } = await reader.read();
			if (done) return;
			yield value;
		}
	} finally {
		await reader.cancel().catch(() => {});
	}
}

const web: Platform = {
	async request({ method, url, socketPath, headers, body, signal }) {
		if (socketPath !== undefined) {
			throw new UnsupportedError(`fetch, as in a browser, does not reach the Unix socket ${socketPath}`, {
				hint: 'name the TCP address of the daemon; a program of Node.js imports "forkd", and none of its files',
			});
		}
		// Browsers send no streams over HTTP/1.1.
		const whole = body === undefined || typeof body === "string" || body instanceof Uint8Array ? body : await gather(body);
		const response = await fetch(url, { method, headers, body: whole as BodyInit | undefined, signal });
		return {
			status: response.status,
			statusText: response.statusText,
			header: (name) => response.headers.get(name),
			body: response.body ? iterate(response.body) : nothing(),
		};
	},
	env: () => undefined,
	defaultURL: () => "http://127.0.0.1:8889",
};

async function* nothing(): AsyncGenerator<Uint8Array, void> {}

/** Where the SDK runs: a browser, or anything with fetch, unless another entry point says more. */
export let platform: Platform = web;

/** Says where the SDK runs. */
export function setPlatform(other: Platform): void {
	platform = other;
}
