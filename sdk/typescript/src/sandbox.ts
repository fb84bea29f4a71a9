import { type Execution, type RunCodeOptions, Contexts, evaluate, runCode } from "./code.js";
import { Commands } from "./commands.js";
import { Controller } from "./controller.js";
import { NotFoundError, PartialSpawnError } from "./errors.js";
import { Files } from "./files.js";
import { platform } from "./platform.js";
import { Ports } from "./ports.js";
import type { BranchMode, ForkOptions, Metrics, Ping, SandboxInfo, SnapshotInfo } from "./records.js";
import type { CallOptions } from "./transport.js";

const DEFAULT_TAG = "pyagent";

export interface ConnectOptions extends CallOptions {
	url?: string;
	token?: string;
	/** Used instead of a new one. */
	controller?: Controller;
}

export interface SandboxOptions extends ForkOptions, ConnectOptions {
	/** The snapshot to fork; FORKD_TAG or "pyagent" by default. */
	tag?: string;
}

/** A snapshot of a sandbox. `Sandbox.create({ tag: branch.tag })` forks from it. */
export type Branch = SnapshotInfo & { branchedFrom: string; mode: BranchMode; pauseMs: number };

/** A sandbox forked from a snapshot. */
export class Sandbox {
	readonly commands: Commands;
	readonly files: Files;
	readonly contexts: Contexts;
	readonly ports: Ports;

	/** Speaks to the sandbox with an id, whether it exists or not. */
	constructor(
		readonly id: string,
		readonly controller: Controller,
	) {
		const { transport } = controller;
		this.commands = new Commands(transport, id);
		this.files = new Files(transport, id);
		this.contexts = new Contexts(transport, id);
		this.ports = new Ports(transport, id);
	}

	/** Forks a sandbox. If this is aborted, no sandbox is left behind. */
	static async create(options: SandboxOptions = {}): Promise<Sandbox> {
		const { tag, url, token, controller, ...fork } = options;
		const speaker = controller ?? new Controller({ url, token });
		const [info] = await speaker.spawnSandboxes(tag ?? (platform.env("FORKD_TAG") || DEFAULT_TAG), fork);
		return new Sandbox(info!.id, speaker);
	}

	/** Finds the sandbox with an id, which must exist; nothing changes for it. */
	static async connect(id: string, options: ConnectOptions = {}): Promise<Sandbox> {
		const { url, token, controller, ...call } = options;
		const speaker = controller ?? new Controller({ url, token });
		return new Sandbox((await speaker.getSandbox(id, call)).id, speaker);
	}

	/** Forks a sandbox, works with it, and ends it, whatever happens. Returns what the work returns. */
	static async use<T>(work: (box: Sandbox) => Promise<T>, options: SandboxOptions = {}): Promise<T> {
		const box = await Sandbox.create(options);
		let result: T;
		try {
			result = await work(box);
		} catch (err) {
			await box.kill().catch(() => {}); // the error of the work is the one to show
			throw err;
		}
		await box.kill();
		return result;
	}

	// Its life

	/** Describes the sandbox. */
	async info(options?: CallOptions): Promise<SandboxInfo> {
		return await this.controller.getSandbox(this.id, options);
	}

	/** Tells what the sandbox uses. */
	async metrics(options?: CallOptions): Promise<Metrics> {
		return await this.controller.sandboxMetrics(this.id, options);
	}

	/** Asks for a sign of life. */
	async ping(options?: CallOptions): Promise<Ping> {
		return await this.controller.pingSandbox(this.id, options);
	}

	/** Changes how long it still lives, null for ever; with `extend` never to less. */
	async setTimeout(timeoutMs: number | null, options: { extend?: boolean } & CallOptions = {}): Promise<SandboxInfo> {
		return await this.controller.setSandboxTimeout(this.id, timeoutMs, options);
	}

	/**
	 * Saves it to disk, memory and processes included, so that it uses no memory.
	 *
	 * It outlives the daemon and has no lifetime until it is resumed.
	 */
	async pause(options?: CallOptions): Promise<SandboxInfo> {
		return await this.controller.pauseSandbox(this.id, options);
	}

	/**
	 * Lets it go on where it was paused; its lifetime begins anew.
	 *
	 * One that has ended since goes on as it was when it was paused last, as its `info` tells.
	 */
	async resume(options: { timeoutMs?: number } & CallOptions = {}): Promise<SandboxInfo> {
		return await this.controller.resumeSandbox(this.id, options);
	}

	/** Ends the sandbox, running or paused. Ending one that has ended is fine. */
	async kill(options?: CallOptions): Promise<void> {
		try {
			await this.controller.killSandbox(this.id, options);
		} catch (err) {
			if (!(err instanceof NotFoundError)) throw err;
		}
	}

	// Copies

	/**
	 * Returns n children of the sandbox as it is now; it goes on running.
	 *
	 * They have its processes, files, variables and environment, and nothing that it does later. Either all are made or
	 * none. Each has to be ended with `kill`.
	 */
	async fork(n = 1, options: ForkOptions & CallOptions = {}): Promise<Sandbox[]> {
		try {
			const infos = await this.controller.forkSandbox(this.id, { n, ...options });
			return infos.map((info) => new Sandbox(info.id, this.controller));
		} catch (err) {
			if (err instanceof PartialSpawnError) {
				for (const info of (err as PartialSpawnError<SandboxInfo>).sandboxes) {
					await new Sandbox(info.id, this.controller).kill();
				}
			}
			throw err;
		}
	}

	/**
	 * Makes a snapshot of the sandbox as it is now; it goes on running.
	 *
	 * `tag` is made up unless it is given. `mode` is "live" (what has changed since the last snapshot; can be forked from
	 * before it is on disk), "diff" (the same, once it is on disk) or "full" (all of it, standing on no other snapshot).
	 * With `wait: false` the call returns as soon as the sandbox runs again.
	 */
	async branch(options: { tag?: string; mode?: BranchMode; wait?: boolean } & CallOptions = {}): Promise<Branch> {
		return (await this.controller.branchSandbox(this.id, options)) as Branch;
	}

	/**
	 * Takes the sandbox back, in place, to a snapshot that it descends from.
	 *
	 * That is the one it runs from, one that this stands on, or a branch of it.
	 */
	async rollback(tag: string, options?: CallOptions): Promise<void> {
		await this.controller.rollbackSandbox(this.id, tag, options);
	}

	// Code

	/**
	 * Evaluates code in the warm runtime and returns its value.
	 *
	 * A value that JSON cannot carry comes as a Repr, that is its text; statements give null. An exception in the code
	 * throws EvalError, the time limit EvalTimeout. State is kept from call to call.
	 */
	async eval(code: string, options: { timeoutMs?: number } & CallOptions = {}): Promise<unknown> {
		return await evaluate(this.controller.transport, this.id, code, options);
	}

	/**
	 * Runs code like a cell of a notebook, and returns all that it brought forth.
	 *
	 * An exception in the code is in the result. A run that is aborted or out of time is interrupted there, and state is
	 * kept.
	 */
	async runCode(code: string, options: RunCodeOptions = {}): Promise<Execution> {
		return await runCode(this.controller.transport, this.id, code, options);
	}

	/** Interrupts the evaluation that is running; the runtime keeps its state. */
	async interrupt(options?: CallOptions): Promise<void> {
		await this.controller.interruptSandbox(this.id, options);
	}

	// Ports

	/** Returns the URL under which the daemon passes HTTP on to a port; see Ports.url. */
	getUrl(port: number): string {
		return this.ports.url(port);
	}
}
