import { argv, boxRoute } from "./controller.js";
import { type Data, cut, fromBase64, pieces, toBase64 } from "./data.js";
import { CommandTimeout, NotFoundError } from "./errors.js";
import { type Raw, camel, seconds, snake } from "./records.js";
import { BYTES_TYPE, type CallOptions, LINES_TYPE, type Reply, type Transport, cutOff, unlessAborted } from "./transport.js";

/** How much is kept of an output stream. */
const OUTPUT_LIMIT = 64 << 20;

/** Called with text as it comes. What it throws, or the promise that it returns, is waited for. */
export type OnOutput = (text: string) => void | Promise<void>;

/** How a command ended. Output that is not UTF-8 has U+FFFD in the texts. */
export interface CommandResult {
	stdout: string;
	stderr: string;
	/** 128+n for signal n, 127 not found, 126 not executable. */
	exitCode: number;
	signal: string | null;
	timedOut: boolean;
	oomKilled: boolean;
	stdoutTruncated: boolean;
	stderrTruncated: boolean;
	stdoutBytes: Uint8Array;
	stderrBytes: Uint8Array;
}

interface CommandOptions extends CallOptions {
	/** Kills the command, and all that it has started, after so many milliseconds. */
	timeoutMs?: number;
	/** Added to the sandbox's environment. */
	env?: Record<string, string>;
	cwd?: string;
	/** A name or uid[:gid], root by default. */
	user?: string;
	onStdout?: OnOutput;
	onStderr?: OnOutput;
}

export interface RunOptions extends CommandOptions {
	stdin?: Data;
}

export interface StartOptions extends CommandOptions {
	/** To find it by. */
	tag?: string;
	/** It will be written to; otherwise it reads the end of its input at once. */
	stdin?: boolean;
	/** Give it a terminal, which it can be written to; all its output is stdout then. */
	pty?: { cols: number; rows: number } | boolean;
	/** Do not listen: its output is dropped as long as nobody is attached. */
	detach?: boolean;
}

export interface AttachOptions extends CallOptions {
	onStdout?: OnOutput;
	onStderr?: OnOutput;
}

/** A process that `start` has started. One that has ended is remembered for a while. */
export interface ProcessInfo {
	pid: number;
	tag: string;
	args: string[];
	env: Record<string, string>;
	cwd: string;
	tty: boolean;
	startedAt: string;
	/** Null while it runs. */
	exitCode: number | null;
}

/** How a process ended, as the API tells. */
interface End {
	exit_code: number;
	signal: string | null;
	timed_out: boolean;
	oom_killed?: boolean;
	stdout_truncated?: boolean;
	stderr_truncated?: boolean;
}

interface Event {
	start?: Raw;
	stdout?: string;
	stdout_b64?: string;
	stderr?: string;
	stderr_b64?: string;
	terminal?: string;
	terminal_b64?: string;
	exit?: End;
}

/** Runs commands in a sandbox. */
export class Commands {
	constructor(
		private readonly transport: Transport,
		private readonly id: string,
	) {}

	/**
	 * Runs a command to its end.
	 *
	 * A string is given to /bin/sh, a list is run as it is. A timeout throws CommandTimeout; any other end is in the
	 * result, as is the output, up to 64 MiB per stream. If the call is aborted, the command is killed.
	 */
	async run(cmd: string | readonly string[], options: RunOptions = {}): Promise<CommandResult> {
		const { stdin, onStdout, onStderr, signal, requestTimeoutMs, ...rest } = options;
		const first = `${JSON.stringify(request(cmd, rest))}\n`;
		const reply = await this.transport.lines("POST", boxRoute(this.id, "exec", "stream"), undefined, {
			body: stdin === undefined ? first : input(first, stdin),
			headers: { "Content-Type": LINES_TYPE },
			signal,
			requestTimeoutMs,
		});
		const output = new Output(onStdout, onStderr);
		return output.result(await output.follow(reply), options.timeoutMs);
	}

	/**
	 * Starts a process that lives on its own, whatever becomes of this program.
	 *
	 * Its output is collected and given to the callbacks, unless `detach` is set.
	 */
	async start(cmd: string | readonly string[], options: StartOptions = {}): Promise<Process> {
		const { onStdout, onStderr, signal, requestTimeoutMs, pty, tag, stdin, detach, ...rest } = options;
		const tty = pty === true ? { cols: 80, rows: 24 } : pty || undefined;
		const body = { ...request(cmd, rest), ...snake({ tag, stdin, tty, detach }) };
		const output = new Output(onStdout, onStderr);
		const path = boxRoute(this.id, "processes");
		if (detach) {
			const info = await this.transport.call<Raw>("POST", path, body, { signal, requestTimeoutMs });
			return new Process(this.transport, this.id, info, output);
		}
		return await this.attached(await this.transport.lines("POST", path, body, { requestTimeoutMs, signal }), output);
	}

	/**
	 * Listens to a process from now on, by its PID or its tag.
	 *
	 * Of several with a tag it is the youngest. One that has ended within the last minutes is found too.
	 */
	async attach(process: number | string, options: AttachOptions = {}): Promise<Process> {
		const { onStdout, onStderr, ...call } = options;
		const path = boxRoute(this.id, "processes", ref(process), "attach");
		return await this.attached(await this.transport.lines("GET", path, undefined, call), new Output(onStdout, onStderr));
	}

	private async attached(reply: Reply, output: Output): Promise<Process> {
		const events = reply.events<Event>();
		const first = (await events.next()).value;
		if (!first?.start) throw cutOff();
		reply.begun();
		return new Process(this.transport, this.id, first.start, output, { reply, events });
	}

	/** Lists the processes that `start` has started, running ones first. */
	async list(options?: CallOptions): Promise<ProcessInfo[]> {
		const found = await this.transport.call<Raw[]>("GET", boxRoute(this.id, "processes"), undefined, options);
		return found.map(processInfo);
	}

	/** Kills a process and all that it has started, by its PID or its tag. False if there is none. */
	async kill(process: number | string, options?: CallOptions): Promise<boolean> {
		return await send(this.transport, this.id, ref(process), "SIGKILL", options);
	}
}

interface Listening {
	reply: Reply;
	events: AsyncGenerator<Event, void>;
}

/** A process that was started or attached to. */
export class Process {
	readonly info: ProcessInfo;
	private listening?: Listening;
	private end?: Promise<End>;

	/** @internal */
	constructor(
		private readonly transport: Transport,
		private readonly id: string,
		info: Raw,
		private readonly output: Output,
		listening?: Listening,
	) {
		this.info = processInfo(info);
		if (listening) this.follow(listening);
		else if (info["exit"]) this.end = Promise.resolve(info["exit"] as End);
	}

	get pid(): number {
		return this.info.pid;
	}

	/** What has come so far. */
	get stdout(): string {
		return this.output.out.text();
	}

	/** What has come so far. */
	get stderr(): string {
		return this.output.err.text();
	}

	private follow(listening: Listening): void {
		this.listening = listening;
		this.end = this.output.follow(listening.reply, listening.events);
		this.end.catch(() => {}); // whoever waits is told
	}

	private path(...names: string[]): string {
		return boxRoute(this.id, "processes", String(this.pid), ...names);
	}

	/**
	 * Waits for the end and returns it, with the output since this handle is there.
	 *
	 * The signal ends the waiting; the process goes on. A timeout of the process throws CommandTimeout. After
	 * `disconnect` this attaches again.
	 */
	async wait(options: { signal?: AbortSignal } = {}): Promise<CommandResult> {
		options.signal?.throwIfAborted();
		if (!this.end) {
			const reply = await this.transport.lines("GET", this.path("attach"), undefined, options);
			this.follow({ reply, events: reply.events<Event>() });
		}
		const end = options.signal ? unlessAborted(this.end!, options.signal) : this.end!;
		return this.output.result(await end, undefined);
	}

	/** Stops listening; the process goes on. */
	async disconnect(): Promise<void> {
		this.listening?.reply.close();
		await this.end?.catch(() => {});
		if (this.listening) this.end = undefined;
		this.listening = undefined;
	}

	/** Writes to its standard input or terminal; returns when that has taken all. */
	async sendStdin(data: string | Uint8Array, options: CallOptions = {}): Promise<void> {
		const bytes = typeof data === "string" ? new TextEncoder().encode(data) : data;
		for (const body of cut(bytes)) {
			const headers = { "Content-Type": BYTES_TYPE };
			await (await this.transport.begin("POST", this.path("input"), { ...options, headers, body })).bytes();
		}
	}

	/** Lets it read the end of its input. */
	async closeStdin(options?: CallOptions): Promise<void> {
		await this.transport.call("DELETE", this.path("input"), undefined, options);
	}

	/** Sends a signal, by number or name, to it and all that it has started. False if it has ended. */
	async sendSignal(signal: number | string, options?: CallOptions): Promise<boolean> {
		return await send(this.transport, this.id, String(this.pid), String(signal), options);
	}

	/** Kills it, and all that it has started. False if it has ended. */
	async kill(options?: CallOptions): Promise<boolean> {
		return await this.sendSignal("SIGKILL", options);
	}

	/** Changes the size of its terminal. */
	async resize(cols: number, rows: number, options?: CallOptions): Promise<void> {
		await this.transport.call("POST", this.path("resize"), { cols, rows }, options);
	}
}

function request(cmd: string | readonly string[], { timeoutMs, ...rest }: CommandOptions): Raw {
	return { args: argv(cmd), ...snake(rest), ...seconds(timeoutMs) };
}

async function* input(first: string, stdin: Data): AsyncGenerator<Uint8Array, void> {
	const encoder = new TextEncoder();
	yield encoder.encode(first);
	for await (const piece of pieces(stdin)) yield encoder.encode(`{"stdin_b64":"${toBase64(piece)}"}\n`);
}

function ref(process: number | string): string {
	return typeof process === "number" ? String(process) : `@${process}`;
}

async function send(
	transport: Transport,
	id: string,
	process: string,
	signal: string,
	options?: CallOptions,
): Promise<boolean> {
	try {
		await transport.call("POST", boxRoute(id, "processes", process, "signal"), { signal }, options);
		return true;
	} catch (err) {
		if (err instanceof NotFoundError) return false;
		throw err;
	}
}

function processInfo(record: Raw): ProcessInfo {
	const { exit, ...rest } = record;
	return camel({ tag: "", ...rest, exitCode: exit ? (exit as End).exit_code : null });
}

/** What a command writes. */
class Output {
	readonly out: Text;
	readonly err: Text;

	constructor(onStdout?: OnOutput, onStderr?: OnOutput) {
		this.out = new Text(onStdout);
		this.err = new Text(onStderr);
	}

	/** Takes events until the command has ended. */
	async follow(reply: Reply, events: AsyncGenerator<Event, void> = reply.events<Event>()): Promise<End> {
		let end: End | undefined;
		for await (const event of events) {
			end = event.exit ?? end;
			await this.out.take(event.stdout ?? event.terminal, event.stdout_b64 ?? event.terminal_b64);
			await this.err.take(event.stderr, event.stderr_b64);
		}
		if (!end) throw cutOff();
		await this.out.end();
		await this.err.end();
		return end;
	}

	/** Returns how it ended; that its time was over is thrown. */
	result(end: End, timeoutMs: number | undefined): CommandResult {
		const result = {
			stdout: this.out.text(),
			stderr: this.err.text(),
			exitCode: end.exit_code,
			signal: end.signal,
			timedOut: end.timed_out,
			oomKilled: end.oom_killed ?? false,
			stdoutTruncated: this.out.truncated || (end.stdout_truncated ?? false),
			stderrTruncated: this.err.truncated || (end.stderr_truncated ?? false),
			stdoutBytes: this.out.bytes(),
			stderrBytes: this.err.bytes(),
		};
		if (end.timed_out) throw new CommandTimeout(timeoutMs, result);
		return result;
	}
}

/** Collects one stream and passes it on as text. */
class Text {
	truncated = false;
	private parts: Uint8Array[] = [];
	private size = 0;
	// A character may come in two pieces.
	private readonly decoder = new TextDecoder("utf-8", { ignoreBOM: true });
	private readonly encoder = new TextEncoder();

	constructor(private readonly callback?: OnOutput) {}

	async take(text: string | undefined, base64: string | undefined): Promise<void> {
		if (base64 !== undefined) await this.add(fromBase64(base64));
		else if (text) await this.add(this.encoder.encode(text));
	}

	private async add(data: Uint8Array): Promise<void> {
		const kept = data.subarray(0, OUTPUT_LIMIT - this.size);
		this.truncated ||= kept.length < data.length;
		this.parts.push(kept);
		this.size += kept.length;
		await this.tell(this.decoder.decode(data, { stream: true }));
	}

	async end(): Promise<void> {
		await this.tell(this.decoder.decode());
	}

	private async tell(text: string): Promise<void> {
		if (text) await this.callback?.(text);
	}

	bytes(): Uint8Array {
		const all = new Uint8Array(this.size);
		let at = 0;
		for (const part of this.parts) {
			all.set(part, at);
			at += part.length;
		}
		this.parts = [all];
		return all;
	}

	text(): string {
		return new TextDecoder("utf-8", { ignoreBOM: true }).decode(this.bytes());
	}
}
