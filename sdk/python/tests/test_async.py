"""Tests of the asynchronous face, and of what both do when they are interrupted,
against the small server of test_unit.
"""

import asyncio
import json
import threading
import time
import unittest

from forkd import (
    AsyncController,
    AsyncSandbox,
    ConnectError,
    DeadlineError,
    NotFoundError,
    Sandbox,
    UnavailableError,
)

from .test_unit import BOX, FakeDaemon

EXIT = b'{"exit":{"exit_code":0,"signal":null,"timed_out":false}}\n'


class TestAsync(FakeDaemon):
    def setUp(self):
        super().setUp()
        self.speaker = AsyncController(self.url, token="s3cret")

    def go(self, main):
        async def closing():
            async with self.speaker:
                await asyncio.wait_for(main(), 30)

        asyncio.run(closing())

    def asks(self, method):
        return [path for asked, path, _, _ in self.server.asked if asked == method]

    def held(self, method, path, status, content):
        """Answer only when the returned event is set."""
        go = threading.Event()
        self.server.answers[method, path] = lambda _: (go.wait(30), (status, content))[1]
        self.addCleanup(go.set)
        return go

    def test_many_at_once_and_kept(self):
        self.answer("GET", "/v1/sandboxes", 200, [BOX])

        async def main():
            async with self.speaker:
                for _ in range(3):
                    got = await asyncio.gather(*(self.speaker.list_sandboxes() for _ in range(20)))
                    self.assertEqual(got, [[BOX]] * 20)
                self.assertLessEqual(len(self.speaker.transport._pool._idle), 16)

        self.go(main)
        self.assertEqual(self.server.asked[0][2]["Authorization"], "Bearer s3cret")

    def test_a_controller_outlives_its_loop(self):
        self.answer("GET", "/version", 200, {"api": "v1"})
        for _ in range(3):
            self.assertEqual(asyncio.run(self.speaker.version()), {"api": "v1"})

    def test_a_closed_connection_is_noticed(self):
        self.answer("GET", "/version", 200, {"api": "v1"})

        async def main():
            await self.speaker.version()
            (kept,) = self.speaker.transport._pool._idle
            kept._transport.get_extra_info("socket").shutdown(0)
            await self.speaker.version()
            self.assertNotIn(kept, self.speaker.transport._pool._idle)

        self.go(main)

    def test_errors(self):
        self.server.answers["POST", "/v1/sandboxes/x/exec"] = lambda _: (None, None)

        async def main():
            with self.assertRaises(NotFoundError):
                await self.speaker.get_sandbox("nobody")
            with self.assertRaises(UnavailableError):
                await self.speaker.exec_command("x", ["true"])
            with self.assertRaises(ConnectError):
                await AsyncController("http://127.0.0.1:1").version()

        self.go(main)
        self.assertEqual(len(self.asks("POST")), 1, "a request was repeated")

    def test_deadline_and_cancellation(self):
        self.held("POST", "/v1/sandboxes/x/eval", 200, {})

        async def main():
            with self.assertRaises(DeadlineError):
                await self.speaker.within(0.05).eval_code("x", "1")
            asking = asyncio.ensure_future(self.speaker.eval_code("x", "1"))
            await asyncio.sleep(0.05)
            asking.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await asking
            self.assertEqual(self.speaker.transport._pool._idle, [])

        self.go(main)

    def test_callbacks_may_be_coroutines(self):
        self.answer("POST", "/v1/sandboxes/x/exec/stream", 200, b'{"stdout":"a"}\n{"stdout_b64":"Yg=="}\n' + EXIT)
        seen = []

        async def slow(text):
            await asyncio.sleep(0)
            seen.append(text)

        async def main():
            box = AsyncSandbox("x", self.speaker)
            self.assertEqual((await box.commands.run("true", on_stdout=slow)).stdout, "ab")

        self.go(main)
        self.assertEqual(seen, ["a", "b"])
        # Where nobody can wait for them they are refused.
        with self.assertRaisesRegex(TypeError, "Async"):
            Sandbox._of(AsyncSandbox("x", self.controller._core), self.controller).commands.run("true", on_stdout=slow)

    def test_what_is_opened_is_closed(self):
        self.answer("POST", "/v1/sandboxes", 201, [BOX])
        self.answer("DELETE", "/v1/sandboxes/sb-1", 500, {"error": "cannot kill", "code": "internal"})

        async def main():
            with self.assertRaises(KeyError):
                async with AsyncSandbox.create("t", controller=self.speaker):
                    raise KeyError("the error of the block is the one to show")
            self.assertEqual(len(self.asks("DELETE")), 1)
            box = await AsyncSandbox.create("t", controller=self.speaker)
            self.assertEqual(box.id, "sb-1")

        self.go(main)

    def test_a_cancelled_creation_is_undone(self):
        self.answer("DELETE", "/v1/sandboxes/sb-1", 204)
        go = self.held("POST", "/v1/sandboxes", 201, [BOX])

        async def main():
            making = asyncio.ensure_future(AsyncSandbox.create("t", controller=self.speaker).opening)
            await asyncio.sleep(0.05)
            making.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await making
            with self.assertRaises(DeadlineError):
                await AsyncSandbox.create("t", controller=self.speaker.within(0.05))
            go.set()
            while len(self.asks("DELETE")) < 2:
                await asyncio.sleep(0.01)

        self.go(main)

    def test_an_interrupted_creation_is_undone(self):
        self.answer("DELETE", "/v1/sandboxes/sb-1", 204)
        go = self.held("POST", "/v1/sandboxes", 201, [BOX])
        with self.assertRaises(DeadlineError):
            Sandbox("t", controller=self.controller.within(0.05))
        go.set()
        end = time.monotonic() + 30
        while not self.asks("DELETE") and time.monotonic() < end:
            time.sleep(0.01)
        self.assertEqual(self.asks("DELETE"), ["/v1/sandboxes/sb-1"])

    def test_unknown_options(self):
        with self.assertRaisesRegex(TypeError, "timout"):
            Sandbox("t", controller=self.controller, timout=5)
        with self.assertRaisesRegex(TypeError, "tmeout"):
            self.controller.spawn_sandboxes("t", tmeout=5)

    def test_options(self):
        self.answer("POST", "/v1/sandboxes", 201, [BOX])
        Sandbox("t", controller=self.controller, timeout=5, metadata={"a": "b"}, env={"C": "d"}, on_timeout="pause", auto_resume=True)
        self.assertEqual(
            json.loads(self.server.asked[0][3]),
            {
                "snapshot_tag": "t", "n": 1, "timeout_secs": 5, "metadata": {"a": "b"},
                "env": {"C": "d"}, "on_timeout": "pause", "auto_resume": True,
            },
        )  # fmt: skip


if __name__ == "__main__":
    unittest.main()
