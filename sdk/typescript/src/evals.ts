import {
	DeadlineError,
	type ErrorBody,
	EvalError,
	EvalTimeout,
	ForkdError,
	PartialEvalError,
	UnavailableError,
	errorOf,
	unanswered,
} from "./errors.js";
import { type EvalAnswer, camel } from "./records.js";
import type { CallOptions, Transport } from "./transport.js";

/** A sandbox, a record of one, or the id of one. */
export type SandboxRef = string | { readonly id: string };

/** The text of a value that JSON cannot carry, as the runtime prints it. */
export class Repr extends String {
	/** @internal */
	constructor(
		text: string,
		/** These are only the first characters of a longer text. */
		readonly truncated = false,
	) {
		super(text);
	}
}

/** What became of an evaluation in one of many sandboxes. */
export class EvalOutcome {
	/** @internal */
	constructor(
		readonly sandboxId: string,
		/** What `Sandbox.eval` would have returned. */
		readonly value: unknown,
		/** What `Sandbox.eval` would have thrown. */
		readonly error?: ForkdError,
		/** The whole record, with what the code wrote, if there was an evaluation. */
		readonly answer?: EvalAnswer,
	) {}

	/** Returns the value, or throws the error. */
	get(): unknown {
		if (this.error) throw this.error;
		return this.value;
	}
}

/** An exception of code, as the API tells of it. */
export interface RawError {
	type: string;
	message: string;
	traceback: string;
}

interface RawAnswer {
	result: string | null;
	result_truncated?: boolean;
	value?: unknown;
	error: RawError | null;
}

interface Line {
	sandbox_id: string;
	result?: RawAnswer;
	error?: ErrorBody;
}

export function idOf(sandbox: SandboxRef): string {
	const id: unknown = typeof sandbox === "string" ? sandbox : sandbox?.id;
	if (typeof id === "string") return id;
	throw new TypeError(`a sandbox must be a Sandbox, a record of one or an id, not ${JSON.stringify(sandbox)}`);
}

/** The ids of sandboxes; one of them, or its id, is no list. */
export function idsOf(sandboxes: readonly SandboxRef[]): string[] {
	if (Array.isArray(sandboxes)) return sandboxes.map(idOf);
	const given = typeof sandboxes === "string" ? JSON.stringify(sandboxes) : "sandbox";
	throw new TypeError(`sandboxes must be a list, such as [${given}]`);
}

/** Evaluates in sandboxes, and yields each with its outcome as it answers. */
export async function* evalAll<S extends SandboxRef>(
	transport: Transport,
	path: string,
	sandboxes: readonly S[],
	request: object,
	options: CallOptions,
): AsyncGenerator<[S, EvalOutcome], void, void> {
	const waiting = new Map(sandboxes.map((sandbox) => [idOf(sandbox), sandbox]));
	let cut: unknown;
	try {
		const reply = await transport.lines("POST", path, request, options); // which begins with the first outcome
		try {
			for await (const line of reply.objects<Line>()) {
				const outcome = outcomeOf(line);
				const sandbox = waiting.get(outcome.sandboxId);
				if (sandbox === undefined) throw new ForkdError(`an answer of sandbox ${line.sandbox_id} has no place here`);
				waiting.delete(outcome.sandboxId);
				yield [sandbox, outcome];
			}
		} catch (err) {
			if (!(err instanceof UnavailableError)) throw err;
			cut = err;
		}
	} catch (err) {
		if (!(err instanceof DeadlineError)) throw err;
		const missing = [...waiting.keys()];
		throw new DeadlineError(`${err.message}; ${unanswered(missing, sandboxes.length)}`, { missing, cause: err });
	}
	if (waiting.size) throw new PartialEvalError([...waiting.keys()], sandboxes.length, cut);
}

/** What one line of many says. */
function outcomeOf({ sandbox_id, result, error }: Line): EvalOutcome {
	if (!result) return new EvalOutcome(sandbox_id, undefined, errorOf(error!));
	const answer = camel<EvalAnswer>(result);
	try {
		return new EvalOutcome(sandbox_id, valueOf(result), undefined, answer);
	} catch (err) {
		if (!(err instanceof EvalError)) throw err;
		return new EvalOutcome(sandbox_id, undefined, err, answer);
	}
}

/** The value that was evaluated; an exception of the code is thrown. */
export function valueOf(answer: RawAnswer): unknown {
	if (answer.error) throw evalError(answer.error);
	if ("value" in answer) return answer.value;
	return answer.result === null ? null : new Repr(answer.result, answer.result_truncated);
}

export function evalError({ type, message, traceback }: RawError): EvalError {
	// The daemon tells of the limit in place of the interrupt, which the traceback ends with.
	// An exception of the code itself stands in its own traceback.
	const limit = type === "TimeoutError" && message !== "" && !traceback.includes(`${type}: ${message}`);
	return new (limit ? EvalTimeout : EvalError)(type, message, traceback);
}
