/**
 * Fork warm microVMs.
 *
 * Sandbox is one child; Controller speaks to the daemon itself.
 *
 * @module
 */

export { Contexts, type Execution, Result, type RunCodeOptions } from "./code.js";
export {
	type AttachOptions,
	type CommandResult,
	Commands,
	type OnOutput,
	Process,
	type ProcessInfo,
	type RunOptions,
	type StartOptions,
} from "./commands.js";
export {
	Controller,
	type ExecOptions,
	type HubOptions,
	type ProgressOptions,
	type SpawnOptions,
} from "./controller.js";
export type { Data } from "./data.js";
export * from "./errors.js";
export { EvalOutcome, Repr, type SandboxRef } from "./evals.js";
export { type Change, type FileInfo, Files, type OwnerOptions, type ReadOptions, Watch } from "./files.js";
export { Connection, type PortRequest, type PortResponse, Ports } from "./ports.js";
export type {
	BranchMode,
	CodeContext,
	EvalAnswer,
	ExecAnswer,
	ForkOptions,
	Limits,
	Language,
	Metrics,
	Ping,
	Progress,
	SandboxInfo,
	SandboxState,
	SnapshotInfo,
	SnapshotOptions,
	TreeNode,
	Version,
	Shortage,
	Workspace,
	WorkspaceOptions,
} from "./records.js";
export { type Branch, type ConnectOptions, Sandbox, type SandboxOptions } from "./sandbox.js";
export type { CallOptions } from "./transport.js";
