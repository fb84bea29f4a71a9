import assert from 'node:assert/strict'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import {
  BuildError, defaultBuildLogger, LogEntry, LogEntryEnd, LogEntryStart, ReadyCmd, Sandbox, Template, TemplateBase, TemplateError, waitForFile,
  waitForPort, waitForProcess, waitForTimeout, waitForURL,
} from 'e2b'
import { api, failure, own, unique } from './lib.mjs'

test('a template is built from another', async (t) => {
  const context = mkdtempSync(join(import.meta.dirname, 'context-'))
  t.after(() => rmSync(context, { recursive: true }))
  mkdirSync(join(context, 'src'))
  writeFileSync(join(context, 'src/one.txt'), 'one\n')
  writeFileSync(join(context, 'two.txt'), 'two\n')
  const name = unique()
  const template = Template({ fileContextPath: context })
    .fromTemplate('base')
    .setUser('root')
    .runCmd(['mkdir -p /opt/app', 'echo made > /opt/app/made'])
    .copy('two.txt', '/opt/app/')
    .copyItems([{ src: 'src', dest: '/opt/app/src', mode: 0o755 }])
    .makeDir('/opt/app/data', { mode: 0o750 })
    .makeSymlink('/opt/app/made', '/opt/app/link')
    .rename('/opt/app/two.txt', '/opt/app/2.txt')
    .runCmd('touch /opt/app/gone')
    .remove('/opt/app/gone')
    .setEnvs({ FLAVOUR: 'salt', ROOT: '/opt/app' })
    .setWorkdir('/opt/app')
    .runCmd('pwd > where; echo "$FLAVOUR" > env')
    .setUser('user')
    .setStartCmd('touch /tmp/started; sleep 1000', waitForFile('/tmp/started'))
  const logs = []
  const built = await Template.build(template, name, { onBuildLogs: (entry) => logs.push(entry) })
  t.after(() => api('DELETE', '/templates/' + built.templateId))
  assert.ok(built.templateId && built.buildId)
  assert.ok(logs.some((l) => l instanceof LogEntryStart) && logs.some((l) => l instanceof LogEntryEnd))
  assert.ok(logs.every((l) => l instanceof LogEntry && l.timestamp instanceof Date))
  assert.equal(await Template.exists(name), true)
  assert.equal(await Template.aliasExists(name), true)
  const status = await Template.getBuildStatus(built)
  assert.deepEqual([status.status, status.templateID, status.buildID], ['ready', built.templateId, built.buildId])

  const box = await own(t, { template: name })
  const script = 'cd /opt/app; cat made 2.txt src/one.txt where env link; stat -c %a data; test -e gone || echo no; test -e /tmp/started && echo yes'
  assert.equal((await box.commands.run(script)).stdout, 'made\ntwo\none\n/opt/app\nsalt\nmade\n750\nno\nyes\n')
  assert.equal((await box.commands.run('echo $FLAVOUR; whoami')).stdout, 'salt\nuser\n')

  const tagged = await Template.assignTags(name, ['stable', 'v1'])
  assert.deepEqual([...tagged.tags].sort(), ['stable', 'v1'])
  const tags = await Template.getTags(built.templateId)
  assert.ok(tags.some((x) => x.tag === 'stable' && x.buildId && x.createdAt instanceof Date), JSON.stringify(tags))
  const from = await own(t, { template: name + ':stable' })
  assert.equal(await from.files.read('/opt/app/made'), 'made\n')
  await Template.removeTags(name, 'stable')
  assert.ok(!(await Template.getTags(built.templateId)).some((x) => x.tag === 'stable'))
})

test('a template is built in the background', async (t) => {
  const name = unique()
  const template = Template().fromBaseImage().skipCache()
    .runCmd('git init -q /tmp/hub && echo 1 > /tmp/hub/x && git -C /tmp/hub add . && git -C /tmp/hub -c user.name=a -c user.email=b commit -qm x')
    .gitClone('/tmp/hub', '/tmp/copy')
    .setReadyCmd('test -e /tmp/copy/x')
  const built = await Template.buildInBackground(template, name)
  t.after(() => api('DELETE', '/templates/' + built.templateId))
  let status
  do status = await Template.getBuildStatus(built, { logsOffset: 0 })
  while (['building', 'waiting'].includes(status.status))
  assert.equal(status.status, 'ready', JSON.stringify(status))
  const box = await own(t, { template: name })
  assert.equal(await box.files.read('/tmp/copy/x'), '1\n')
})

test('a build that fails says where', async () => {
  const name = unique()
  const error = await failure(Template.build(Template().fromTemplate('base').runCmd('echo before').runCmd('no-such-program'), name))
  assert.ok(error instanceof BuildError, String(error))
  assert.match(error.message, /no-such-program/)
  assert.equal(await Template.exists(name), false)
  assert.match((await failure(Sandbox.create(name))).message, new RegExp(name))
})

test('the templates that are always there exist', async () => {
  assert.equal(await Template.exists('base'), true)
  assert.equal(await Template.exists('code-interpreter-v1'), true)
  assert.equal(await Template.exists('no-such-template'), false)
  assert.ok((await failure(Template.getTags('no-such-template'))) instanceof TemplateError)
})

test('what a build cannot start from is refused in words', async () => {
  for (const template of [
    Template().fromImage('registry.example.com/own:1'), Template().fromAlpineImage(), Template().fromTemplate('no-such-template'),
    Template().fromAWSRegistry('1.dkr.ecr.us-west-2.amazonaws.com/i:1', { accessKeyId: 'a', secretAccessKey: 'b', region: 'us-west-2' }),
    Template().fromGCPRegistry('gcr.io/p/i:1', { serviceAccountJSON: { project: 'p' } }),
  ]) {
    const error = await failure(Template.build(template, unique()))
    assert.ok(error instanceof BuildError, String(error))
    assert.match(error.message, /support|there is no/)
  }
})

test('a template is described without a server', async () => {
  const template = Template()
    .fromDockerfile('FROM python:3\nRUN pip install numpy\nWORKDIR /app\nENV A=b')
    .pipInstall('numpy').npmInstall('express').bunInstall('express').aptInstall(['git'])
    .gitClone('https://example.com/r.git', '/r').skipCache().runCmd('true')
    .setReadyCmd(new ReadyCmd('true'))
  const json = JSON.parse(await Template.toJSON(template, false))
  assert.equal(json.fromImage, 'python:3')
  assert.equal(json.readyCmd, 'true')
  assert.match(Template.toDockerfile(Template().fromImage('debian:13').runCmd('true')), /FROM debian:13\nRUN true/)
  for (const [made, image] of [
    [Template().fromDebianImage('13'), 'debian:13'], [Template().fromUbuntuImage('24.04'), 'ubuntu:24.04'],
    [Template().fromFedoraImage('42'), 'fedora:42'], [Template().fromAlpineImage('3.20'), 'alpine:3.20'],
    [Template().fromArchImage('base'), 'archlinux:base'], [Template().fromPythonImage('3.13'), 'python:3.13'],
    [Template().fromNodeImage('20'), 'node:20'], [Template().fromBunImage('1'), 'oven/bun:1'],
  ]) assert.equal(JSON.parse(await Template.toJSON(made, false)).fromImage, image)
  assert.ok(new TemplateBase().fromBaseImage())
  assert.throws(() => Template().fromImage('debian:13').addMcpServer('exa'))
  assert.throws(() => Template().fromImage('debian:13').betaDevContainerPrebuild('/x'))
  assert.throws(() => Template().fromImage('debian:13').betaSetDevContainerStart('/x'))
  assert.match(waitForPort(80).getCmd(), /80/)
  assert.match(waitForURL('http://localhost:1/', 204).getCmd(), /204/)
  assert.match(waitForProcess('nginx').getCmd(), /nginx/)
  assert.match(waitForFile('/x').getCmd(), /\/x/)
  assert.match(waitForTimeout(2000).getCmd(), /2/)
  assert.equal(typeof defaultBuildLogger({ minLevel: 'error' }), 'function')
  assert.match(new LogEntry(new Date(0), 'info', 'hello').toString(), /hello/)
})
