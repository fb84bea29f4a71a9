import { DeadlineError, type ErrorBody, NotBootableError, PartialSpawnError } from "./errors.js";
import { type EvalOutcome, type SandboxRef, evalAll, idOf, idsOf } from "./evals.js";
import { platform } from "./platform.js";
import {
	type BranchMode,
	type EvalAnswer,
	type ExecAnswer,
	type ForkOptions,
	type Metrics,
	type Ping,
	type Progress,
	type Raw,
	type SandboxInfo,
	type SandboxState,
	type SnapshotInfo,
	type SnapshotOptions,
	type TreeNode,
	type Version,
	type Workspace,
	type WorkspaceOptions,
	camel,
	forkFields,
	seconds,
	snake,
} from "./records.js";
import { type Data, bodyOf } from "./data.js";
import { type CallOptions, Transport, before, cutOff, deadline } from "./transport.js";

export interface ProgressOptions extends CallOptions {
	onProgress?: (progress: Progress) => void;
}

export interface HubOptions extends ProgressOptions {
	/** FORKD_HUB_URL by default. */
	hubUrl?: string;
	/** FORKD_HUB_TOKEN by default. */
	hubToken?: string;
}

export interface SpawnOptions extends ForkOptions, CallOptions {
	/** Number of children, 1 by default. */
	n?: number;
	/** Repeating a call with the same key returns the same children. */
	idempotencyKey?: string;
}

export interface ExecOptions extends CallOptions {
	timeoutMs?: number;
	env?: Record<string, string>;
	cwd?: string;
	user?: string;
	stdin?: string;
	outputLimitBytes?: number;
}

type Quote = (text: string) => string;
type Query = Record<string, string | number | boolean | readonly string[] | undefined>;

/** Returns a path of the API: "/v1" and the names, quoted, and the query. */
export function route(names: readonly string[], query: Query = {}, quote: Quote = encodeURIComponent): string {
	const fields: string[] = [];
	for (const [name, value] of Object.entries(query)) {
		const values = Array.isArray(value) ? (value as readonly string[]) : value === undefined ? [] : [String(value)];
		for (const each of values) fields.push(`${name}=${quote(each)}`);
	}
	const path = `/v1/${names.map(encodeURIComponent).join("/")}`;
	return fields.length ? `${path}?${fields.join("&")}` : path;
}

/** Returns a path below a sandbox's. */
export function boxRoute(id: string, ...names: string[]): string {
	return route(["sandboxes", id, ...names]);
}

/** Returns the arguments of a command; a string is for the shell. */
export function argv(cmd: string | readonly string[]): string[] {
	return typeof cmd === "string" ? ["/bin/sh", "-c", cmd] : [...cmd];
}

/** Speaks to a daemon. Answers are the records that the REST API has, in camel case. */
export class Controller {
	/** @internal */
	readonly transport: Transport;

	constructor(options: { url?: string; token?: string } = {}) {
		this.transport = new Transport(options.url, options.token);
	}

	private async get<T>(names: string[], options?: CallOptions): Promise<T> {
		return camel(await this.transport.call("GET", route(names), undefined, options));
	}

	private async all<T>(path: string, options?: CallOptions): Promise<T[]> {
		return (await this.transport.call<Raw[]>("GET", path, undefined, options)).map((each) => camel<T>(each));
	}

	private async post<T>(names: string[], body?: Raw, options?: CallOptions): Promise<T> {
		return camel((await this.transport.call("POST", route(names), body, options)) ?? {});
	}

	// Daemon

	/** Asks whether the daemon answers; this needs no token. */
	async health(options?: CallOptions): Promise<{ status: string }> {
		return await this.transport.call("GET", "/healthz", undefined, options);
	}

	/** Tells which daemon answers. */
	async version(options?: CallOptions): Promise<Version> {
		return camel(await this.transport.call("GET", "/version", undefined, options));
	}

	/** Returns the daemon's metrics in the Prometheus text format. */
	async daemonMetrics(options?: CallOptions): Promise<string> {
		const reply = await this.transport.begin("GET", "/metrics", options);
		return new TextDecoder().decode(await reply.bytes());
	}

	/** Lists snapshots and sandboxes with what each of them comes from. */
	async tree(options?: CallOptions): Promise<TreeNode[]> {
		return await this.all(route(["tree"]), options);
	}

	// Snapshots

	async listSnapshots(options?: CallOptions): Promise<SnapshotInfo[]> {
		return await this.all(route(["snapshots"]), options);
	}

	/** Describes a snapshot, with its sizes and what depends on it. */
	async getSnapshot(tag: string, options?: CallOptions): Promise<SnapshotInfo> {
		return await this.get(["snapshots", tag, "info"], options);
	}

	/** Makes a snapshot and returns it. */
	async createSnapshot(tag: string, spec: SnapshotOptions = {}, options: ProgressOptions = {}): Promise<SnapshotInfo> {
		return await this.follow(["snapshots"], { tag, ...snake(spec) }, options);
	}

	/** Asks for work that takes its time and returns the snapshot it ends with. */
	private async follow(names: string[], body: Raw, { onProgress, ...options }: ProgressOptions): Promise<SnapshotInfo> {
		const reply = await this.transport.lines("POST", route(names), body, options);
		let snapshot: SnapshotInfo | undefined;
		for await (const event of reply.events<{ progress?: Progress; snapshot?: Raw }>()) {
			if (event.snapshot) snapshot = camel(event.snapshot);
			if (event.progress) onProgress?.(event.progress);
		}
		if (!snapshot) throw cutOff();
		return snapshot;
	}

	/**
	 * Removes a snapshot and returns the tags of all that went with it.
	 *
	 * While sandboxes run from it or other snapshots stand on it that is an InUseError, whose `dependents` names them.
	 * `force` ends the sandboxes, and the snapshots keep what they need of it; `cascade` removes those too, and ends all
	 * their sandboxes. The two exclude each other.
	 */
	async deleteSnapshot(tag: string, options: { force?: boolean; cascade?: boolean } & CallOptions = {}): Promise<string[]> {
		const path = route(["snapshots", tag], { force: options.force, cascade: options.cascade });
		const answer = await this.transport.call<{ removed: string[] } | undefined>("DELETE", path, undefined, options);
		return answer?.removed ?? [tag];
	}

	/** Returns a snapshot when it is no longer being written. One that is not ready after `timeoutMs` is an error. */
	async waitSnapshot(tag: string, options: { timeoutMs?: number } & CallOptions = {}): Promise<SnapshotInfo> {
		const end = deadline(options.timeoutMs, options);
		for (let pause = 1; ; pause = Math.min(pause * 1.2, 100)) {
			const info = await this.getSnapshot(tag, before(end, options));
			if (info.status === "ready") return info;
			if (info.status === "failed") throw new NotBootableError(`snapshot ${tag} could not be written: ${info.warning}`);
			if (Date.now() >= end) throw new DeadlineError(`snapshot ${tag} is still being written`);
			await new Promise((resolve) => setTimeout(resolve, Math.min(pause, end - Date.now())));
		}
	}

	/**
	 * Makes a snapshot of another one after some work in a child of it.
	 *
	 * A command is a string for /bin/sh or a list of arguments, and must exit with 0. The evaluations come after all
	 * commands and must not raise.
	 */
	async deriveSnapshot(
		tag: string,
		newTag: string,
		work: { commands?: (string | string[])[]; evals?: string[] },
		options: ProgressOptions = {},
	): Promise<SnapshotInfo> {
		const body = { tag: newTag, commands: (work.commands ?? []).map(argv), evals: work.evals ?? [] };
		return await this.follow(["snapshots", tag, "derive"], body, options);
	}

	/** Flattens the chain of a snapshot into a new one that stands on no other. */
	async compactSnapshot(tag: string, to: string, options?: CallOptions): Promise<SnapshotInfo> {
		return await this.post(["snapshots", tag, "compact"], { to }, options);
	}

	/** Compares every byte of a snapshot with its hashes; damage is an error. */
	async verifySnapshot(tag: string, options: ProgressOptions = {}): Promise<SnapshotInfo> {
		return await this.follow(["snapshots", tag, "verify"], {}, options);
	}

	/** Returns a snapshot with all that it stands on, as the pieces of a file. */
	async packSnapshot(tag: string, options?: CallOptions): Promise<AsyncIterable<Uint8Array>> {
		return (await this.transport.begin("GET", route(["snapshots", tag, "pack"]), options)).pieces();
	}

	/** Makes a snapshot of a pack. Its tag is the one that it was packed with unless another is given. */
	async unpackSnapshot(pack: Data, options: { tag?: string } & CallOptions = {}): Promise<SnapshotInfo> {
		const path = route(["snapshots", "unpack"], { tag: options.tag });
		const headers = { "Content-Type": "application/zstd" };
		const reply = await this.transport.begin("POST", path, { ...options, headers, body: bodyOf(pack) });
		return camel(await reply.json());
	}

	/**
	 * Has the daemon send a snapshot elsewhere.
	 *
	 * `reference` is the URL of a pack, owner/name[:version] on a hub, or oci://host/repository[:tag].
	 */
	async pushSnapshot(tag: string, reference: string, options: HubOptions = {}): Promise<SnapshotInfo> {
		return await this.follow(["snapshots", tag, "push"], { reference, ...hub(options) }, options);
	}

	/** Has the daemon fetch a snapshot; see pushSnapshot for references. */
	async pullSnapshot(reference: string, options: { tag?: string } & HubOptions = {}): Promise<SnapshotInfo> {
		const tag = options.tag === undefined ? {} : { tag: options.tag };
		return await this.follow(["snapshots", "pull"], { reference, ...tag, ...hub(options) }, options);
	}

	// Workspaces

	/** Makes a workspace, a named sandbox that outlives the daemon, and starts it. */
	async createWorkspace(
		name: string,
		tag: string,
		options: WorkspaceOptions & CallOptions = {},
	): Promise<Workspace> {
		const { memoryLimitMib, idleTimeoutMs, cpus, cpuWeight, pidsLimit, diskLimitMib, diskBytesPerSec, netBytesPerSec, ...call } = options;
		const limits = { memoryLimitMib, idleTimeoutMs, cpus, cpuWeight, pidsLimit, diskLimitMib, diskBytesPerSec, netBytesPerSec };
		return await this.post(["workspaces"], { ...snake({ name, snapshotTag: tag }), ...forkFields(limits) }, call);
	}

	async listWorkspaces(options?: CallOptions): Promise<Workspace[]> {
		return await this.all(route(["workspaces"]), options);
	}

	/** Describes a workspace; `sandboxId` is there while it runs. */
	async getWorkspace(name: string, options?: CallOptions): Promise<Workspace> {
		return await this.get(["workspaces", name], options);
	}

	/** Saves a workspace to disk and ends its sandbox. */
	async suspendWorkspace(name: string, options?: CallOptions): Promise<Workspace> {
		return await this.post(["workspaces", name, "suspend"], undefined, options);
	}

	/** Lets a suspended workspace run on. */
	async resumeWorkspace(name: string, options?: CallOptions): Promise<Workspace> {
		return await this.post(["workspaces", name, "resume"], undefined, options);
	}

	/** Removes a workspace and what was saved of it. */
	async deleteWorkspace(name: string, options?: CallOptions): Promise<void> {
		await this.transport.call("DELETE", route(["workspaces", name]), undefined, options);
	}

	// Sandboxes

	/**
	 * Forks children of a snapshot.
	 *
	 * If only some can be started, PartialSpawnError names them.
	 */
	async spawnSandboxes(tag: string, options: SpawnOptions = {}): Promise<SandboxInfo[]> {
		return await this.spawn({ snapshot_tag: tag }, options);
	}

	/** Forks children of a sandbox as it is now; it goes on running. */
	async forkSandbox(id: string, options: SpawnOptions = {}): Promise<SandboxInfo[]> {
		return await this.spawn({ from_sandbox: id }, options);
	}

	private async spawn(source: Raw, options: SpawnOptions): Promise<SandboxInfo[]> {
		const { n, idempotencyKey, signal, requestTimeoutMs, ...fields } = options;
		const headers: Record<string, string> = idempotencyKey === undefined ? {} : { "Idempotency-Key": idempotencyKey };
		const body = { ...source, n: n ?? 1, ...forkFields(fields) };
		const call = { signal, requestTimeoutMs };
		const ask = (more: CallOptions) =>
			this.transport.call<Raw[] | { sandboxes: Raw[]; errors: (ErrorBody & { index: number })[] }>(
				"POST",
				route(["sandboxes"]),
				body,
				{ ...more, headers },
			);
		// Who gives up before there is an answer does not know what to end, unless there is a key to ask again with.
		const endAll = async (made: Awaited<ReturnType<typeof ask>>) => {
			for (const { id } of Array.isArray(made) ? made : made.sandboxes) await this.killSandbox(id as string);
		};
		const answer = await (idempotencyKey === undefined ? this.transport.finish(() => ask({}), endAll, call) : ask(call));
		if (Array.isArray(answer)) return answer.map((each) => camel<SandboxInfo>(each));
		throw new PartialSpawnError(
			answer.sandboxes.map((each) => camel<SandboxInfo>(each)),
			answer.errors,
		);
	}

	/** Lists the sandboxes, oldest first: all, or those with some metadata or in some states. */
	async listSandboxes(
		options: { metadata?: Record<string, string>; state?: SandboxState | SandboxState[] } & CallOptions = {},
	): Promise<SandboxInfo[]> {
		const metadata = Object.entries(options.metadata ?? {}).map(([key, value]) => `${key}=${value}`);
		return await this.all(route(["sandboxes"], { state: options.state, metadata }), options);
	}

	async getSandbox(id: string, options?: CallOptions): Promise<SandboxInfo> {
		return await this.get(["sandboxes", id], options);
	}

	/** Ends a sandbox, running or paused. */
	async killSandbox(id: string, options?: CallOptions): Promise<void> {
		await this.transport.call("DELETE", boxRoute(id), undefined, options);
	}

	/** Saves a sandbox to disk, processes included, so that it uses no memory. */
	async pauseSandbox(id: string, options?: CallOptions): Promise<SandboxInfo> {
		return await this.post(["sandboxes", id, "pause"], undefined, options);
	}

	/** Lets a paused sandbox go on; its lifetime begins anew. Of one that runs, nothing changes. */
	async resumeSandbox(id: string, options: { timeoutMs?: number } & CallOptions = {}): Promise<SandboxInfo> {
		return await this.post(["sandboxes", id, "resume"], seconds(options.timeoutMs), options);
	}

	/** Changes how long a sandbox still lives, null for ever; with `extend` never to less. */
	async setSandboxTimeout(
		id: string,
		timeoutMs: number | null,
		options: { extend?: boolean } & CallOptions = {},
	): Promise<SandboxInfo> {
		const body: Raw = { timeout_secs: timeoutMs === null ? null : timeoutMs / 1000 };
		if (options.extend) body["extend"] = true;
		return await this.post(["sandboxes", id, "timeout"], body, options);
	}

	/** Tells what a sandbox uses. */
	async sandboxMetrics(id: string, options?: CallOptions): Promise<Metrics> {
		return await this.get(["sandboxes", id, "metrics"], options);
	}

	/** Makes a snapshot of a sandbox, which goes on running. Without `wait` the answer comes as soon as it runs again. */
	async branchSandbox(
		id: string,
		options: { tag?: string; mode?: BranchMode; wait?: boolean } & CallOptions = {},
	): Promise<SnapshotInfo> {
		const { tag, mode, wait, ...call } = options;
		return await this.post(["sandboxes", id, "branch"], snake({ tag, mode, wait }), call);
	}

	/** Takes a sandbox back, in place, to a snapshot that it descends from. */
	async rollbackSandbox(id: string, tag: string, options?: CallOptions): Promise<SandboxInfo> {
		return await this.post(["sandboxes", id, "rollback"], { snapshot_tag: tag }, options);
	}

	/** Runs a command to its end. */
	async execCommand(id: string, args: readonly string[], options: ExecOptions = {}): Promise<ExecAnswer> {
		const { timeoutMs, signal, requestTimeoutMs, ...fields } = options;
		const body = { args, ...snake(fields), ...seconds(timeoutMs) };
		return await this.post(["sandboxes", id, "exec"], body, { signal, requestTimeoutMs });
	}

	/** Evaluates code in the warm runtime. */
	async evalCode(id: string, code: string, options: { timeoutMs?: number } & CallOptions = {}): Promise<EvalAnswer> {
		return await this.post(["sandboxes", id, "eval"], { code, ...seconds(options.timeoutMs) }, options);
	}

	/**
	 * Evaluates the same code in many sandboxes at once; yields `[sandbox, outcome]` as they answer.
	 *
	 * Sandboxes are given, and yielded, as objects, records or ids, 1 to 1000 different ones. `timeoutMs` counts in each.
	 * A failure in one is in its outcome and nothing to the others; if the daemon stops answering, PartialEvalError names
	 * those that have not. It begins with the first step of the iteration, and whoever stops iterating interrupts the
	 * evaluations that still run.
	 */
	evalAll<S extends SandboxRef>(
		sandboxes: readonly S[],
		code: string,
		options: { timeoutMs?: number } & CallOptions = {},
	): AsyncGenerator<[S, EvalOutcome], void, void> {
		const { timeoutMs, ...call } = options;
		return evalAll(this.transport, route(["eval"]), sandboxes, { sandboxes: idsOf(sandboxes), code, ...seconds(timeoutMs) }, call);
	}

	/**
	 * Evaluates the same code in many sandboxes at once, and returns their outcomes, in their order.
	 *
	 * See evalAll, which does not wait for all.
	 */
	async evalEach(
		sandboxes: readonly SandboxRef[],
		code: string,
		options: { timeoutMs?: number } & CallOptions = {},
	): Promise<EvalOutcome[]> {
		const outcomes = new Map<string, EvalOutcome>();
		for await (const [, outcome] of this.evalAll(sandboxes, code, options)) outcomes.set(outcome.sandboxId, outcome);
		return sandboxes.map((sandbox) => outcomes.get(idOf(sandbox))!);
	}

	/** Interrupts the evaluation that runs in a sandbox. */
	async interruptSandbox(id: string, options?: CallOptions): Promise<void> {
		await this.transport.call("POST", boxRoute(id, "interrupt"), undefined, options);
	}

	/** Asks a sandbox for a sign of life. */
	async pingSandbox(id: string, options?: CallOptions): Promise<Ping> {
		return await this.post(["sandboxes", id, "ping"], undefined, options);
	}
}

function hub({ hubUrl, hubToken }: HubOptions): Raw {
	return snake({
		hubUrl: hubUrl ?? (platform.env("FORKD_HUB_URL") || undefined),
		hubToken: hubToken ?? (platform.env("FORKD_HUB_TOKEN") || undefined),
	});
}
