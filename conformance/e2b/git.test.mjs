import assert from 'node:assert/strict'
import { after, test } from 'node:test'
import { GitUpstreamError } from 'e2b'
import { failure, own, release, shared, unique } from './lib.mjs'

after(release)

// Whether the template has git; the packages only send its commands.
async function git(t) {
  const box = await shared()
  const have = await box.commands.run('command -v git || true')
  if (have.stdout) return box
  t.skip('the template has no git')
}

test('keeps a repository', async (t) => {
  const box = await git(t)
  if (!box) return
  const path = '/home/user/' + unique()
  await box.git.init(path, { initialBranch: 'main' })
  await box.git.configureUser('Ada', 'ada@example.com')
  assert.equal(await box.git.getConfig('user.name', { scope: 'global' }), 'Ada')
  await box.git.setConfig('core.pager', 'cat', { scope: 'local', path })
  assert.equal(await box.git.getConfig('core.pager', { scope: 'local', path }), 'cat')
  await box.files.write([{ path: path + '/a', data: 'one\n' }, { path: path + '/b', data: 'two\n' }])
  let status = await box.git.status(path)
  assert.deepEqual([status.untrackedCount, status.hasUntracked, status.isClean], [2, true, false])
  await box.git.add(path, { files: ['a'] })
  status = await box.git.status(path)
  assert.deepEqual(status.fileStatus.filter((f) => f.staged).map((f) => [f.name, f.status]), [['a', 'added']])
  await box.git.commit(path, 'first "message"', { authorName: 'Bo', authorEmail: 'bo@example.com' })
  assert.equal((await box.commands.run(`git -C ${path} log -1 --format='%an|%s'`)).stdout, 'Bo|first "message"\n')
  await box.git.add(path, { all: true })
  await box.git.reset(path, { mode: 'mixed' })
  assert.equal((await box.git.status(path)).untrackedCount, 1)
  await box.git.createBranch(path, 'topic')
  await box.git.add(path)
  await box.git.commit(path, 'second')
  assert.deepEqual(await box.git.branches(path), { branches: ['main', 'topic'], currentBranch: 'topic' })
  await box.git.checkoutBranch(path, 'main')
  assert.equal((await box.git.status(path)).currentBranch, 'main')
  await box.git.deleteBranch(path, 'topic', { force: true })
  assert.deepEqual((await box.git.branches(path)).branches, ['main'])
  await box.files.write(path + '/a', 'changed\n')
  assert.equal((await box.git.status(path)).unstagedCount, 1)
  await box.git.restore(path, { paths: ['a'] })
  assert.equal((await box.git.status(path)).isClean, true)
})

test('works with a remote', async (t) => {
  const box = await git(t)
  if (!box) return
  const base = '/home/user/' + unique()
  await box.git.init(base + '/hub.git', { bare: true, initialBranch: 'main' })
  await box.git.clone(base + '/hub.git', { path: base + '/one' })
  await box.git.configureUser('Ada', 'ada@example.com')
  await box.commands.run(`git -C ${base}/one checkout -q -B main`)
  await box.files.write(base + '/one/a', '1\n')
  await box.git.add(base + '/one')
  await box.git.commit(base + '/one', 'first')
  await box.git.init(base + '/three', { initialBranch: 'main' })
  assert.ok((await failure(box.git.pull(base + '/three'))) instanceof GitUpstreamError)
  await box.git.push(base + '/one', { remote: 'origin', branch: 'main', setUpstream: true })
  await box.git.clone(base + '/hub.git', { path: base + '/two', branch: 'main' })
  assert.equal(await box.files.read(base + '/two/a'), '1\n')
  await box.files.write(base + '/one/a', '2\n')
  await box.git.add(base + '/one')
  await box.git.commit(base + '/one', 'second')
  await box.git.push(base + '/one')
  await box.git.pull(base + '/two')
  assert.equal(await box.files.read(base + '/two/a'), '2\n')
  assert.equal(await box.git.remoteGet(base + '/two', 'none'), undefined)
  await box.git.remoteAdd(base + '/two', 'other', 'https://example.com/x.git')
  assert.equal(await box.git.remoteGet(base + '/two', 'other'), 'https://example.com/x.git')
  await box.git.dangerouslyAuthenticate({ username: 'u', password: 'p' })
  assert.match((await box.commands.run('cat ~/.git-credentials')).stdout, /u:p@github\.com/)
})
