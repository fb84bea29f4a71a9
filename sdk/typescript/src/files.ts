import { boxRoute, route } from "./controller.js";
import { type Data, bodyOf, decodeName, fromBase64, quoteName } from "./data.js";
import { NotFoundError } from "./errors.js";
import { type Raw, snake } from "./records.js";
import { BYTES_TYPE, type CallOptions, type Reply, type Transport, cutOff } from "./transport.js";

/** A file. What is not UTF-8 in names comes as lone surrogates, U+DC80 to U+DCFF for the bytes 80 to FF. */
export interface FileInfo {
	name: string;
	path: string;
	type: "file" | "dir" | "symlink" | "fifo" | "socket" | "device";
	size: number;
	mode: number;
	modifiedAt: Date;
	uid: number;
	gid: number;
	owner: string;
	group: string;
	/** Of a symbolic link. */
	target?: string;
	/** Extended attributes of the namespace user. */
	attrs: Record<string, string>;
}

/** Something that happened in a directory that is watched. */
export interface Change {
	/** `rename`: it was here and has another name now. */
	kind: "create" | "write" | "remove" | "rename" | "chmod";
	/** Relative to the directory. */
	name: string;
	/** If asked for, and it is still there. */
	entry?: FileInfo;
}

export interface ReadOptions extends CallOptions {
	offset?: number;
	length?: number;
}

export interface OwnerOptions extends CallOptions {
	/** Permission bits. */
	mode?: number;
	/** A name or uid[:gid], root by default. */
	user?: string;
	/** Make missing directories; true by default. */
	parents?: boolean;
}

type Query = Record<string, string | number | boolean | string[] | undefined>;

/** Works on the files of a sandbox. Paths are absolute. */
export class Files {
	constructor(
		private readonly transport: Transport,
		private readonly id: string,
	) {}

	private path(names: string[], query: Query): string {
		return route(["sandboxes", this.id, "files", ...names], query, quoteName);
	}

	private async call<T>(method: string, names: string[], query: Query, options?: CallOptions): Promise<T> {
		return await this.transport.call(method, this.path(names, query), undefined, options);
	}

	private async open(path: string, { offset, length, ...call }: ReadOptions): Promise<Reply> {
		return await this.transport.begin("GET", this.path([], { path, offset, length }), call);
	}

	/** Returns the bytes of a file, or some of them. */
	async read(path: string, options: ReadOptions = {}): Promise<Uint8Array> {
		return await (await this.open(path, options)).bytes();
	}

	/** Returns the text of a file. */
	async readText(path: string, options: CallOptions = {}): Promise<string> {
		return new TextDecoder("utf-8", { ignoreBOM: true }).decode(await this.read(path, options));
	}

	/** Yields the bytes of a file of any size in pieces. */
	async *stream(path: string, options: ReadOptions = {}): AsyncGenerator<Uint8Array, void> {
		yield* (await this.open(path, options)).pieces();
	}

	/** Creates or replaces a file. An existing file changes at once or not at all. */
	async write(path: string, data: Data, options: OwnerOptions & { attrs?: Record<string, string> } = {}): Promise<void> {
		const { mode, user, parents, attrs, ...call } = options;
		const attr = Object.entries(attrs ?? {}).map(([name, value]) => `${name}=${value}`);
		const url = this.path([], { path, mode: octal(mode), user, parents: parents ?? true, attr });
		const headers = { "Content-Type": BYTES_TYPE };
		await (await this.transport.begin("PUT", url, { ...call, headers, body: bodyOf(data) })).bytes();
	}

	/** Lists a directory, by name, and `depth` - 1 levels below it. */
	async list(path: string, options: { depth?: number } & CallOptions = {}): Promise<FileInfo[]> {
		const { depth = 1, ...call } = options;
		const found =
			depth === 1
				? await this.call<Raw[]>("GET", ["list"], { path }, call)
				: await this.call<Raw[]>("GET", ["tree"], { path, depth }, call);
		return found.map(fileInfo);
	}

	/** Describes a file; a symbolic link is not followed. */
	async stat(path: string, options?: CallOptions): Promise<FileInfo> {
		return fileInfo(await this.call("GET", ["stat"], { path }, options));
	}

	/** Tells whether there is a file. */
	async exists(path: string, options?: CallOptions): Promise<boolean> {
		try {
			await this.stat(path, options);
			return true;
		} catch (err) {
			if (err instanceof NotFoundError) return false;
			throw err;
		}
	}

	/** Removes a file or a directory, with `recursive` all that is in it. */
	async remove(path: string, options: { recursive?: boolean } & CallOptions = {}): Promise<void> {
		await this.call("DELETE", [], { path, recursive: options.recursive }, options);
	}

	/** Makes a directory; with `parents`, the default, those above it, and it may exist. */
	async mkdir(path: string, options: { parents?: boolean; user?: string } & CallOptions = {}): Promise<void> {
		await this.call("POST", ["mkdir"], { path, parents: options.parents ?? true, user: options.user }, options);
	}

	/** Moves a file or a directory. */
	async rename(from: string, to: string, options?: CallOptions): Promise<void> {
		await this.call("POST", ["rename"], { from, to }, options);
	}

	/** Makes a file of the contents of others, in their order, and removes those. */
	async compose(path: string, sources: string[], options: OwnerOptions = {}): Promise<FileInfo> {
		const { mode, user, parents, ...call } = options;
		const body = snake({ target: path, sources, mode: octal(mode), user, parents: parents ?? true });
		return fileInfo(await this.transport.call("POST", boxRoute(this.id, "files", "compose"), body, call));
	}

	/**
	 * Begins to watch a directory, with `recursive` those below it too.
	 *
	 * Changes from then on are yielded, in order and none left out. With `entries` they describe what has changed.
	 */
	async watch(path: string, options: { recursive?: boolean; entries?: boolean } & CallOptions = {}): Promise<Watch> {
		const { recursive, entries, ...call } = options;
		const reply = await this.transport.lines("GET", this.path(["watch"], { path, recursive, entries }), undefined, call);
		reply.begun();
		return new Watch(reply);
	}
}

/** Yields the changes in a directory until it is closed. */
export class Watch implements AsyncIterableIterator<Change> {
	private readonly events: AsyncGenerator<Raw, void>;
	private closed = false;

	/** @internal */
	constructor(private readonly reply: Reply) {
		this.events = reply.events<Raw>();
	}

	[Symbol.asyncIterator](): this {
		return this;
	}

	/** Waits for the next change. */
	async next(): Promise<IteratorResult<Change, undefined>> {
		try {
			const { done, value } = await this.events.next();
			if (done || !value) throw cutOff();
			const change: Change = { kind: value["kind"] as Change["kind"], name: name(value, "name") };
			if (value["entry"]) change.entry = fileInfo(value["entry"] as Raw);
			return { done: false, value: change };
		} catch (err) {
			if (this.closed) return { done: true, value: undefined };
			throw err;
		}
	}

	async return(): Promise<IteratorResult<Change, undefined>> {
		this.close();
		return { done: true, value: undefined };
	}

	/** Watches no longer. */
	close(): void {
		this.closed = true;
		this.reply.close();
	}
}

function octal(mode: number | undefined): string | undefined {
	return mode === undefined ? undefined : mode.toString(8).padStart(4, "0");
}

function name(record: Raw, key: string): string {
	const exact = record[`${key}_b64`];
	return exact === undefined ? ((record[key] ?? "") as string) : decodeName(fromBase64(exact as string));
}

function fileInfo(record: Raw): FileInfo {
	const target = name(record, "target");
	return {
		name: name(record, "name"),
		path: name(record, "path"),
		type: record["type"] as FileInfo["type"],
		size: record["size"] as number,
		mode: Number.parseInt(record["mode"] as string, 8),
		modifiedAt: new Date(record["modified_at"] as string),
		uid: record["uid"] as number,
		gid: record["gid"] as number,
		owner: (record["owner"] ?? "") as string,
		group: (record["group"] ?? "") as string,
		...(target ? { target } : {}),
		attrs: (record["attrs"] ?? {}) as Record<string, string>,
	};
}
