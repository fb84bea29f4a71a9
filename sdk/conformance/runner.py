"""Runs the table of behaviours with the Python SDK: runner.py sync|async [pattern].

FORKD_URL names the daemon, FORKD_TAG the snapshot. Verbs are written once: what a
call returns is awaited if it can be, so that they serve both faces of the SDK.
"""

import asyncio
import contextlib
import inspect
import json
import os
import random
import re
import sys
import traceback
import urllib.request
import uuid
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "python"))

import forkd  # noqa: E402
from forkd._io import run  # noqa: E402

PATTERN = bytes(range(251))
PATIENCE = 60  # seconds


async def value(x):
    return await x if inspect.isawaitable(x) else x


def pattern(size):
    return (PATTERN * (size // len(PATTERN) + 1))[:size]


class Mismatch(Exception):
    pass


class Stop(BaseException):
    """Ends a call from within, as Ctrl-C does."""


def plain(x):
    """Turn what the SDK returns into what the table speaks of."""
    if isinstance(x, forkd.EvalError):
        return {"type": x.type, "text": x.message, "traceback": x.traceback}
    if isinstance(x, forkd.Execution):
        return {**plain(vars(x)), "text": x.text}
    if isinstance(x, forkd.Result):
        return {**vars(x), "text": x.text, "png": x.png, "html": x.html}
    if hasattr(x, "__dataclass_fields__"):
        return plain(dict(vars(x)))
    if isinstance(x, dict):
        return {key: plain(each) for key, each in x.items()}
    if isinstance(x, (list, tuple)):
        return [plain(each) for each in x]
    return x


def match(want, got, where="result"):
    """Compare a result with what the table expects of it."""

    def check(ok, text):
        if not ok:
            raise Mismatch(f"{where} is {short(got)}, want {text}")

    if isinstance(want, list):
        check(isinstance(got, list) and len(got) == len(want), f"{len(want)} elements: {short(want)}")
        for i, (w, g) in enumerate(zip(want, got)):
            match(w, g, f"{where}[{i}]")
    elif not isinstance(want, dict):
        check(type(got) in (int, float) if type(want) in (int, float) else True, short(want))
        check(got == want, short(want))
    elif not any(key.startswith("$") for key in want):
        check(isinstance(got, dict), short(want))
        for key, w in want.items():
            match(w, got.get(key), f"{where}.{key}")
    else:
        for key, w in want.items():
            check(MATCHERS[key](w, got), short({key: w}))


def fits(want, got):
    try:
        match(want, got)
        return True
    except Mismatch:
        return False


MATCHERS = {
    "$contains": lambda w, g: all(each in g for each in ([w] if isinstance(w, str) else w)),
    "$lacks": lambda w, g: w not in g,
    "$size": lambda w, g: len(g) == w,
    "$pattern": lambda w, g: g == pattern(w),
    "$hex": lambda w, g: g == bytes.fromhex(w),
    "$matches": lambda w, g: isinstance(g, str) and re.search(w, g) is not None,
    "$over": lambda w, g: g > w,
    "$set": lambda w, g: sorted(map(json.dumps, w)) == sorted(map(json.dumps, g)),
    "$some": lambda w, g: any(fits(w, each) for each in g),
    "$none": lambda w, g: not any(fits(w, each) for each in g),
    "$order": lambda w, g: [each for each in g if any(fits(one, each) for one in w)] != [] and in_order(w, g),
    "$not": lambda w, g: not fits(w, g),
}


def in_order(want, got):
    rest = iter(got)
    return all(any(fits(w, g) for g in rest) for w in want)


def short(x):
    text = repr(x)
    return text if len(text) < 300 else text[:300] + "…"


class Case:
    """Runs one case: its variables, and what it has to end."""

    def __init__(self, face, controller):
        self.face = face
        self.controller = controller
        self.io = getattr(controller, "_core", controller).transport.io
        self.vars = {"unique": uuid.uuid4().hex[:10], "tag": os.environ.get("FORKD_TAG", "pyagent")}
        self.boxes, self.tags, self.workspaces = [], [], []

    async def run(self, case):
        try:
            if case.get("box", True):
                self.vars["box"] = await self.create()
            for number, step in enumerate(case["steps"], 1):
                try:
                    await self.step(step)
                except Mismatch as err:
                    raise Mismatch(f"step {number} ({step['do']}): {err}") from None
                except forkd.ForkdError as err:
                    raise Mismatch(f"step {number} ({step['do']}): {type(err).__name__}: {err}") from err
        finally:
            await self.clean()

    async def clean(self):
        for box in self.boxes:
            with contextlib.suppress(forkd.ForkdError):
                await value(box.kill())
        for name in self.workspaces:
            with contextlib.suppress(forkd.ForkdError):
                await value(self.controller.delete_workspace(name))
        for tag in reversed(self.tags):
            with contextlib.suppress(forkd.ForkdError):
                await value(self.controller.delete_snapshot(tag, cascade=True))

    async def create(self, **options):
        if self.face == "sync":
            box = forkd.Sandbox(controller=self.controller, **options)
        else:
            box = await forkd.AsyncSandbox.create(controller=self.controller, **options)
        self.boxes.append(box)
        return box

    async def step(self, step):
        if not step.get("eventually"):
            return await self.once(step)
        for left in range(PATIENCE * 10, -1, -1):
            try:
                return await self.once(step)
            except Mismatch:
                if not left:
                    raise
            await self.io.sleep(0.1)

    async def once(self, step):
        args = {name: self.fill(each) for name, each in step.get("args", {}).items()}
        verb = getattr(self, "do_" + step["do"])
        try:
            box = self.fill(step["on"]) if "on" in step else self.vars.get("box")
            got = await verb(box, **args)
        except forkd.ForkdError as err:
            if "error" not in step:
                raise
            match(self.fill(step["error"]), self.failure(err), "error")
            return
        if "error" in step:
            raise Mismatch(f"{short(plain(got))} instead of an error")
        if "save" in step:
            self.vars[step["save"]] = got
        if "expect" in step:
            match(self.fill(step["expect"]), plain(got))

    @staticmethod
    def failure(err):
        result = getattr(err, "result", None)
        return {
            "class": type(err).__name__,
            "code": err.code,
            "text": str(err),
            "status": err.status,
            "dependents": err.dependents,
            "result": None if result is None else plain(result),
        }

    def fill(self, x):
        """Put the values of variables in."""
        if isinstance(x, str):
            if re.fullmatch(r"\$[a-z_0-9.]+", x):
                return self.lookup(x[1:])
            return re.sub(r"\$\{([a-z_0-9.]+)\}", lambda m: str(self.lookup(m[1])), x)
        if isinstance(x, list):
            return [self.fill(each) for each in x]
        if isinstance(x, dict):
            if set(x) == {"$bytes"}:
                return pattern(x["$bytes"])
            if set(x) == {"$hexbytes"}:
                return bytes.fromhex(x["$hexbytes"])
            return {key: self.fill(each) for key, each in x.items()}
        return x

    def lookup(self, path):
        name, *rest = path.split(".")
        found = self.vars[name]
        for part in rest:
            if isinstance(found, list):
                found = found[int(part)]
            else:
                found = found[part] if isinstance(found, dict) else getattr(found, part)
        return found

    # Verbs. The first argument is the sandbox.

    async def do_run(self, box, cmd, within=None, when=None, stop=None, **options):
        pieces, errors = [], []
        acted = False

        async def act():
            for step in when["steps"]:
                await self.step(step)

        def on_stdout(text):
            nonlocal acted
            pieces.append(text)
            if stop is not None and stop in "".join(pieces):
                if self.face == "sync":
                    raise Stop
                task.cancel()
            if when is not None and not acted and when["has"] in "".join(pieces):
                acted = True
                if self.face == "async":
                    return act()
                run(act())
            return None

        box = box if within is None else box.within(within)
        call = lambda: box.commands.run(cmd, on_stdout=on_stdout, on_stderr=errors.append, **options)  # noqa: E731
        if stop is None:
            result = await value(call())
        else:
            try:
                if self.face == "async":
                    task = asyncio.ensure_future(call())
                    await task
                else:
                    call()
            except (Stop, asyncio.CancelledError):
                return {"stopped": True}
            raise Mismatch("it ended before it could be stopped")
        return {**plain(result), "pieces": len(pieces), "told": "".join(pieces), "told_err": "".join(errors)}

    async def do_start(self, box, cmd, pty=None, **options):
        size = forkd.PtySize(**pty) if isinstance(pty, dict) else bool(pty)
        return await value(box.commands.start(cmd, pty=size, **options))

    async def do_attach(self, box, process):
        return await value(box.commands.attach(process))

    async def do_processes(self, box):
        return await value(box.commands.list())

    async def do_kill_process(self, box, process):
        return await value(box.commands.kill(process))

    async def do_wait(self, box, process):
        return await value(process.wait())

    async def do_output(self, box, process):
        return {"stdout": process.stdout, "stderr": process.stderr}

    async def do_send_stdin(self, box, process, data):
        await value(process.send_stdin(data))

    async def do_close_stdin(self, box, process):
        await value(process.close_stdin())

    async def do_send_signal(self, box, process, signal):
        return await value(process.send_signal(signal))

    async def do_resize(self, box, process, cols, rows):
        await value(process.resize(cols, rows))

    async def do_disconnect(self, box, process):
        await value(process.disconnect())

    async def do_write(self, box, path, data, pieces=False, **options):
        if pieces:
            whole = data
            data = (whole[i : i + 50_000] for i in range(0, len(whole), 50_000))
        await value(box.files.write(path, data, **options))

    async def do_read(self, box, path, **options):
        return await value(box.files.read(path, **options))

    async def do_read_text(self, box, path):
        return await value(box.files.read_text(path))

    async def do_stream(self, box, path):
        pieces = box.files.stream(path)
        return b"".join([piece async for piece in pieces] if self.face == "async" else list(pieces))

    async def do_list(self, box, path, **options):
        return await value(box.files.list(path, **options))

    async def do_stat(self, box, path):
        return await value(box.files.stat(path))

    async def do_exists(self, box, path):
        return await value(box.files.exists(path))

    async def do_mkdir(self, box, path, **options):
        await value(box.files.mkdir(path, **options))

    async def do_rename(self, box, old, new):
        await value(box.files.rename(old, new))

    async def do_remove(self, box, path, **options):
        await value(box.files.remove(path, **options))

    async def do_compose(self, box, path, sources):
        return await value(box.files.compose(path, sources))

    async def do_watch(self, box, path, **options):
        return await value(box.files.watch(path, **options))

    async def do_changes(self, box, watch, until):
        seen = []
        while not seen or seen[-1]["name"] != until:
            seen.append(plain(await value(watch.next())))
        await value(watch.close())
        return seen

    async def do_eval(self, box, code, within=None, **options):
        box = box if within is None else box.within(within)
        got = await value(box.eval(code, **options))
        return {"value": str(got) if isinstance(got, forkd.Repr) else got, "is_repr": isinstance(got, forkd.Repr)}

    async def do_eval_all(self, box, sandboxes, code, within=None, stop_after=None, **options):
        """Return the outcomes as they come."""
        controller = self.controller if within is None else self.controller.within(within)
        came = []

        def enough(sandbox, outcome):
            if not any(sandbox is each for each in sandboxes) or getattr(sandbox, "id", sandbox) != outcome.sandbox_id:
                raise Mismatch(f"{sandbox!r} has the outcome {outcome!r}")
            came.append(self.outcome(outcome))
            return len(came) == stop_after

        if self.face == "async":
            async for sandbox, outcome in controller.eval_all(sandboxes, code, **options):
                if enough(sandbox, outcome):
                    break
        else:
            for sandbox, outcome in controller.eval_all(sandboxes, code, **options):
                if enough(sandbox, outcome):
                    break
        return came

    async def do_eval_each(self, box, sandboxes, code, within=None, **options):
        controller = self.controller if within is None else self.controller.within(within)
        return [self.outcome(each) for each in await value(controller.eval_each(sandboxes, code, **options))]

    def outcome(self, got):
        told = {"id": got.sandbox_id, "is_repr": isinstance(got.value, forkd.Repr), "error": None}
        try:
            return {**told, "value": got.get()}
        except forkd.ForkdError as err:
            return {**told, "value": got.value, "error": self.failure(err)}

    async def do_run_code(self, box, code, within=None, **options):
        told = []
        box = box if within is None else box.within(within)
        got = await value(
            box.run_code(
                code,
                on_stdout=lambda text: told.append(["stdout", text]),
                on_stderr=lambda text: told.append(["stderr", text]),
                on_result=lambda result: told.append(["result", result.text]),
                **options,
            )
        )
        return {**plain(got), "told": told}

    async def do_interrupt(self, box):
        await value(box.interrupt())

    async def do_contexts(self, box):
        return await value(box.contexts.list())

    async def do_create_context(self, box, **options):
        return await value(box.contexts.create(**options))

    async def do_remove_context(self, box, id):
        await value(box.contexts.remove(id))

    async def do_restart_context(self, box, id):
        await value(box.contexts.restart(id))

    async def do_create(self, box, **options):
        return await self.create(**options)

    async def do_cancelled_creates(self, box, n, metadata):
        for _ in range(n):
            secs = random.uniform(0.0005, 0.03)
            with contextlib.suppress(forkd.DeadlineError, forkd.ConnectError, asyncio.TimeoutError, asyncio.CancelledError):
                if self.face == "sync":
                    made = forkd.Sandbox(controller=self.controller.within(secs), metadata=metadata)
                    self.controller.kill_sandbox(made.id)
                else:
                    made = await asyncio.wait_for(
                        forkd.AsyncSandbox.create(controller=self.controller, metadata=metadata).opening, secs
                    )
                    await made.kill()

    async def do_connect(self, box, id):
        if self.face == "sync":
            return forkd.Sandbox.connect(id, controller=self.controller)
        return await forkd.AsyncSandbox.connect(id, controller=self.controller)

    async def do_fork(self, box, n, **options):
        children = await value(box.fork(n, **options))
        self.boxes.extend(children)
        return children

    async def do_branch(self, box, **options):
        made = await value(box.branch(**options))
        self.tags.append(made.tag)
        return made

    async def do_rollback(self, box, tag):
        await value(box.rollback(tag))

    async def do_snapshot(self, box, tag):
        return await value(self.controller.get_snapshot(tag))

    async def do_delete_snapshot(self, box, tag, **options):
        return await value(self.controller.delete_snapshot(tag, **options))

    async def do_derive(self, box, tag, new_tag, **options):
        self.tags.append(new_tag)
        return await value(self.controller.derive_snapshot(tag, new_tag, **options))

    async def do_kill(self, box):
        await value(box.kill())

    async def do_pause(self, box):
        return await value(box.pause())

    async def do_resume(self, box, **options):
        return await value(box.resume(**options))

    async def do_set_timeout(self, box, secs, **options):
        return await value(box.set_timeout(secs, **options))

    async def do_info(self, box):
        return await value(box.info())

    async def do_metrics(self, box):
        return await value(box.metrics())

    async def do_ping(self, box):
        return await value(box.ping())

    async def do_sandboxes(self, box, **options):
        return await value(self.controller.list_sandboxes(**options))

    async def do_wait_port(self, box, port, within=None, **options):
        box = box if within is None else box.within(within)
        await value(box.ports.wait(port, **options))

    async def do_request(self, box, port, **options):
        got = await value(box.ports.request(port, **options))
        return {"status": got.status, "text": got.text, "body": got.body}

    async def do_fetch(self, box, port, path):
        """Ask like any other HTTP client."""
        with urllib.request.urlopen(box.get_url(port) + path, timeout=PATIENCE) as got:
            return {"status": got.status, "body": got.read()}

    async def do_talk(self, box, port, data):
        """Send all, and return all that comes."""
        connection = await value(box.ports.open(port))
        try:
            await value(connection.send(data))
            await value(connection.end())
            return await value(connection.receive_all())
        finally:
            await value(connection.close())

    async def do_create_workspace(self, box, name, **limits):
        made = await value(self.controller.create_workspace(name, self.vars["tag"], **limits))
        self.workspaces.append(name)
        return made

    async def do_suspend_workspace(self, box, name):
        return await value(self.controller.suspend_workspace(name))

    async def do_resume_workspace(self, box, name):
        return await value(self.controller.resume_workspace(name))

    async def do_delete_workspace(self, box, name):
        await value(self.controller.delete_workspace(name))


async def main(face, wanted):
    cases = json.loads((HERE / "cases.json").read_text())
    controller = forkd.Controller() if face == "sync" else forkd.AsyncController()
    failed = 0
    for case in cases:
        if not re.search(wanted, case["name"]):
            continue
        try:
            await Case(face, controller).run(case)
            print("ok", case["name"], flush=True)
        except Exception as err:
            failed += 1
            if not isinstance(err, (Mismatch, forkd.ForkdError)):
                traceback.print_exc()
            print("FAIL", case["name"], "-", err, flush=True)
    await value(controller.close())
    return 1 if failed else 0


if __name__ == "__main__":
    face, wanted = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""
    sys.exit(run(main(face, wanted)) if face == "sync" else asyncio.run(main(face, wanted)))
