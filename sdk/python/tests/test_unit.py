"""Tests of what a well-behaved daemon does not show: broken answers, lost
connections, odd URLs. They run against a small server of their own.
"""

import http.server
import io
import json
import os
import socketserver
import tempfile
import threading
import unittest
from datetime import datetime, timezone

from forkd import ConnectError, Controller, EvalError, EvalTimeout, ForkdError, PartialSpawnError, PortClosedError, Sandbox
from forkd._data import pieces
from forkd._files import _file_info, _time
from forkd._io import iterate, run
from forkd._output import _Text
from forkd._transport import default_url

BOX = {"id": "sb-1", "snapshot_tag": "t"}


def idle(controller):
    return controller._core.transport._pool._idle


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers as the test's answers say, and keeps what was asked."""

    protocol_version = "HTTP/1.1"

    def handle_any(self):
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length) if length else b""
        self.server.asked.append((self.command, self.path, dict(self.headers), body))
        answer = self.server.answers.get((self.command, self.path.split("?")[0]), (404, {"error": "none", "code": "not_found"}))
        status, content = answer(self) if callable(answer) else answer
        if status is None:
            self.close_connection = True
            return
        data = content if isinstance(content, bytes) else b"" if content is None else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_DELETE = handle_any

    def log_message(self, *args):
        pass


class UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True

    def get_request(self):
        sock, _ = super().get_request()
        return sock, ("unix", 0)


class FakeDaemon(unittest.TestCase):
    def setUp(self):
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = "http://127.0.0.1:%d" % self.server.server_address[1]
        self.serve(self.server)
        self.controller = Controller(self.url, token="s3cret")
        self.addCleanup(self.controller.close)

    def serve(self, server):
        server.daemon_threads = True
        server.asked, server.answers = [], {}
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)

    def answer(self, method, path, status, content=None):
        self.server.answers[method, path] = (status, content)

    def fails(self, call, *args, **kwargs):
        with self.assertRaises(ForkdError) as caught:
            call(*args, **kwargs)
        return caught.exception


class TestErrors(FakeDaemon):
    def test_fields(self):
        self.answer("DELETE", "/v1/snapshots/t", 409, {"error": "in use", "code": "in_use", "hint": "end it", "dependents": ["a"]})
        error = self.fails(self.controller.delete_snapshot, "t")
        self.assertEqual(
            (error.message, error.code, error.hint, error.status, error.dependents),
            ("in use", "in_use", "end it", 409, ["a"]),
        )
        self.assertEqual(str(error), "in use (end it)")

    def test_unauthorized(self):
        self.answer("GET", "/v1/sandboxes", 401, {"error": "missing or wrong token", "code": "unauthorized"})
        self.assertIn("FORKD_TOKEN", self.fails(self.controller.list_sandboxes).hint)

    def test_answers_of_others(self):
        for status, content in [(502, b"<html>"), (500, b""), (404, b'{"a":1}'), (403, b"[1]")]:
            with self.subTest(status):
                self.answer("GET", "/v1/sandboxes", status, content)
                error = self.fails(self.controller.list_sandboxes)
                self.assertEqual((error.status, error.code), (status, "internal"))
        self.answer("GET", "/v1/sandboxes", 200, b"hello")
        self.assertIn("not JSON", str(self.fails(self.controller.list_sandboxes)))

    def test_partial_spawn(self):
        self.answer("POST", "/v1/sandboxes", 207, {"sandboxes": [BOX], "errors": [{"index": 1, "error": "no room", "code": "no_space"}]})
        with self.assertRaises(PartialSpawnError) as caught:
            self.controller.spawn_sandboxes("t", n=2)
        self.assertEqual(caught.exception.sandboxes, [BOX])
        self.assertEqual(caught.exception.code, "no_space")

    def test_eval_error_text(self):
        self.assertEqual(str(EvalError("KeyError", "'a'", "")), "KeyError: 'a'")
        interrupted = "Traceback\nKeyboardInterrupt"
        self.assertEqual(str(EvalTimeout("TimeoutError", "after 1s", interrupted + "\n")), interrupted + "\nTimeoutError: after 1s")
        self.assertEqual(str(EvalTimeout("TimeoutError", "after 1s", "")), "TimeoutError: after 1s")

    def test_a_value_that_was_cut_says_so(self):
        self.answer("GET", "/v1/sandboxes/x", 200, {"id": "x"})
        box = Sandbox.connect("x", controller=self.controller)
        for told, cut in [({"result_truncated": True}, True), ({"result_truncated": False}, False), ({}, False)]:
            self.answer("POST", "/v1/sandboxes/x/eval", 200, {"error": None, "result": "b'x", **told})
            value = box.eval("1")
            self.assertEqual((value, value.truncated), ("b'x", cut))

    def test_the_limit_of_an_evaluation_and_a_timeout_of_the_code(self):
        for message, trace, limit in [
            ("after 1s", "Traceback\nKeyboardInterrupt", True),
            ("after 1s", "", True),
            ("mine", "Traceback\nTimeoutError: mine", False),
            ("", "Traceback\nTimeoutError", False),
        ]:
            error = {"type": "TimeoutError", "message": message, "traceback": trace}
            self.answer("POST", "/v1/sandboxes/x/eval", 200, {"error": error, "result": None})
            self.answer("GET", "/v1/sandboxes/x", 200, {"id": "x"})
            box = Sandbox.connect("x", controller=self.controller)
            with self.subTest(message), self.assertRaises(EvalError) as caught:
                box.eval("1")
            self.assertEqual(isinstance(caught.exception, TimeoutError), limit)


class TestConnections(FakeDaemon):
    def test_token_is_sent(self):
        self.answer("GET", "/v1/sandboxes", 200, [])
        self.controller.list_sandboxes()
        self.assertEqual(self.server.asked[0][2]["Authorization"], "Bearer s3cret")

    def test_kept_and_noticed_when_closed(self):
        self.answer("GET", "/v1/sandboxes", 200, [])
        self.controller.list_sandboxes()
        first = idle(self.controller)[0]
        self.controller.list_sandboxes()
        self.assertIs(idle(self.controller)[0], first)
        first._sock.shutdown(0)  # as if the daemon had closed it
        self.controller.list_sandboxes()
        self.assertIsNot(idle(self.controller)[0], first)

    def test_lost_request_is_not_repeated(self):
        self.server.answers["POST", "/v1/sandboxes/x/exec"] = lambda handler: (None, None)
        error = self.fails(self.controller.exec_command, "x", ["true"])
        self.assertEqual(error.code, "unavailable")
        self.assertEqual(len(self.server.asked), 1)

    def test_nobody_there(self):
        self.server.shutdown()
        self.server.server_close()
        with self.assertRaises(ConnectError) as caught:
            self.controller.version()
        self.assertIsInstance(caught.exception, ConnectionError)
        self.assertIn("forkd serve", caught.exception.hint)

    def test_unix_socket(self):
        with tempfile.TemporaryDirectory() as home:
            path = os.path.join(home, "forkd.sock")
            server = UnixServer(path, Handler)
            self.serve(server)
            server.answers["GET", "/version"] = (200, {"api": "v1"})
            with Controller("unix://" + path) as controller:
                self.assertEqual(controller.version(), {"api": "v1"})
                server.answers["GET", "/v1/sandboxes/x"] = (200, {"id": "x"})
                error = self.fails(Sandbox.connect("x", controller=controller).get_url, 80)
                self.assertEqual(error.code, "unsupported")
                self.assertIn("FORKD_URL=http://", error.hint)

    def test_cut_stream(self):
        self.answer("POST", "/v1/sandboxes", 201, [BOX])
        self.answer("DELETE", "/v1/sandboxes/sb-1", 204)
        for content in (b"", b'{"stdout":"half"}\n', b'{"exit":{"exit_code":0'):
            self.answer("POST", "/v1/sandboxes/sb-1/exec/stream", 200, content)
            with Sandbox("t", controller=self.controller) as box:
                error = self.fails(box.commands.run, "true")
            self.assertIn("half way", str(error))

    def test_error_in_stream(self):
        self.answer("POST", "/v1/snapshots", 200, b'{"error":{"error":"no mirror","code":"unavailable","hint":"set one"}}\n')
        error = self.fails(self.controller.create_snapshot, "t")
        self.assertEqual((error.message, error.hint), ("no mirror", "set one"))

    def test_progress(self):
        self.answer("POST", "/v1/snapshots", 200, b'{"progress":{"step":"boot"}}\n\n{"snapshot":{"tag":"t"}}\n')
        steps = []
        self.assertEqual(self.controller.create_snapshot("t", steps.append, vcpus=1), {"tag": "t"})
        self.assertEqual(steps, [{"step": "boot"}])
        self.assertEqual(json.loads(self.server.asked[0][3]), {"tag": "t", "vcpus": 1})


class TestSandboxLife(FakeDaemon):
    def setUp(self):
        super().setUp()
        self.answer("POST", "/v1/sandboxes", 201, [BOX])
        self.answer("DELETE", "/v1/sandboxes/sb-1", 204)

    def kills(self):
        return [path for method, path, _, _ in self.server.asked if method == "DELETE"]

    def test_error_of_the_block_is_shown(self):
        self.answer("DELETE", "/v1/sandboxes/sb-1", 500, {"error": "cannot kill", "code": "internal"})
        with self.assertRaises(KeyError):
            with Sandbox("t", self.url):
                raise KeyError("mine")
        with self.assertRaises(ForkdError):
            with Sandbox("t", self.url):
                pass
        self.assertEqual(len(self.kills()), 2)

    def test_interrupt_in_the_block(self):
        with self.assertRaises(KeyboardInterrupt):
            with Sandbox("t", self.url):
                raise KeyboardInterrupt
        self.assertEqual(self.kills(), ["/v1/sandboxes/sb-1"])

    def test_own_controller_is_closed_a_given_one_is_not(self):
        with Sandbox("t", self.url) as box:
            own = box.controller
        self.assertEqual(idle(own), [])
        with Sandbox("t", controller=self.controller):
            pass
        self.assertEqual(len(idle(self.controller)), 1)

    def test_fields_that_are_not_given_are_not_sent(self):
        Sandbox("t", controller=self.controller)
        Sandbox("t", controller=self.controller, timeout=5, memory_limit_mib=64, prewarm=True)
        Sandbox("t", controller=self.controller, idle_timeout=9, cpus=0.5, pids_limit=7, disk_limit_mib=None)
        sent = [json.loads(body) for _, _, _, body in self.server.asked]
        self.assertEqual(sent[0], {"snapshot_tag": "t", "n": 1})
        self.assertEqual(
            sent[1],
            {"snapshot_tag": "t", "n": 1, "timeout_secs": 5, "memory_limit_mib": 64, "prewarm": True},
        )
        self.assertEqual(sent[2], {"snapshot_tag": "t", "n": 1, "idle_timeout_secs": 9, "cpus": 0.5, "pids_limit": 7})
        with self.assertRaisesRegex(TypeError, "pid_limit"):
            Sandbox("t", controller=self.controller, pid_limit=7)


class TestBranches(FakeDaemon):
    BRANCH = {"tag": "b", "branched_from": "sb-1", "mode": "live", "status": "writing", "pause_ms": 1.5}

    def setUp(self):
        super().setUp()
        self.answer("GET", "/v1/sandboxes/sb-1", 200, BOX)
        self.box = Sandbox.connect("sb-1", controller=self.controller)

    def sent(self):
        return [json.loads(body) for _, _, _, body in self.server.asked if body]

    def test_branch(self):
        self.answer("POST", "/v1/sandboxes/sb-1/branch", 201, self.BRANCH)
        branch = self.box.branch()
        self.assertEqual((branch.tag, branch.status, branch.pause_ms, str(branch)), ("b", "writing", 1.5, "b"))
        self.box.branch("b", mode="full", wait=False)
        self.assertEqual(self.sent(), [{"mode": "live", "wait": True}, {"tag": "b", "mode": "full", "wait": False}])

    def test_rollback(self):
        self.answer("POST", "/v1/sandboxes/sb-1/rollback", 200, BOX)
        self.box.rollback("b")
        self.assertEqual(self.sent(), [{"snapshot_tag": "b"}])

    def test_fork(self):
        self.answer("POST", "/v1/sandboxes", 201, [{"id": "sb-2"}, {"id": "sb-3"}])
        children = self.box.fork(2, timeout=5)
        self.assertEqual([child.id for child in children], ["sb-2", "sb-3"])
        self.assertEqual(self.sent(), [{"from_sandbox": "sb-1", "n": 2, "timeout_secs": 5}])
        self.assertIs(children[0].controller, self.controller)

    def test_fork_of_some_is_undone(self):
        self.answer("POST", "/v1/sandboxes", 207, {"sandboxes": [{"id": "sb-2"}], "errors": [{"index": 1, "error": "full", "code": "no_space"}]})
        self.answer("DELETE", "/v1/sandboxes/sb-2", 204)
        with self.assertRaises(PartialSpawnError):
            self.box.fork(2)
        self.assertIn(("DELETE", "/v1/sandboxes/sb-2"), [(method, path) for method, path, _, _ in self.server.asked])

    def test_wait(self):
        states = iter(["writing", "writing", "ready"])
        self.server.answers["GET", "/v1/snapshots/b/info"] = lambda _: (200, {"tag": "b", "status": next(states)})
        self.assertEqual(self.controller.wait_snapshot("b")["status"], "ready")
        self.answer("GET", "/v1/snapshots/b/info", 200, {"tag": "b", "status": "failed", "warning": "no room"})
        error = self.fails(self.controller.wait_snapshot, "b")
        self.assertEqual(error.code, "not_bootable")
        self.assertIn("no room", str(error))
        self.answer("GET", "/v1/snapshots/b/info", 200, {"tag": "b", "status": "writing"})
        self.assertEqual(self.fails(self.controller.wait_snapshot, "b", timeout=0).code, "timeout")

    def test_the_limit_of_a_call_is_for_all_that_is_asked(self):
        self.answer("GET", "/v1/snapshots/b/info", 200, {"tag": "b", "status": "writing"})
        self.assertEqual(self.fails(self.controller.within(0.1).wait_snapshot, "b").code, "timeout")
        self.answer("GET", "/v1/sandboxes/sb-1/tcp/9", 502, {"error": "closed", "code": "port_closed"})
        box = self.box.within(0.1)
        self.assertIn("nothing listens on port 9 after 0.1 s", str(self.fails(box.ports.wait, 9, timeout=3)))
        begun = threading.Event()
        self.addCleanup(begun.set)
        self.server.answers["GET", "/v1/sandboxes/sb-1/tcp/9"] = lambda _: (begun.wait(3), (None, None))[1]
        self.assertEqual(self.fails(box.ports.wait, 9, timeout=2).code, "timeout")

    def test_the_end_and_a_break_of_a_connection_are_told_apart(self):
        def serve(said):
            def answer(handler):
                handler.wfile.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: tcp-chunked\r\n\r\n" + said)
                return None, None

            return answer

        for said, want in [
            (b"4\r\nhalf\r\n0\r\n\r\n", b"half"),
            (b"0\r\n\r\n", b""),
            (b"4\r\nhalf\r\n", None),
            (b"9\r\nhalf", None),
            (b"", None),
            (b"no chunk\r\n", None),
        ]:
            with self.subTest(said):
                self.server.answers["GET", "/v1/sandboxes/sb-1/tcp/9"] = serve(said)
                with self.box.ports.open(9) as connection:
                    if want is not None:
                        self.assertEqual(connection.receive_all(), want)
                        continue
                    error = self.fails(connection.receive_all)
                    self.assertEqual((type(error), error.code), (PortClosedError, "port_closed"))
                    self.assertIn("broke the connection to port 9", str(error))
        self.assertEqual({asked[2]["Upgrade"] for asked in self.server.asked if asked[1].endswith("/tcp/9")}, {"tcp-chunked"})

    def test_delete(self):
        self.answer("DELETE", "/v1/snapshots/b", 204)
        self.assertEqual(self.controller.delete_snapshot("b"), ["b"])
        self.answer("DELETE", "/v1/snapshots/b", 200, {"removed": ["b", "c"]})
        self.assertEqual(self.controller.delete_snapshot("b", cascade=True), ["b", "c"])
        self.assertIn("cascade=true", self.server.asked[-1][1])

    def test_derive(self):
        self.answer("POST", "/v1/snapshots/a/derive", 200, b'{"progress":{"step":"exec"}}\n{"snapshot":{"tag":"b"}}\n')
        steps = []
        made = self.controller.derive_snapshot("a", "b", ["echo $HOME", ["ls", "-l"]], ["x = 1"], steps.append)
        self.assertEqual((made, steps), ({"tag": "b"}, [{"step": "exec"}]))
        commands = [["/bin/sh", "-c", "echo $HOME"], ["ls", "-l"]]
        self.assertEqual(self.sent(), [{"tag": "b", "commands": commands, "evals": ["x = 1"]}])

    def test_pack(self):
        data = os.urandom(200_000)
        self.answer("GET", "/v1/snapshots/a/pack", 200, data)
        with tempfile.TemporaryFile() as file:
            self.assertEqual(self.controller.pack_snapshot("a", file), len(data))
            file.seek(0)
            self.assertEqual(file.read(), data)

    def test_hub_of_the_environment(self):
        self.answer("POST", "/v1/snapshots/pull", 200, b'{"snapshot":{"tag":"a"}}\n')
        os.environ["FORKD_HUB_URL"] = "http://hub/"
        try:
            self.controller.pull_snapshot("owner/name")
            self.controller.pull_snapshot("owner/name", "t", hub_url="http://other/", hub_token="s")
        finally:
            del os.environ["FORKD_HUB_URL"]
        self.assertEqual(
            self.sent(),
            [
                {"reference": "owner/name", "hub_url": "http://hub/"},
                {"reference": "owner/name", "tag": "t", "hub_url": "http://other/", "hub_token": "s"},
            ],
        )


class TestWrongTypes(FakeDaemon):
    def test_are_named_and_nothing_is_sent(self):
        self.answer("GET", "/v1/sandboxes/x", 200, {"id": "x"})
        box = Sandbox.connect("x", controller=self.controller)
        for text, call, args in [
            ("command must be a string or a list of strings, not int", box.commands.run, (5,)),
            ("command must be a string or a list of strings, not bytes", box.commands.run, (b"ls",)),
            ("data must be .* not int", box.files.write, ("/x", 5)),
            ("data must be .* not NoneType", box.files.write, ("/x", None)),
            ("data must be .* not int", lambda: box.commands.run("cat", stdin=5), ()),
        ]:
            with self.subTest(text), self.assertRaisesRegex(TypeError, text):
                call(*args)
        self.assertEqual(len(self.server.asked), 1)


class TestPieces(unittest.TestCase):
    def test_urls(self):
        for url in ["127.0.0.1:8889", "ftp://x", "unix://", "unix://a/b", "http://", "http://x/y", "unix:"]:
            with self.subTest(url), self.assertRaises(ValueError):
                Controller(url)

    def test_default_url(self):
        names = ("FORKD_URL", "FORKD_HOME", "XDG_DATA_HOME", "HOME")
        old = {name: os.environ.pop(name, None) for name in names}
        try:
            with tempfile.TemporaryDirectory() as data:
                os.environ["XDG_DATA_HOME"] = data
                self.assertEqual(default_url(), "http://127.0.0.1:8889")
                os.environ["FORKD_HOME"] = "/nobody/here"
                self.assertEqual(default_url(), "unix:///nobody/here/forkd.sock")
                del os.environ["FORKD_HOME"]
                os.mkdir(os.path.join(data, "forkd"))
                path = os.path.join(data, "forkd", "forkd.sock")
                with UnixServer(path, Handler):
                    self.assertEqual(default_url(), "unix://" + path)
                os.environ["FORKD_URL"] = "http://other:1"
                self.assertEqual(default_url(), "http://other:1")
        finally:
            for name, value in old.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value

    def test_pieces(self):
        big = bytes(100_000)
        for data in (big, bytearray(big), memoryview(big), iter([big, b"", big[:0]]), io.BytesIO(big)):
            cut = list(iterate(pieces(data)))
            self.assertEqual(b"".join(cut), big)
            self.assertLessEqual(max(map(len, cut)), 64 << 10)
        self.assertEqual(list(iterate(pieces("ü"))), ["ü".encode()])
        self.assertEqual(list(iterate(pieces(b""))), [])

    def test_output_splits_no_character(self):
        seen = []
        out = _Text(seen.append)
        for byte in "aü☃".encode() + b"\xff":
            run(out.add(bytes([byte])))
        run(out.end())
        self.assertEqual("".join(seen), "aü☃\ufffd")
        self.assertEqual(out.text(), "aü☃\ufffd")

    def test_time(self):
        for text, want in [
            ("2026-01-02T03:04:05Z", datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)),
            ("2026-01-02T03:04:05.123456789Z", datetime(2026, 1, 2, 3, 4, 5, 123456, tzinfo=timezone.utc)),
            ("2026-01-02T03:04:05.1Z", datetime(2026, 1, 2, 3, 4, 5, 100000, tzinfo=timezone.utc)),
        ]:
            self.assertEqual(_time(text), want)

    def test_file_names_that_are_not_text(self):
        info = _file_info(
            {
                "name": "\ufffd", "name_b64": "/w==", "path": "/\ufffd", "path_b64": "L/8=", "type": "symlink",
                "size": 0, "mode": "0777", "modified_at": "2026-01-02T03:04:05Z", "uid": 0, "gid": 0, "target": "x",
            }
        )  # fmt: skip
        self.assertEqual((os.fsencode(info.name), os.fsencode(info.path)), (b"\xff", b"/\xff"))
        self.assertEqual((info.mode, info.target), (0o777, "x"))


if __name__ == "__main__":
    unittest.main()
