import type { Shortage } from "./records.js";

/** The body of an error, as the API sends it. */
export interface ErrorBody {
	error: string;
	code: string;
	hint?: string;
	dependents?: string[];
	shortage?: Shortage;
}

/**
 * An error of forkd. Each code has a class of its own below.
 *
 * `code` is stable ("not_found", "in_use", …; see the REST API), `hint` says what to do and may be empty, `status` is
 * that of the HTTP answer, 0 without one, `dependents` names what an "in_use" thing is used by, and `shortage` what the
 * host lacked for something that it did not begin ("capacity_exceeded", "no_space").
 */
export class ForkdError extends Error {
	readonly code: string;
	readonly hint: string;
	readonly status: number;
	readonly dependents: string[];
	readonly shortage?: Shortage;

	constructor(
		message: string,
		more: { code?: string; hint?: string; status?: number; dependents?: string[]; shortage?: Shortage; cause?: unknown } = {},
	) {
		super(more.hint ? `${message} (${more.hint})` : message, more.cause === undefined ? undefined : { cause: more.cause });
		this.name = new.target.name;
		this.code = more.code ?? (new.target as unknown as { code?: string }).code ?? "internal";
		this.hint = more.hint ?? "";
		this.status = more.status ?? 0;
		this.dependents = more.dependents ?? [];
		if (more.shortage) this.shortage = more.shortage;
	}
}

/** The request can never work; the message names the field. */
export class InvalidArgumentError extends ForkdError {
	static readonly code = "invalid_argument";
}

/** No token or a wrong one. */
export class UnauthorizedError extends ForkdError {
	static readonly code = "unauthorized";
}

/** The request comes from a place that may not ask. */
export class ForbiddenError extends ForkdError {
	static readonly code = "forbidden";
}

/** There is no such tag, sandbox, process, context or file. */
export class NotFoundError extends ForkdError {
	static readonly code = "not_found";
}

/** The name is taken. */
export class AlreadyExistsError extends ForkdError {
	static readonly code = "already_exists";
}

/** Something still depends on it; `dependents` names it. */
export class InUseError extends ForkdError {
	static readonly code = "in_use";
}

/** The request is sound, but what it names does not allow it. */
export class FailedPreconditionError extends ForkdError {
	static readonly code: string = "failed_precondition";
}

/** The sandbox is paused, and was not made to resume by itself. */
export class PausedError extends FailedPreconditionError {
	static override readonly code = "paused";
}

/** Nothing listens on the port in the sandbox, or what did has broken the connection. */
export class PortClosedError extends ForkdError {
	static readonly code = "port_closed";
}

/** The snapshot has no interpreter for that. */
export class NoRuntimeError extends ForkdError {
	static readonly code = "no_runtime";
}

/** The interpreter died and was started again; its state is gone. */
export class RuntimeLostError extends ForkdError {
	static readonly code = "runtime_lost";
}

/** The guest has ended; the message says why. */
export class SandboxDeadError extends ForkdError {
	static readonly code = "sandbox_dead";
}

/** The body is over the limit of the operation. */
export class TooLargeError extends ForkdError {
	static readonly code = "too_large";
}

/** The snapshot or pack is damaged or foreign. */
export class NotBootableError extends ForkdError {
	static readonly code = "not_bootable";
}

/** A command or evaluation that had to succeed has not. */
export class CommandFailedError extends ForkdError {
	static readonly code = "command_failed";
}

/** This engine, build or platform cannot do it. */
export class UnsupportedError extends ForkdError {
	static readonly code = "unsupported";
}

/** It did not work this time; try again later. */
export class UnavailableError extends ForkdError {
	static readonly code: string = "unavailable";
}

/** No daemon can be reached. */
export class ConnectError extends UnavailableError {}

/** The daemon stopped answering before all sandboxes had. `missing` lists the ids of those that have not answered. */
export class PartialEvalError extends UnavailableError {
	constructor(
		readonly missing: string[],
		total: number,
		cause?: unknown,
	) {
		super(`the daemon stopped answering half way: ${unanswered(missing, total)}`, { cause });
	}
}

/**
 * Says which of the sandboxes have not answered.
 *
 * @internal
 */
export function unanswered(missing: readonly string[], total: number): string {
	const names = missing.slice(0, 10).join(", ") + (missing.length > 10 ? ", …" : "");
	return `${missing.length} of ${total} sandboxes have not answered: ${names}`;
}

/** A limit of the host or the daemon is reached. */
export class CapacityExceededError extends ForkdError {
	static readonly code = "capacity_exceeded";
}

/**
 * A time limit passed. `missing` lists the ids of the sandboxes that have not answered an evaluation in many; it is empty
 * for all else.
 */
export class DeadlineError extends ForkdError {
	static readonly code: string = "timeout";
	readonly missing: string[];

	constructor(message: string, more: ConstructorParameters<typeof ForkdError>[1] & { missing?: string[] } = {}) {
		super(message, more);
		this.missing = more.missing ?? [];
	}
}

/** The disk is full. */
export class NoSpaceError extends ForkdError {
	static readonly code = "no_space";
}

/** A command took longer than its timeout and was killed. `result` holds what it had printed until then. */
export class CommandTimeout<Result = unknown> extends DeadlineError {
	constructor(
		timeoutMs: number | undefined,
		readonly result: Result,
	) {
		super(`the command took longer than ${timeoutMs === undefined ? "its time limit" : `${timeoutMs / 1000} s`} and was killed`);
	}
}

/**
 * Code has raised an exception.
 *
 * `type` and `text` are the exception's, `traceback` is its whole text.
 */
export class EvalError extends ForkdError {
	static readonly code = "eval_error";

	constructor(
		readonly type: string,
		readonly text: string,
		readonly traceback: string,
	) {
		super(`${type}: ${text}`);
	}
}

/**
 * The time limit of an evaluation or a run ended it; state is kept.
 *
 * `type` is "TimeoutError", `text` names the limit, and `traceback` shows where the code was interrupted. A TimeoutError
 * that the code itself raises is a plain EvalError.
 */
export class EvalTimeout extends EvalError {}

/** Some children could not be started. `sandboxes` lists those that run; they go on running. */
export class PartialSpawnError<Info = unknown> extends ForkdError {
	constructor(
		readonly sandboxes: Info[],
		readonly errors: (ErrorBody & { index: number })[],
	) {
		const first = errors[0]!;
		const all = errors.length + sandboxes.length;
		super(`${errors.length} of ${all} children could not be started: ${first.error}`, {
			code: first.code,
			hint: first.hint,
			status: 207,
		});
	}
}

type ErrorClass = new (message: string, more: ConstructorParameters<typeof ForkdError>[1]) => ForkdError;

const byCode = new Map<string, ErrorClass>(
	[
		InvalidArgumentError,
		UnauthorizedError,
		ForbiddenError,
		NotFoundError,
		AlreadyExistsError,
		InUseError,
		FailedPreconditionError,
		PausedError,
		PortClosedError,
		NoRuntimeError,
		RuntimeLostError,
		SandboxDeadError,
		TooLargeError,
		NotBootableError,
		CommandFailedError,
		UnsupportedError,
		UnavailableError,
		CapacityExceededError,
		DeadlineError,
		NoSpaceError,
	].map((kind) => [kind.code, kind]),
);

/** Tells whether a value is the body of one of forkd's errors. */
export function isErrorBody(value: unknown): value is ErrorBody {
	const body = value as ErrorBody | null;
	return typeof body === "object" && body !== null && typeof body.error === "string" && typeof body.code === "string";
}

/** The error that an answer or a stream tells of. */
export function errorOf(body: ErrorBody, status = 0): ForkdError {
	const kind = byCode.get(body.code) ?? ForkdError;
	// The daemon tells strangers nothing.
	const hint = body.code === "unauthorized" ? "set FORKD_TOKEN to the token of the daemon" : body.hint;
	return new kind(body.error, { code: body.code, hint, status, dependents: body.dependents, shortage: body.shortage });
}
