// Reads what a package exports from its type declarations.

// folded are classes that are not exported themselves, and whose members others inherit.
const folded = { SandboxApi: ['Sandbox'], Paginator: ['SandboxPaginator', 'SnapshotPaginator', 'SecretPaginator'] }

// surface returns the names of all functions and methods that declarations export:
// "fn" a function, "Class.fn" a static method, "Class#fn" a method or a getter.
export function surface(declarations) {
  const exported = new Set()
  for (const [, list] of declarations.matchAll(/^export \{([^}]*)\}/gm))
    for (const item of list.split(',')) exported.add(item.replace(/^ *type /, '').trim().split(' as ').at(-1))
  const names = new Set()
  for (const [, name] of declarations.matchAll(/^declare function (\w+)/gm)) if (exported.has(name)) names.add(name)
  for (const [, name, body] of declarations.matchAll(/^declare (?:abstract )?class (\w+)[^\n]*\{\n([\s\S]*?)^\}/gm)) {
    for (const owner of exported.has(name) ? [name] : (folded[name] ?? []))
      for (const member of members(body)) names.add(owner + member)
  }
  return names
}

function* members(body) {
  const code = body.replaceAll(/\/\*[\s\S]*?\*\//g, '')
  for (const [, modifiers, name] of code.matchAll(/^ +((?:(?:static|abstract|async|get|readonly|private|protected) )*)(\w+)(?:<.*?>)?\(/gm)) {
    if (/private|protected/.test(modifiers) || name === 'constructor') continue
    yield (modifiers.includes('static') ? '.' : '#') + name
  }
}
