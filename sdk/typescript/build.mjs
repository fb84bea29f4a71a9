// Says of each build which kind of modules it has, and checks that the one for
// browsers needs nothing of Node.

import { readFileSync, readdirSync, writeFileSync } from "node:fs";

for (const [dir, type] of [["esm", "module"], ["cjs", "commonjs"]]) {
	writeFileSync(`dist/${dir}/package.json`, JSON.stringify({ type }) + "\n");
}

const seen = new Set();
function visit(file) {
	if (seen.has(file)) return;
	seen.add(file);
	const text = readFileSync(`dist/esm/${file}`, "utf8");
	for (const [, name] of text.matchAll(/(?:from|import)\s*\(?"([^"]+)"/g)) {
		if (!name.startsWith("./")) throw new Error(`${file} imports ${name}, which browsers do not have`);
		visit(name.slice(2));
	}
}
visit("index.js");
if (seen.size < 5) throw new Error(`looked at ${[...seen]} only, of ${readdirSync("dist/esm")}`);
