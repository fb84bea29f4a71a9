import { type Body, iterate } from "./platform.js";

/** What is sent: text, bytes, blobs, streams, pieces. */
export type Data = string | Uint8Array | ArrayBuffer | Blob | ReadableStream<Uint8Array> | AsyncIterable<Uint8Array>;

const PIECE = 64 << 10;

/** Returns data as a platform sends it. */
export function bodyOf(data: Data): Body {
	if (typeof data === "string" || data instanceof Uint8Array) return data;
	if (data instanceof ArrayBuffer) return new Uint8Array(data);
	if (data instanceof Blob) return iterate(data.stream());
	// Streams that can be iterated over, which some platforms have, are streams all the same.
	if (typeof ReadableStream !== "undefined" && data instanceof ReadableStream) return iterate(data);
	return data as AsyncIterable<Uint8Array>;
}

/** Cuts data into pieces of a moderate size. */
export async function* pieces(data: Data): AsyncGenerator<Uint8Array, void> {
	const body = bodyOf(data);
	if (typeof body === "string") yield* cut(new TextEncoder().encode(body));
	else if (body instanceof Uint8Array) yield* cut(body);
	else for await (const piece of body) yield* cut(piece);
}

/** Cuts bytes into pieces; none is empty. */
export function* cut(data: Uint8Array): Generator<Uint8Array, void> {
	for (let at = 0; at < data.length; at += PIECE) yield data.subarray(at, at + PIECE);
}

export function toBase64(data: Uint8Array): string {
	let text = "";
	for (let at = 0; at < data.length; at += 4096) text += String.fromCharCode(...data.subarray(at, at + 4096));
	return btoa(text);
}

export function fromBase64(text: string): Uint8Array {
	return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

// File names may hold any bytes. What is not UTF-8 in them is kept as lone surrogates, U+DC80 to U+DCFF for the bytes
// 80 to FF, as Python does it.

/** Returns a name as text. */
export function decodeName(bytes: Uint8Array): string {
	try {
		return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
	} catch {
		return [...textParts(bytes)].join("");
	}
}

function* textParts(bytes: Uint8Array): Generator<string, void> {
	const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
	for (let at = 0; at < bytes.length; ) {
		let size = Math.min(4, bytes.length - at);
		let text: string | undefined;
		for (; size > 0 && text === undefined; size--) {
			try {
				const one = decoder.decode(bytes.subarray(at, at + size));
				if ([...one].length === 1) text = one;
			} catch {
				// not a character
			}
		}
		if (text === undefined) {
			yield String.fromCharCode(0xdc00 + bytes[at]!);
			at++;
		} else {
			yield text;
			at += size + 1;
		}
	}
}

/** Quotes a name for a query, byte by byte. */
export function quoteName(name: string): string {
	const quote = (letter: string) => {
		const code = letter.charCodeAt(0);
		if (letter.length === 1 && code >= 0xdc80 && code <= 0xdcff) return `%${(code - 0xdc00).toString(16).toUpperCase()}`;
		return encodeURIComponent(letter);
	};
	return Array.from(name, quote).join("");
}
