"""Tests against a daemon with a snapshot: FORKD_TEST_URL, and FORKD_TEST_TAG if
the snapshot is not "pyagent".
"""

import io
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest

from forkd import (
    CommandTimeout,
    Controller,
    EvalError,
    ForkdError,
    NotFoundError,
    PartialSpawnError,
    Repr,
    Sandbox,
)

URL = os.environ.get("FORKD_TEST_URL")
TAG = os.environ.get("FORKD_TEST_TAG", "pyagent")
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


@unittest.skipUnless(URL, "FORKD_TEST_URL names no daemon to test against")
class DaemonTest(unittest.TestCase):
    """Has a controller, and sees that no test leaves sandboxes behind."""

    def setUp(self):
        self.controller = Controller(URL)
        self.addCleanup(self.controller.close)
        before = self.ids()
        self.addCleanup(lambda: self.assertEqual(self.ids() - before, set(), "sandboxes were left behind"))

    def ids(self):
        return {box["id"] for box in self.controller.list_sandboxes()}

    def sandbox(self):
        box = Sandbox(TAG, controller=self.controller)
        self.addCleanup(box.kill)
        return box

    def assertCode(self, code, call, *args, **kwargs):
        with self.assertRaises(ForkdError) as caught:
            call(*args, **kwargs)
        self.assertEqual(caught.exception.code, code, caught.exception)
        return caught.exception


class TestController(DaemonTest):
    def test_daemon(self):
        self.assertEqual(self.controller.health(), {"status": "ok"})
        self.assertEqual(self.controller.version()["api"], "v1")

    def test_snapshots(self):
        self.assertIn(TAG, [s["tag"] for s in self.controller.list_snapshots()])
        self.assertTrue(self.controller.get_snapshot(TAG)["bootable"])
        self.assertCode("not_found", self.controller.get_snapshot, "no-such-tag")
        self.assertCode("not_found", self.controller.delete_snapshot, "no-such-tag")
        self.assertCode("invalid_argument", self.controller.delete_snapshot, "../etc")

    def test_in_use(self):
        box = self.sandbox()
        error = self.assertCode("in_use", self.controller.delete_snapshot, TAG)
        self.assertIn(box.id, error.dependents)

    def test_lifecycle(self):
        boxes = self.controller.spawn_sandboxes(TAG, n=3, timeout_secs=600)
        ids = {box["id"] for box in boxes}
        self.assertEqual(len(ids), 3)
        self.assertLessEqual(ids, self.ids())
        for id in ids:
            self.assertEqual(self.controller.get_sandbox(id)["state"], "running")
            self.assertIs(self.controller.ping_sandbox(id)["ok"], True)
        for id in ids:
            self.controller.kill_sandbox(id)
            self.assertCode("not_found", self.controller.kill_sandbox, id)
            self.assertCode("not_found", self.controller.get_sandbox, id)

    def test_exec_and_eval(self):
        id = self.sandbox().id
        answer = self.controller.exec_command(id, ["sh", "-c", "echo out; echo err >&2; exit 3"], env={"A": "1"})
        self.assertEqual((answer["stdout"], answer["stderr"], answer["exit_code"]), ("out\n", "err\n", 3))
        answer = self.controller.exec_command(id, ["cat"], stdin="hällo")
        self.assertEqual(answer["stdout"], "hällo")
        answer = self.controller.exec_command(id, ["sh", "-c", "yes | head -c 100"], output_limit_bytes=10)
        self.assertEqual((len(answer["stdout"]), answer["stdout_truncated"]), (10, True))
        answer = self.controller.eval_code(id, "numpy.zeros(5).tolist()")
        self.assertEqual((answer["result"], answer["value"]), ("[0.0, 0.0, 0.0, 0.0, 0.0]", [0.0] * 5))
        self.assertIsNone(answer["error"])
        with self.assertRaises(TypeError):
            self.controller.exec_command(id, "ls")

    def test_refusals(self):
        for n in (0, -1, 1001):
            self.assertCode("invalid_argument", self.controller.spawn_sandboxes, TAG, n=n)
        for timeout in (0, -1):
            self.assertCode("invalid_argument", self.controller.spawn_sandboxes, TAG, timeout_secs=timeout)
        self.assertCode("not_found", self.controller.spawn_sandboxes, "no-such-tag")
        self.assertCode("unsupported", self.controller.spawn_sandboxes, TAG, per_child_netns=True)
        self.assertCode("not_found", self.controller.exec_command, "no-such-id", ["true"])
        self.assertCode("not_found", self.controller.eval_code, "a/b", "1")

    def test_repeated_create(self):
        first = self.controller.spawn_sandboxes(TAG, idempotency_key=f"test-{os.getpid()}-{time.time()}")
        key = f"test-{os.getpid()}-{time.time()}"
        made = [self.controller.spawn_sandboxes(TAG, n=2, idempotency_key=key) for _ in range(3)]
        self.assertEqual(made[0], made[1])
        self.assertEqual(made[0], made[2])
        self.assertCode("already_exists", self.controller.spawn_sandboxes, TAG, n=3, idempotency_key=key)
        for box in first + made[0]:
            self.controller.kill_sandbox(box["id"])


class TestSandbox(DaemonTest):
    def test_context_manager(self):
        with Sandbox(TAG, url=URL) as box:
            self.assertIn(box.id, self.ids())
            self.assertEqual(box.info()["snapshot_tag"], TAG)
            self.assertTrue(box.ping()["ok"])
        self.assertNotIn(box.id, self.ids())
        box.kill()  # again is fine

    def test_exception_in_the_block(self):
        with self.assertRaises(KeyError):
            with Sandbox(TAG, url=URL) as box:
                raise KeyError("mine")
        self.assertNotIn(box.id, self.ids())

    def test_killed_in_the_block(self):
        with Sandbox(TAG, controller=self.controller) as box:
            self.controller.kill_sandbox(box.id)
            self.assertCode("not_found", box.eval, "1")

    def test_connect(self):
        box = self.sandbox()
        box.eval("x = 5")
        again = Sandbox.connect(box.id, controller=self.controller)
        self.assertEqual(again.eval("x"), 5)
        self.assertCode("not_found", Sandbox.connect, "no-such-id", url=URL)

    def test_tag_from_environment(self):
        old = os.environ.get("FORKD_TAG")
        os.environ["FORKD_TAG"] = "no-such-tag"
        try:
            self.assertCode("not_found", Sandbox, url=URL)
        finally:
            os.environ.pop("FORKD_TAG")
            if old is not None:
                os.environ["FORKD_TAG"] = old

    def test_interrupted_program_leaves_nothing(self):
        program = textwrap.dedent(
            """
            import sys
            from forkd import Sandbox
            with Sandbox(sys.argv[1], url=sys.argv[2]) as box:
                print("ready", flush=True)
                box.commands.run("sleep 600")
            """
        )
        before = self.ids()
        child = subprocess.Popen(
            [sys.executable, "-c", program, TAG, URL],
            cwd=PACKAGE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.assertEqual(child.stdout.readline(), b"ready\n")
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=60)
        self.assertIn(b"KeyboardInterrupt", errors)
        self.assertEqual(self.ids(), before)


class TestBranches(DaemonTest):
    def remove(self, tag):
        self.addCleanup(self.controller.delete_snapshot, tag, cascade=True)
        return tag

    def keep(self, boxes):
        for box in boxes:
            self.addCleanup(box.kill)
        return boxes

    def test_branch(self):
        box = self.sandbox()
        box.eval("x = 21")
        box.files.write("/root/state", "before")
        for mode in ("live", "diff", "full"):
            with self.subTest(mode):
                branch = box.branch(mode=mode)
                self.remove(branch.tag)
                self.assertEqual((branch.branched_from, branch.mode, branch.status), (box.id, mode, "ready"))
                self.assertGreater(branch.pause_ms, 0)
                box.eval("x = 0")
                box.files.write("/root/state", "after")
                with Sandbox(branch.tag, controller=self.controller) as child:
                    self.assertEqual(child.eval("x * 2"), 42)
                    self.assertEqual(child.files.read("/root/state"), b"before")
                box.eval("x = 21")
                box.files.write("/root/state", "before")

    def test_branch_without_waiting(self):
        box = self.sandbox()
        tag = self.remove(f"py-{os.getpid()}-quick")
        branch = box.branch(tag, wait=False)
        self.assertIn(branch.status, ("writing", "ready"))
        with Sandbox(tag, controller=self.controller) as child:
            self.assertEqual(child.eval("1 + 1"), 2)
        self.assertEqual(self.controller.wait_snapshot(tag, timeout=60)["status"], "ready")
        self.assertCode("already_exists", box.branch, tag)
        self.assertCode("invalid_argument", box.branch, mode="sideways")
        self.assertCode("not_found", self.controller.branch_sandbox, "no-such-id")

    def test_fork(self):
        box = self.sandbox()
        box.eval("x = [1]")
        children = self.keep(box.fork(3))
        for i, child in enumerate(children):
            child.eval(f"x.append({i})")
        box.eval("x.append('source')")
        self.assertEqual([child.eval("x") for child in children], [[1, 0], [1, 1], [1, 2]])
        self.assertEqual(children[0].info()["branched_from"], box.id)
        grandchild = self.keep(children[2].fork())[0]
        self.assertEqual(grandchild.eval("x"), [1, 2])
        nodes = {node["name"]: node for node in self.controller.tree()}
        self.assertEqual(nodes[grandchild.id]["source"], children[2].id)

    def test_rollback(self):
        box = self.sandbox()
        box.eval("x = 1")
        branch = box.branch()
        self.remove(branch.tag)
        box.eval("x = 2")
        box.rollback(branch.tag)
        self.assertEqual(box.eval("x"), 1)
        box.rollback(TAG)
        with self.assertRaises(EvalError):
            box.eval("x")
        self.assertCode("not_found", box.rollback, "no-such-tag")

    def test_chain(self):
        one, two, flat = (self.remove(f"py-{os.getpid()}-{name}") for name in ("one", "two", "flat"))
        self.controller.derive_snapshot(TAG, one, ["echo 1 > /root/f"], ["y = 1"])
        self.controller.derive_snapshot(one, two, ["echo 2 >> /root/f"], ["y += 1"])
        info = self.controller.get_snapshot(two)
        self.assertEqual((info["chain_depth"], info["ancestors"], info["parent_tag"]), (2, [one, TAG], one))
        error = self.assertCode("in_use", self.controller.delete_snapshot, one)
        self.assertEqual(error.dependents, [two])
        self.controller.compact_snapshot(two, flat)
        self.assertEqual(self.controller.get_snapshot(flat)["chain_depth"], 0)
        for tag in (two, flat):
            self.assertEqual(self.controller.verify_snapshot(tag)["tag"], tag)
            with Sandbox(tag, controller=self.controller) as box:
                self.assertEqual(box.files.read("/root/f"), b"1\n2\n")
                self.assertEqual(box.eval("y"), 2)
        broken = f"py-{os.getpid()}-broken"
        with self.assertRaises(ForkdError) as caught:
            self.controller.derive_snapshot(TAG, broken, ["echo why >&2; exit 3"])
        self.assertIn("3", str(caught.exception))
        self.assertCode("not_found", self.controller.get_snapshot, broken)

    def test_pack(self):
        box = self.sandbox()
        box.eval("z = 'packed'")
        branch = box.branch()
        self.remove(branch.tag)
        copy = self.remove(f"py-{os.getpid()}-copy")
        with tempfile.TemporaryFile() as file:
            size = self.controller.pack_snapshot(branch.tag, file)
            self.assertGreater(size, 1 << 20)
            file.seek(0)
            self.assertEqual(self.controller.unpack_snapshot(file, copy)["tag"], copy)
        with Sandbox(copy, controller=self.controller) as child:
            self.assertEqual(child.eval("z"), "packed")
        self.assertCode("not_bootable", self.controller.unpack_snapshot, b"no pack", f"{copy}2")

    def test_workspace(self):
        name = f"py-{os.getpid()}"
        made = self.controller.create_workspace(name, TAG)
        try:
            Sandbox.connect(made["sandbox_id"], controller=self.controller).eval("w = 7")
            self.assertEqual(self.controller.suspend_workspace(name)["state"], "suspended")
            self.assertNotIn("sandbox_id", self.controller.get_workspace(name))
            resumed = self.controller.resume_workspace(name)
            self.assertEqual(Sandbox.connect(resumed["sandbox_id"], controller=self.controller).eval("w"), 7)
            self.assertIn(name, [w["name"] for w in self.controller.list_workspaces()])
        finally:
            self.controller.delete_workspace(name)
        self.assertCode("not_found", self.controller.get_workspace, name)


class TestEval(DaemonTest):
    def test_values(self):
        box = self.sandbox()
        for code, want in [
            ("1 + 1", 2),
            ("2 ** 52", 2**52),
            ("[1, 'a', None, True, 1.5]", [1, "a", None, True, 1.5]),
            ("{'a': [1]}", {"a": [1]}),
            ("None", None),
            ("'ü☃'", "ü☃"),
            ("numpy.zeros(5).tolist()", [0.0] * 5),
        ]:
            with self.subTest(code):
                got = box.eval(code)
                self.assertEqual(got, want)
                self.assertNotIsInstance(got, Repr)

    def test_values_that_json_cannot_carry(self):
        box = self.sandbox()
        for code, want in [
            ("float('nan')", "nan"),
            ("float('inf')", "inf"),
            ("2 ** 70", str(2**70)),
            (r"b'\xff'", r"b'\xff'"),
            ("{1: 2}", "{1: 2}"),
        ]:
            with self.subTest(code):
                got = box.eval(code)
                self.assertIsInstance(got, Repr)
                self.assertEqual(got, want)

    def test_state_and_statements(self):
        box = self.sandbox()
        self.assertIsNone(box.eval("def f(x):\n    return x * 2"))
        self.assertEqual(box.eval("f(21)"), 42)

    def test_output(self):
        outcome = self.sandbox().run_code("import sys; print('out'); print('err', file=sys.stderr); 7")
        self.assertEqual((outcome.stdout, outcome.stderr, outcome.text), ("out\n", "err\n", "7"))
        self.assertIs(outcome.check(), outcome)
        with self.assertRaises(EvalError):
            self.sandbox().run_code("1 / 0").check()

    def test_exception(self):
        box = self.sandbox()
        with self.assertRaises(EvalError) as caught:
            box.eval("1 / 0")
        self.assertEqual((caught.exception.type, caught.exception.message), ("ZeroDivisionError", "division by zero"))
        self.assertIn("Traceback", caught.exception.traceback)
        self.assertEqual(box.eval("'still here'"), "still here")

    def test_timeout_keeps_state(self):
        box = self.sandbox()
        box.eval("x = 3")
        started = time.monotonic()
        with self.assertRaises(ForkdError):
            box.eval("while True: pass", timeout=0.5)
        self.assertLess(time.monotonic() - started, 30)
        self.assertEqual(box.eval("x"), 3)

    def test_interrupt(self):
        box = self.sandbox()
        box.eval("import time")
        timer = threading.Timer(1.0, box.interrupt)
        timer.start()
        with self.assertRaises(EvalError) as caught:
            box.eval("time.sleep(600)")
        timer.join()
        self.assertEqual(caught.exception.type, "KeyboardInterrupt")


class TestCommands(DaemonTest):
    def test_shell_and_argv(self):
        run = self.sandbox().commands.run
        result = run("echo $0; echo err >&2; exit 7")
        self.assertEqual((result.stdout, result.stderr, result.exit_code), ("/bin/sh\n", "err\n", 7))
        self.assertEqual(run(["echo", "$HOME", "a b"]).stdout, "$HOME a b\n")
        self.assertEqual(run(["no-such-program"]).exit_code, 127)
        self.assertEqual(run("kill -9 $$").exit_code, 137)

    def test_environment(self):
        run = self.sandbox().commands.run
        self.assertEqual(run('echo "$A"; pwd', env={"A": "1 ü"}, cwd="/usr").stdout, "1 ü\n/usr\n")
        self.assertEqual(run("id -u", user="nobody").stdout, "65534\n")

    def test_stdin(self):
        run = self.sandbox().commands.run
        binary = bytes(range(256)) * 1000
        for stdin, want in [
            ("hällo", "hällo".encode()),
            (b"", b""),
            (binary, binary),
            (io.BytesIO(binary), binary),
            (iter([b"a", b"b" * 100_000]), b"a" + b"b" * 100_000),
        ]:
            self.assertEqual(run("cat", stdin=stdin).stdout_bytes, want)
        self.assertEqual(run("cat").stdout, "")
        self.assertEqual(run("true", stdin=b"x" * 10_000_000).exit_code, 0)

    def test_broken_stdin(self):
        def pieces():
            yield b"some"
            raise KeyError("mine")

        box = self.sandbox()
        with self.assertRaises(KeyError):
            box.commands.run("cat", stdin=pieces())
        self.assertEqual(box.commands.run("echo still here").stdout, "still here\n")

    def test_callbacks(self):
        run = self.sandbox().commands.run
        out, errors = [], []
        result = run(
            r"printf 'a\303'; sleep 0.5; printf '\244b'; echo problem >&2",
            on_stdout=out.append,
            on_stderr=errors.append,
        )
        self.assertEqual("".join(out), "aäb")
        self.assertGreater(len(out), 1, "nothing came before the end")
        self.assertEqual("".join(errors), "problem\n")
        self.assertEqual(result.stdout, "aäb")

    def test_callback_raises(self):
        def refuse(_):
            raise KeyError("mine")

        box = self.sandbox()
        with self.assertRaises(KeyError):
            box.commands.run("echo x; sleep 600", on_stdout=refuse)
        self.assertEqual(box.commands.run("echo still here").stdout, "still here\n")

    def test_bytes(self):
        result = self.sandbox().commands.run(r"printf '\377\000'; printf '\376' >&2")
        self.assertEqual((result.stdout_bytes, result.stderr_bytes), (b"\xff\x00", b"\xfe"))
        self.assertEqual(result.stdout, "\ufffd\x00")

    def test_large_output(self):
        result = self.sandbox().commands.run("yes 0123456789 | head -c 3000000")
        self.assertEqual(len(result.stdout), 3_000_000)
        self.assertFalse(result.stdout_truncated)

    def test_timeout(self):
        box = self.sandbox()
        started = time.monotonic()
        with self.assertRaises(CommandTimeout) as caught:
            box.commands.run("echo begun; sleep 600", timeout=1)
        self.assertLess(time.monotonic() - started, 60)
        self.assertEqual(caught.exception.result.stdout, "begun\n")
        self.assertTrue(caught.exception.result.timed_out)
        self.assertEqual(box.commands.run("echo still here").stdout, "still here\n")


class TestFiles(DaemonTest):
    def test_round_trip(self):
        files = self.sandbox().files
        binary = bytes(range(256)) * 10_000
        for path in ["/tmp/plain", "/tmp/a b/ü ☃ %2F?&=#", "/tmp/" + "n" * 255, "/tmp/raw \udcff\udcfe"]:
            with self.subTest(path):
                files.write(path, binary, mode=0o640)
                self.assertEqual(files.read(path), binary)
                self.assertEqual(files.read(path, offset=10, length=5), binary[10:15])
                info = files.stat(path)
                self.assertEqual((info.path, info.size, info.mode, info.type), (path, len(binary), 0o640, "file"))
                self.assertLess(abs(info.modified_at.timestamp() - time.time()), 60)
                files.remove(path)
                self.assertFalse(files.exists(path))

    def test_sources(self):
        files = self.sandbox().files
        for data, want in [
            ("text ü", "text ü".encode()),
            (b"", b""),
            (io.BytesIO(b"file"), b"file"),
            ((b"x" * 1000 for _ in range(1000)), b"x" * 1_000_000),
        ]:
            files.write("/tmp/f", data)
            self.assertEqual(files.read("/tmp/f"), want)
        files.write("/tmp/f", "text ü")
        self.assertEqual(files.read_text("/tmp/f"), "text ü")
        with tempfile.TemporaryFile() as local:
            self.assertEqual(files.download("/tmp/f", local), 7)
        with tempfile.TemporaryDirectory() as local:
            path = pathlib.Path(local, "f")
            self.assertEqual(files.download("/tmp/f", path), 7)
            with self.assertRaises(NotFoundError):
                files.download("/tmp/nosuch", str(path))
            self.assertEqual(path.read_text("utf-8"), "text ü")

    def test_broken_upload_changes_nothing(self):
        def pieces():
            yield b"new"
            raise KeyError("mine")

        files = self.sandbox().files
        files.write("/tmp/f", "old")
        with self.assertRaises(KeyError):
            files.write("/tmp/f", pieces())
        self.assertEqual(files.read("/tmp/f"), b"old")

    def test_directories(self):
        files = self.sandbox().files
        files.mkdir("/tmp/d/e")
        files.mkdir("/tmp/d/e")
        self.assertCode("already_exists", files.mkdir, "/tmp/d", parents=False)
        files.write("/tmp/d/f", "x")
        self.assertEqual([(f.name, f.type) for f in files.list("/tmp/d")], [("e", "dir"), ("f", "file")])
        files.rename("/tmp/d/f", "/tmp/d/g")
        self.assertEqual(files.read("/tmp/d/g"), b"x")
        self.assertCode("in_use", files.remove, "/tmp/d")
        files.remove("/tmp/d", recursive=True)
        self.assertFalse(files.exists("/tmp/d"))

    def test_refusals(self):
        files = self.sandbox().files
        self.assertCode("not_found", files.read, "/no/such/file")
        self.assertCode("not_found", files.write, "/no/such/file", b"x", parents=False)
        self.assertCode("not_found", files.write, "/no/such/file", (b"x" * 100_000 for _ in range(100)), parents=False)
        self.assertCode("invalid_argument", files.read, "relative")
        self.assertCode("invalid_argument", files.read, "/nul\0")
        self.assertCode("invalid_argument", files.read, "/tmp")

    def test_siblings_do_not_meet(self):
        one, two = self.sandbox(), self.sandbox()
        one.files.write("/root/secret", "x")
        self.assertFalse(two.files.exists("/root/secret"))


class TestPartialSpawn(unittest.TestCase):
    def test_message(self):
        error = PartialSpawnError([{"id": "a"}], [{"index": 1, "error": "no room", "code": "no_space", "hint": "free some"}])
        self.assertEqual(error.code, "no_space")
        self.assertIn("1 of 2 children could not be started: no room", str(error))


if __name__ == "__main__":
    unittest.main()
