import type { OnOutput } from "./commands.js";
import { boxRoute } from "./controller.js";
import type { EvalError } from "./errors.js";
import { type RawError, evalError, valueOf } from "./evals.js";
import { type CodeContext, type Language, type Raw, seconds, snake } from "./records.js";
import { type CallOptions, type Transport, cutOff } from "./transport.js";

/** A value in every form that it can be shown in. */
export class Result {
	/** @internal */
	constructor(
		/** It is the value of the last expression, and was not displayed. */
		readonly main: boolean,
		/** By MIME type: text as text, images and PDF as base64, JSON as it is. */
		readonly data: Readonly<Record<string, unknown>>,
		/** A figure as structured data. */
		readonly chart?: Readonly<Record<string, unknown>>,
	) {}

	private form(type: string): string | undefined {
		return this.data[type] as string | undefined;
	}

	get text(): string | undefined {
		return this.form("text/plain");
	}
	get html(): string | undefined {
		return this.form("text/html");
	}
	get markdown(): string | undefined {
		return this.form("text/markdown");
	}
	get latex(): string | undefined {
		return this.form("text/latex");
	}
	get svg(): string | undefined {
		return this.form("image/svg+xml");
	}
	get png(): string | undefined {
		return this.form("image/png");
	}
	get jpeg(): string | undefined {
		return this.form("image/jpeg");
	}
	get pdf(): string | undefined {
		return this.form("application/pdf");
	}
	get javascript(): string | undefined {
		return this.form("application/javascript");
	}
	get json(): unknown {
		return this.data["application/json"];
	}
}

/** What code has brought forth, and how it ended. */
export interface Execution {
	stdout: string;
	stderr: string;
	results: Result[];
	/** The value of the last expression, as text. */
	text?: string;
	/** The exception that it raised. */
	error?: EvalError;
	/** Runs of its context so far. */
	count: number;
	/** The interpreter died, and was started again without its state. */
	contextLost: boolean;
}

export interface RunCodeOptions extends CallOptions {
	/** Interrupts the run after so many milliseconds. */
	timeoutMs?: number;
	/** Id of the context to run it in; that of the language by default. */
	context?: string;
	/** "python" by default, whose context is the warm runtime. Only without a context. */
	language?: Language;
	/** For a context that is made for this. */
	cwd?: string;
	/** For a context that is made for this. */
	user?: string;
	/** For this run only. */
	env?: Record<string, string>;
	onStdout?: OnOutput;
	onStderr?: OnOutput;
	onResult?: (result: Result) => void | Promise<void>;
}

/** The interpreters of a sandbox that keep state between runs. */
export class Contexts {
	constructor(
		private readonly transport: Transport,
		private readonly id: string,
	) {}

	/** Starts an interpreter. */
	async create(options: { language?: Language; cwd?: string; user?: string } & CallOptions = {}): Promise<CodeContext> {
		const { language, cwd, user, ...call } = options;
		return await this.transport.call("POST", boxRoute(this.id, "contexts"), snake({ language, cwd, user }), call);
	}

	/** Lists the contexts; "default" is that of the warm runtime. */
	async list(options?: CallOptions): Promise<CodeContext[]> {
		return await this.transport.call("GET", boxRoute(this.id, "contexts"), undefined, options);
	}

	/** Ends a context. The default one cannot be ended. */
	async remove(id: string, options?: CallOptions): Promise<void> {
		await this.transport.call("DELETE", boxRoute(this.id, "contexts", id), undefined, options);
	}

	/** Starts the interpreter of a context anew, without its state. */
	async restart(id: string, options?: CallOptions): Promise<void> {
		await this.transport.call("POST", boxRoute(this.id, "contexts", id, "restart"), undefined, options);
	}
}

/** Evaluates code in the warm runtime and returns its value. */
export async function evaluate(
	transport: Transport,
	id: string,
	code: string,
	options: { timeoutMs?: number } & CallOptions,
): Promise<unknown> {
	const { timeoutMs, ...call } = options;
	return valueOf(await transport.call("POST", boxRoute(id, "eval"), { code, ...seconds(timeoutMs) }, call));
}

/** Runs code in a context. */
export async function runCode(transport: Transport, id: string, code: string, options: RunCodeOptions): Promise<Execution> {
	const { timeoutMs, signal, requestTimeoutMs, onStdout, onStderr, onResult, ...rest } = options;
	const body = { code, ...snake(rest), ...seconds(timeoutMs) };
	const reply = await transport.lines("POST", boxRoute(id, "run"), body, { signal, requestTimeoutMs });
	const out: string[] = [];
	const err: string[] = [];
	const results: Result[] = [];
	let end: { count: number; error: RawError | null; context_lost: boolean } | undefined;
	for await (const event of reply.events<{ stdout?: string; stderr?: string; result?: Raw; end?: typeof end }>()) {
		if (event.stdout) {
			out.push(event.stdout);
			await onStdout?.(event.stdout);
		} else if (event.stderr) {
			err.push(event.stderr);
			await onStderr?.(event.stderr);
		} else if (event.result) {
			const { main, data, chart } = event.result as { main: boolean; data: Raw; chart?: Raw };
			const result = new Result(main, data, chart);
			results.push(result);
			await onResult?.(result);
		}
		end = event.end ?? end;
	}
	if (!end) throw cutOff();
	const text = results.find((result) => result.main)?.text;
	return {
		stdout: out.join(""),
		stderr: err.join(""),
		results,
		...(text === undefined ? {} : { text }),
		...(end.error ? { error: evalError(end.error) } : {}),
		count: end.count,
		contextLost: end.context_lost,
	};
}
