"""Tests of evaluations in many sandboxes, against the small server of test_unit."""

import asyncio
import json
import threading
import unittest

from forkd import (
    AsyncController,
    AsyncSandbox,
    DeadlineError,
    EvalError,
    EvalTimeout,
    ForkdError,
    InvalidArgumentError,
    NotFoundError,
    PartialEvalError,
    Repr,
    Sandbox,
)

from .test_unit import FakeDaemon, idle


def line(id, **answer):
    return json.dumps({"sandbox_id": id, **answer}).encode() + b"\n"


def good(id, **result):
    return line(id, result={"result": None, "error": None, "stdout": "", **result})


def raised(id, type, message, traceback):
    return good(id, error={"type": type, "message": message, "traceback": traceback})


class TestEvals(FakeDaemon):
    def setUp(self):
        super().setUp()
        self.speaker = AsyncController(self.url)
        self.gone = threading.Event()

    def evaluated(self, *lines):
        self.answer("POST", "/v1/eval", 200, b"".join(lines))

    def held(self, *lines):
        """Answer with lines and no end, with nothing if there are none; gone is set when the client has gone."""

        def answer(handler):
            if lines:
                handler.send_response(200)
                handler.send_header("Transfer-Encoding", "chunked")
                handler.end_headers()
            for each in lines:
                handler.wfile.write(b"%x\r\n%s\r\n" % (len(each), each))
            handler.connection.settimeout(30)
            try:
                if not handler.rfile.read(1):
                    self.gone.set()
            except ConnectionResetError:
                self.gone.set()
            return None, None

        self.server.answers["POST", "/v1/eval"] = answer

    def broken(self, *lines):
        """Answer with lines and an end that is not the promised one."""

        def answer(handler):
            content = b"".join(lines)
            handler.send_response(200)
            handler.send_header("Content-Length", str(len(content) + 1))
            handler.end_headers()
            handler.wfile.write(content)
            return None, None

        self.server.answers["POST", "/v1/eval"] = answer

    def asyncs(self, work):
        async def main():
            async with self.speaker:
                return await asyncio.wait_for(work, 30)

        return asyncio.run(main())

    def assertGone(self):
        self.assertTrue(self.gone.wait(30), "the request goes on")

    def test_each_has_its_outcome(self):
        box = Sandbox._of(AsyncSandbox("a", self.controller._core), self.controller)
        boxes = [box, "b", {"id": "c"}, "d", "e"]
        self.evaluated(
            good("c", value=[1], result="[1]", stdout="said"),
            b"\n",
            raised("b", "KeyError", "'x'", "Traceback\nKeyError: 'x'"),
            line("d", error={"error": "no sandbox d", "code": "not_found", "hint": "see ls"}),
            raised("e", "TimeoutError", "after 1s", "Traceback\nKeyboardInterrupt"),
            good("a", result="nan", result_truncated=False),
        )
        pairs = list(self.controller.eval_all(boxes, "x", timeout=1))
        self.assertEqual([sandbox for sandbox, _ in pairs], [boxes[i] for i in (2, 1, 3, 4, 0)])
        self.assertEqual(
            json.loads(self.server.asked[0][3]), {"sandboxes": ["a", "b", "c", "d", "e"], "code": "x", "timeout_secs": 1}
        )
        a, b, c, d, e = self.controller.eval_each(boxes, "x")
        self.assertEqual((a.sandbox_id, a.get(), type(a.value)), ("a", "nan", Repr))
        self.assertEqual((c.get(), c.error, c.answer["stdout"]), ([1], None, "said"))
        self.assertEqual((type(b.error), b.error.type, b.value), (EvalError, "KeyError", None))
        self.assertEqual((type(d.error), d.error.hint, d.answer), (NotFoundError, "see ls", None))
        self.assertEqual(type(e.error), EvalTimeout)
        for outcome in b, d, e:
            with self.assertRaises(type(outcome.error)):
                outcome.get()
        self.assertEqual(len(idle(self.controller)), 1, "the connection is not kept")
        self.assertEqual([type(each.error) for each in self.asyncs(self.speaker.eval_each(boxes, "x"))],
                         [type(each.error) for each in (a, b, c, d, e)])  # fmt: skip

    def test_who_has_not_answered_is_named(self):
        first, second = good("a", value=1), good("b", value=2)
        for answers in [self.evaluated, self.broken]:
            for lines, missing in [((), ["a", "b"]), ((second,), ["a"]), ((first, second[:-1]), ["b"])]:
                answers(*lines)
                came = []
                with self.subTest(lines), self.assertRaisesRegex(PartialEvalError, f"{len(missing)} of 2 .*{missing[-1]}") as caught:
                    for id, outcome in self.controller.eval_all(["a", "b"], "1"):
                        came.append((id, outcome.get()))
                self.assertEqual((caught.exception.missing, caught.exception.code), (missing, "unavailable"))
                self.assertEqual(len(came) + len(missing), 2)
                with self.assertRaises(PartialEvalError):
                    self.asyncs(self.speaker.eval_each(["a", "b"], "1"))
        ids = [f"sb{i}" for i in range(1000)]
        self.evaluated()
        error = self.fails(self.controller.eval_each, ids, "1")
        self.assertEqual(error.missing, ids)
        self.assertLess(len(str(error)), 200)

    def test_when_all_have_answered_the_rest_does_not_matter(self):
        self.broken(good("a", value=1))
        self.assertEqual([outcome.get() for _, outcome in self.controller.eval_all(["a"], "1")], [1])
        self.assertEqual(idle(self.controller), [])

    def test_refusals(self):
        self.answer("POST", "/v1/eval", 400, {"error": "sandboxes: must be 1 to 1000", "code": "invalid_argument"})
        self.assertIs(type(self.fails(self.controller.eval_each, [], "1")), InvalidArgumentError)
        self.answer("POST", "/v1/eval", 503, {"error": "closing", "code": "unavailable"})
        self.assertNotIsInstance(self.fails(self.controller.eval_each, ["a"], "1"), PartialEvalError)
        for foreign in good("b", value=1), good("a", value=1) * 2:
            self.evaluated(foreign)
            error = self.fails(self.controller.eval_each, ["a"], "1")
            self.assertIs(type(error), ForkdError)
            self.assertIn("no place here", str(error))

    def test_wrong_types_are_named(self):
        box = Sandbox._of(AsyncSandbox("a", self.controller._core), self.controller)
        for wrong in "sb1", {"id": "a"}, box, None, [None], [{"tag": "a"}]:
            one = "a sandbox must be a" if isinstance(wrong, list) else "sandboxes must be a list, such as"
            for controller in self.controller, self.speaker:
                with self.subTest(wrong), self.assertRaisesRegex(TypeError, one):
                    controller.eval_all(wrong, "1")
            with self.subTest(wrong), self.assertRaisesRegex(TypeError, one):
                self.controller.eval_each(wrong, "1")
        self.assertEqual(self.server.asked, [])

    def test_who_stops_iterating_ends_the_request(self):
        self.held(good("a", value=1))
        for id, outcome in self.controller.eval_all(["a", "b"], "1"):
            self.assertEqual((id, outcome.get()), ("a", 1))
            break
        self.assertGone()

    def test_who_stops_iterating_asynchronously_ends_the_request(self):
        self.held(good("a", value=1))

        async def first():
            async for id, _ in self.speaker.eval_all(["a", "b"], "1"):
                break
            await asyncio.get_running_loop().run_in_executor(None, self.assertGone)
            return id

        self.assertEqual(self.asyncs(first()), "a")

    def test_who_is_cancelled_ends_the_request(self):
        self.held(good("a", value=1))

        async def main():
            asking = asyncio.ensure_future(self.speaker.eval_each(["a", "b"], "1"))
            await asyncio.sleep(0.05)
            asking.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await asking
            await asyncio.get_running_loop().run_in_executor(None, self.assertGone)

        self.asyncs(main())

    def test_the_time_of_a_call_is_for_all_of_it(self):
        self.held(good("a", value=1))
        came = []
        late = "the call took longer than {} s; 1 of 2 sandboxes have not answered: b$"
        with self.assertRaisesRegex(DeadlineError, late.format("1")) as caught:
            for id, _ in self.controller.within(1).eval_all(["a", "b"], "1"):
                came.append(id)
        self.assertEqual((came, caught.exception.missing), (["a"], ["b"]))
        self.assertGone()
        with self.assertRaisesRegex(DeadlineError, late.format("0.2")) as caught:
            self.asyncs(self.speaker.within(0.2).eval_each(["a", "b"], "1"))
        self.assertEqual(caught.exception.missing, ["b"])

    def test_all_are_named_when_time_is_over_before_anybody_has_answered(self):
        self.held()
        for ask in (
            lambda: list(self.controller.within(0.2).eval_all(["a", "b"], "1")),
            lambda: self.asyncs(self.speaker.within(0.2).eval_each(["a", "b"], "1")),
        ):
            self.gone.clear()
            with self.assertRaisesRegex(DeadlineError, "0.2 s; 2 of 2 sandboxes have not answered: a, b$") as caught:
                ask()
            self.assertEqual(caught.exception.missing, ["a", "b"])
            self.assertGone()


if __name__ == "__main__":
    unittest.main()
