// The records of the REST API, with their names in camel case.

export interface Version {
	version: string;
	api: string;
	engine: string;
	executor?: string;
	pid: number;
	startedAtUnix: number;
}

export type BranchMode = "live" | "diff" | "full";

/** A snapshot; from `engine` on only if it was asked for alone. */
export interface SnapshotInfo {
	tag: string;
	dir: string;
	createdAtUnix: number;
	status: "writing" | "ready" | "failed";
	bootable: boolean;
	branchedFrom?: string;
	mode?: BranchMode;
	/** For how long the processes of the source stood still for the branch. */
	pauseMs?: number;
	warning?: string;
	engine?: string;
	vcpus?: number;
	memoryMib?: number;
	modules?: string[];
	memoryLogicalBytes?: number;
	memoryPhysicalBytes?: number;
	diskPhysicalBytes?: number;
	vmstateBytes?: number;
	contentHash?: string;
	parentTag?: string;
	parentContentHash?: string;
	chainDepth?: number;
	ancestors?: string[];
	dependents?: string[];
	dependentSnapshots?: string[];
	exclusiveBytes?: number;
}

/** What to boot and warm up for a new snapshot. */
export interface SnapshotOptions {
	memoryMib?: number;
	vcpus?: number;
	diskMib?: number;
	packages?: string[];
	mirror?: string;
	runtime?: "python" | "none";
	modules?: string[];
	warmUp?: string[];
	setup?: string[][];
}

/** A step of long work. `total` is 0 while it is unknown. */
export interface Progress {
	step: string;
	message: string;
	done: number;
	total: number;
}

/** What a sandbox may take of its host, besides memory. */
export interface Limits {
	/** Processors' worth of time that it gets at most. */
	cpus?: number;
	/** Its share of the processors where sandboxes compete; 100 if it has none. */
	cpuWeight?: number;
	/** Processes and threads that it may have. */
	pidsLimit?: number;
	/** What it may write to its disk besides what that had. */
	diskLimitMib?: number;
	/** What it may read from and write to its disks together. */
	diskBytesPerSec?: number;
	/** What it may send and receive together. */
	netBytesPerSec?: number;
}

/** What a host lacked for a request that it did not begin. */
export interface Shortage {
	resource: "memory" | "disk" | "descriptors" | "sandboxes";
	needed: number;
	free: number;
	held: number;
}

export interface Workspace extends Limits {
	idleTimeoutSecs?: number;
	name: string;
	state: "running" | "suspended";
	snapshotTag: string;
	baseTag: string;
	/** While it runs. */
	sandboxId?: string;
	createdAtUnix: number;
	suspendedAtUnix?: number;
	memoryLimitMib: number | null;
	warning?: string;
}

export interface TreeNode {
	kind: "snapshot" | "sandbox";
	name: string;
	parent?: string;
	source?: string;
	workspace?: string;
	createdAtUnix: number;
	state: string;
	privateKib: number;
	diskKib: number;
}

export type SandboxState = "running" | "paused" | "exited" | "crashed";

export interface SandboxInfo extends Limits {
	idleTimeoutSecs?: number;
	id: string;
	snapshotTag: string;
	engine: string;
	state: SandboxState;
	/** Why it ended; of a paused one, why it cannot be resumed; of a running one, why it does not answer. */
	reason?: string;
	createdAtUnix: number;
	expiresAt: string | null;
	pausedAt?: string;
	pid: number;
	netns: string | null;
	guestAddr: string | null;
	memoryLimitMib: number | null;
	privateKib: number;
	translatedBlocks: number;
	branchedFrom?: string;
	workspace?: string;
	metadata: Record<string, string>;
	onTimeout: "kill" | "pause";
	autoResume: boolean;
}

/** What a sandbox uses. `cpuPercent` is of one vCPU, since the last time that somebody asked, or the fork. */
export interface Metrics {
	time: string;
	vcpus: number;
	cpuPercent: number;
	memTotalBytes: number;
	memUsedBytes: number;
	memCacheBytes: number;
	diskTotalBytes: number;
	diskUsedBytes: number;
	privateBytes: number;
}

/** What a new sandbox may be given. */
export interface ForkOptions extends Limits {
	/** Ends it after so many milliseconds. */
	timeoutMs?: number;
	/** Ends it when nobody has used it for so many milliseconds. */
	idleTimeoutMs?: number;
	/** What happens then; "kill" by default. */
	onTimeout?: "kill" | "pause";
	/** When it is used while it is paused, resume it first. */
	autoResume?: boolean;
	memoryLimitMib?: number;
	/** Make it ready before the call returns instead of before its first use. */
	prewarm?: boolean;
	/** To find it by. */
	metadata?: Record<string, string>;
	/** For every command and run in it. */
	env?: Record<string, string>;
}

/** What a workspace may be given; `idleTimeoutMs` suspends it. */
export type WorkspaceOptions = Limits & Pick<ForkOptions, "memoryLimitMib" | "idleTimeoutMs">;

export interface Ping {
	ok: boolean;
	roundTripMs: number;
	agentVersion: string;
	uptimeSecs: number;
}

export interface ExecAnswer {
	stdout: string;
	stderr: string;
	exitCode: number;
	signal: string | null;
	timedOut: boolean;
	stdoutTruncated: boolean;
	stdoutTotalBytes: number;
	stderrTruncated: boolean;
	stderrTotalBytes: number;
	durationMs: number;
}

export interface EvalAnswer {
	/** As the runtime prints it; null for statements. */
	result: string | null;
	/** `result` is only the beginning. Older daemons do not tell. */
	resultTruncated?: boolean;
	/** Only if JSON carries it faithfully. */
	value?: unknown;
	error: { type: string; message: string; traceback: string } | null;
	exitCode: number;
	stdout: string;
	stderr: string;
	stdoutTruncated: boolean;
	stderrTruncated: boolean;
}

/** An interpreter that keeps state between runs. */
export interface CodeContext {
	id: string;
	language: Language;
	cwd: string;
}

export type Language = "python" | "javascript" | "bash";

/** A record as it is in JSON. */
export type Raw = Record<string, unknown>;

/** Returns a record of the API with its own keys in camel case; what is in it stays as it is. */
export function camel<T>(record: unknown): T {
	return renamed(record as Raw, (key) => key.replace(/_([a-z0-9])/g, (_, letter: string) => letter.toUpperCase())) as T;
}

/** Returns the fields that are given, with their keys as the API has them. */
export function snake(record: object): Raw {
	return renamed(record as Raw, (key) => key.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`));
}

function renamed(record: Raw, name: (key: string) => string): Raw {
	const other: Raw = {};
	for (const [key, value] of Object.entries(record)) {
		if (value !== undefined) other[name(key)] = value;
	}
	return other;
}

/** Returns what the API calls the options of a new sandbox. */
export function forkFields({ timeoutMs, idleTimeoutMs, ...rest }: ForkOptions): Raw {
	const idle = idleTimeoutMs === undefined ? {} : { idle_timeout_secs: idleTimeoutMs / 1000 };
	return { ...snake(rest), ...seconds(timeoutMs), ...idle };
}

/** Returns a time limit as the API has it. */
export function seconds(timeoutMs: number | undefined): Raw {
	return timeoutMs === undefined ? {} : { timeout_secs: timeoutMs / 1000 };
}
