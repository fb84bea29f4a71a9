// What the SDK uses of Node.js, so that it can be compiled without other packages.

declare module "node:fs" {
	export function statSync(path: string, options: { throwIfNoEntry: false }): { isSocket(): boolean } | undefined;
}

declare module "node:net" {
	export interface Socket extends AsyncIterable<Uint8Array> {
		setNoDelay(on: boolean): void;
		on(event: "error", listener: (err: Error) => void): void;
		write(data: Uint8Array, done: (err?: Error | null) => void): boolean;
		end(done: () => void): void;
		destroy(): void;
	}
}

declare module "node:http" {
	import type { Socket } from "node:net";

	export class Agent {
		constructor(options: { keepAlive: boolean; maxFreeSockets: number });
	}

	export interface RequestOptions {
		agent: Agent;
		method: string;
		headers: Record<string, string>;
		socketPath?: string;
	}

	export interface IncomingMessage extends AsyncIterable<Uint8Array> {
		statusCode?: number;
		statusMessage?: string;
		headers: Record<string, string | string[] | undefined>;
		on(event: "close", listener: () => void): void;
		destroy(err: Error): void;
	}

	export interface ClientRequest {
		readonly destroyed: boolean;
		on(event: "response", listener: (message: IncomingMessage) => void): void;
		on(event: "upgrade", listener: (message: IncomingMessage, socket: Socket, head: Uint8Array) => void): void;
		on(event: "error", listener: (err: Error) => void): void;
		on(event: "drain" | "close", listener: () => void): void;
		off(event: "drain" | "close", listener: () => void): void;
		write(data: Uint8Array): boolean;
		end(data?: string | Uint8Array): void;
		destroy(err: Error): void;
	}

	export function request(url: URL, options: RequestOptions): ClientRequest;
}

declare module "node:https" {
	export { request } from "node:http";
	export class Agent {
		constructor(options: { keepAlive: boolean; maxFreeSockets: number });
	}
}

declare module "node:os" {
	export function homedir(): string;
}

declare module "node:path" {
	export function isAbsolute(path: string): boolean;
	export function resolve(...paths: string[]): string;
}

declare module "node:process" {
	export const env: Record<string, string | undefined>;
}

declare module "node:timers" {
	export function setImmediate(done: () => void): void;
}
