"""The daemon, asynchronously."""

from __future__ import annotations

import os
import time
from typing import (
    IO,
    TYPE_CHECKING,
    Any,
    AsyncIterator,
    Callable,
    Dict,
    Iterable,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    Type,
    TypeVar,
    Union,
    cast,
)
from urllib.parse import quote, urlencode

from ._aio import AsyncIO
from ._data import AsyncData
from ._errors import DeadlineError, NotBootableError, PartialSpawnError
from ._evals import EvalOutcome, S, eval_all, id_of, listed
from ._io import IO as World
from ._records import (
    EvalAnswer,
    ExecAnswer,
    ForkFields,
    Limits,
    Metrics,
    Ping,
    Progress,
    SandboxInfo,
    SnapshotInfo,
    TreeNode,
    Version,
    Workspace,
)
from ._transport import Transport, cut_off

if TYPE_CHECKING:
    from typing_extensions import Unpack

OnProgress = Optional[Callable[[Progress], Any]]
Self = TypeVar("Self", bound="AsyncController")


def route(*names: str, **query: Any) -> str:
    """Return a path of the API: "/v1" and the names, quoted, and the query.

    Values of the query may be bytes, and lists of values; None is left out.
    """
    path = "/v1" + "".join("/" + quote(name, safe="") for name in names)
    fields = {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in query.items()
        if value is not None
    }
    text = urlencode(fields, doseq=True)
    return f"{path}?{text}" if text else path


def box_route(id: str, *names: str, **query: Any) -> str:
    """Return a path below a sandbox's."""
    return route("sandboxes", id, *names, **query)


def given(**fields: Any) -> Dict[str, Any]:
    """Return the fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def known(options: Type[Any], values: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the values that are not None; a name that options does not have is a TypeError."""
    for name in values:
        if name not in options.__annotations__:
            raise TypeError(f"unexpected keyword argument {name!r}; there are {', '.join(options.__annotations__)}")
    return given(**values)


def argv(cmd: Union[str, Sequence[str]]) -> List[str]:
    """Return the arguments of a command; a string is for the shell."""
    if isinstance(cmd, str):
        return ["/bin/sh", "-c", cmd]
    if isinstance(cmd, bytes) or not hasattr(cmd, "__iter__"):
        raise TypeError(f"a command must be a string or a list of strings, not {type(cmd).__name__}")
    return list(cmd)


class AsyncController:
    """Speaks to a daemon. Answers are the records that the REST API has.

    It keeps connections, and serves any number of tasks.
    """

    def __init__(self, url: Optional[str] = None, token: Optional[str] = None):
        self.transport = Transport(AsyncIO(), url, token)

    @classmethod
    def _over(cls: Type[Self], io: World, url: Optional[str], token: Optional[str]) -> Self:
        self = cls.__new__(cls)
        self.transport = Transport(io, url, token)
        return self

    def within(self: Self, secs: Optional[float]) -> Self:
        """Return the same controller with a time limit for each call.

        A call that takes longer raises DeadlineError, and what it had begun in the
        daemon is stopped. There is no limit by default.
        """
        other = type(self).__new__(type(self))
        other.transport = self.transport.within(secs)
        return other

    async def __aenter__(self: Self) -> Self:
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self.close()

    async def close(self) -> None:
        """Drop idle connections."""
        self.transport.close()
        await self.transport.io.sleep(0)  # an event loop closes them in its next turn

    # Daemon

    async def health(self) -> Dict[str, Any]:
        """Ask whether the daemon answers; this needs no token."""
        return await self.transport.call("GET", "/healthz")

    async def version(self) -> Version:
        """Tell which daemon answers."""
        return await self.transport.call("GET", "/version")

    async def daemon_metrics(self) -> str:
        """Return the daemon's metrics in the Prometheus text format."""
        async with self.transport.exchange("GET", "/metrics") as answer:
            return (await answer.read()).decode()

    # Snapshots

    async def list_snapshots(self) -> List[SnapshotInfo]:
        """List the snapshots."""
        return await self.transport.call("GET", route("snapshots"))

    async def get_snapshot(self, tag: str) -> SnapshotInfo:
        """Describe a snapshot, with its sizes and what depends on it."""
        return await self.transport.call("GET", route("snapshots", tag, "info"))

    async def create_snapshot(self, tag: str, on_progress: OnProgress = None, **options: Any) -> SnapshotInfo:
        """Make a snapshot and return it.

        options are the fields of the REST request: memory_mib, vcpus, disk_mib,
        packages, mirror, runtime, modules, warm_up, setup. on_progress is called
        with {"step", "message", "done", "total"} as the work goes on.
        """
        return await self._follow(route("snapshots"), {"tag": tag, **options}, on_progress)

    async def _follow(self, path: str, body: Dict[str, Any], on_progress: OnProgress) -> SnapshotInfo:
        """Ask for work that takes its time and return the snapshot it ends with."""
        async with self.transport.lines("POST", path, body) as answer:
            async for event in answer.events():
                if "snapshot" in event:
                    await answer.read()
                    return event["snapshot"]
                if on_progress is not None:
                    on_progress(event["progress"])
        raise cut_off()

    async def delete_snapshot(self, tag: str, force: bool = False, cascade: bool = False) -> List[str]:
        """Remove a snapshot and return the tags of all that went with it.

        While sandboxes run from it or other snapshots stand on it that is an
        InUseError, whose dependents names them. force ends the sandboxes, and the
        snapshots keep what they need of it; cascade removes those too, and ends all
        their sandboxes. The two exclude each other.
        """
        answer = await self.transport.call("DELETE", route("snapshots", tag, force=force, cascade=cascade))
        return answer["removed"] if answer else [tag]

    async def wait_snapshot(self, tag: str, timeout: Optional[float] = None) -> SnapshotInfo:
        """Return a snapshot when it is no longer being written.

        One that could not be written is an error, as is one that is not ready
        after timeout seconds.
        """
        end = self.transport.deadline(timeout)
        pause = 0.001
        while True:
            info = await self.within(self.transport.before(end).limit).get_snapshot(tag)
            if info["status"] == "ready":
                return info
            if info["status"] == "failed":
                raise NotBootableError(f"snapshot {tag} could not be written: {info.get('warning', '')}")
            if time.monotonic() >= end:
                raise DeadlineError(f"snapshot {tag} is still being written")
            await self.transport.io.sleep(min(pause, max(end - time.monotonic(), 0)))
            pause = min(pause * 1.2, 0.1)

    async def derive_snapshot(
        self,
        tag: str,
        new_tag: str,
        commands: Sequence[Union[str, Sequence[str]]] = (),
        evals: Sequence[str] = (),
        on_progress: OnProgress = None,
    ) -> SnapshotInfo:
        """Make a snapshot of another one after some work in a child of it.

        A command is a string for /bin/sh or a list of arguments, and must exit with
        0. The evaluations come after all commands and must not raise.
        """
        body = {"tag": new_tag, "commands": [argv(cmd) for cmd in commands], "evals": list(evals)}
        return await self._follow(route("snapshots", tag, "derive"), body, on_progress)

    async def compact_snapshot(self, tag: str, to: str) -> SnapshotInfo:
        """Flatten the chain of a snapshot into a new one that stands on no other."""
        return await self.transport.call("POST", route("snapshots", tag, "compact"), {"to": to})

    async def verify_snapshot(self, tag: str, on_progress: OnProgress = None) -> SnapshotInfo:
        """Compare every byte of a snapshot with its hashes; damage is an error."""
        return await self._follow(route("snapshots", tag, "verify"), {}, on_progress)

    async def pack_snapshot(self, tag: str, to: IO[bytes]) -> int:
        """Write a snapshot with all that it stands on to a binary file; return the size."""
        return await self._download(route("snapshots", tag, "pack"), to)

    async def _download(self, path: str, to: IO[bytes]) -> int:
        size = 0
        async with self.transport.exchange("GET", path) as answer:
            async for piece in answer.pieces():
                to.write(piece)
                size += len(piece)
        return size

    async def unpack_snapshot(self, pack: AsyncData, tag: Optional[str] = None) -> SnapshotInfo:
        """Make a snapshot of a pack: bytes, a binary file or pieces.

        Its tag is the one that it was packed with unless another is given.
        """
        headers = {"Content-Type": "application/zstd"}
        async with self.transport.exchange("POST", route("snapshots", "unpack", tag=tag), pack, headers) as answer:
            return await answer.json()

    async def push_snapshot(
        self,
        tag: str,
        reference: str,
        on_progress: OnProgress = None,
        *,
        hub_url: Optional[str] = None,
        hub_token: Optional[str] = None,
    ) -> SnapshotInfo:
        """Have the daemon send a snapshot elsewhere.

        reference is the URL of a pack, owner/name[:version] on a hub, or
        oci://host/repository[:tag]. The hub is FORKD_HUB_URL with FORKD_HUB_TOKEN
        by default.
        """
        body = given(reference=reference, **_hub(hub_url, hub_token))
        return await self._follow(route("snapshots", tag, "push"), body, on_progress)

    async def pull_snapshot(
        self,
        reference: str,
        tag: Optional[str] = None,
        on_progress: OnProgress = None,
        *,
        hub_url: Optional[str] = None,
        hub_token: Optional[str] = None,
    ) -> SnapshotInfo:
        """Have the daemon fetch a snapshot; see push_snapshot for references."""
        body = given(reference=reference, tag=tag, **_hub(hub_url, hub_token))
        return await self._follow(route("snapshots", "pull"), body, on_progress)

    async def tree(self) -> List[TreeNode]:
        """List snapshots and sandboxes with what each of them comes from."""
        return await self.transport.call("GET", route("tree"))

    # Workspaces

    async def create_workspace(
        self,
        name: str,
        tag: str,
        memory_limit_mib: Optional[int] = None,
        *,
        idle_timeout_secs: Optional[float] = None,
        **limits: "Unpack[Limits]",
    ) -> Workspace:
        """Make a workspace, a named sandbox that outlives the daemon, and start it.

        It is suspended when nobody has used it for idle_timeout_secs.
        """
        body = given(
            name=name,
            snapshot_tag=tag,
            memory_limit_mib=memory_limit_mib,
            idle_timeout_secs=idle_timeout_secs,
            **known(Limits, limits),
        )
        return await self.transport.call("POST", route("workspaces"), body)

    async def list_workspaces(self) -> List[Workspace]:
        """List the workspaces."""
        return await self.transport.call("GET", route("workspaces"))

    async def get_workspace(self, name: str) -> Workspace:
        """Describe a workspace; "sandbox_id" is there while it runs."""
        return await self.transport.call("GET", route("workspaces", name))

    async def suspend_workspace(self, name: str) -> Workspace:
        """Save a workspace to disk and end its sandbox."""
        return await self.transport.call("POST", route("workspaces", name, "suspend"))

    async def resume_workspace(self, name: str) -> Workspace:
        """Let a suspended workspace run on."""
        return await self.transport.call("POST", route("workspaces", name, "resume"))

    async def delete_workspace(self, name: str) -> None:
        """Remove a workspace and what was saved of it."""
        await self.transport.call("DELETE", route("workspaces", name))

    # Sandboxes

    async def spawn_sandboxes(
        self,
        tag: str,
        n: int = 1,
        *,
        idempotency_key: Optional[str] = None,
        **fields: "Unpack[ForkFields]",
    ) -> List[SandboxInfo]:
        """Fork n children of a snapshot; see ForkFields for the rest.

        If only some can be started, PartialSpawnError names them. With an
        idempotency_key, repeating the call returns the same children.
        """
        return await self._spawn({"snapshot_tag": tag, "n": n}, fields, idempotency_key)

    async def fork_sandbox(
        self,
        id: str,
        n: int = 1,
        *,
        idempotency_key: Optional[str] = None,
        **fields: "Unpack[ForkFields]",
    ) -> List[SandboxInfo]:
        """Fork n children of a sandbox as it is now; it goes on running."""
        return await self._spawn({"from_sandbox": id, "n": n}, fields, idempotency_key)

    async def _spawn(self, source: Dict[str, Any], fields: Mapping[str, Any], key: Optional[str]) -> List[SandboxInfo]:
        body = {**source, **known(ForkFields, fields)}
        headers = {} if key is None else {"Idempotency-Key": key}
        # Who gives up before there is an answer does not know what to end, unless there
        # is a key to ask again with.
        speaker = self.transport.within(None) if key is None else self.transport
        asking = speaker.call("POST", route("sandboxes"), body, headers)
        if key is None:
            with self.transport.talking():
                answer = await self.transport.io.finish(asking, self._end_all, self.transport.limit)
        else:
            answer = await asking
        if isinstance(answer, dict):
            some = cast(Dict[str, List[Dict[str, Any]]], answer)
            raise PartialSpawnError(some["sandboxes"], some["errors"])
        return answer

    async def _end_all(self, answer: Any) -> None:
        made = answer["sandboxes"] if isinstance(answer, dict) else answer
        for info in cast(List[SandboxInfo], made):
            await self.within(None).kill_sandbox(info["id"])

    async def list_sandboxes(
        self,
        metadata: Optional[Mapping[str, str]] = None,
        state: Union[str, Sequence[str], None] = None,
    ) -> List[SandboxInfo]:
        """List the sandboxes, oldest first: all, or those with some metadata or in some states."""
        states = [state] if isinstance(state, str) else state
        pairs = [f"{key}={value}" for key, value in (metadata or {}).items()]
        return await self.transport.call("GET", route("sandboxes", state=states, metadata=pairs))

    async def get_sandbox(self, id: str) -> SandboxInfo:
        """Describe a sandbox."""
        return await self.transport.call("GET", box_route(id))

    async def kill_sandbox(self, id: str) -> None:
        """End a sandbox, running or paused."""
        await self.transport.call("DELETE", box_route(id))

    async def pause_sandbox(self, id: str) -> SandboxInfo:
        """Save a sandbox to disk, processes included, so that it uses no memory."""
        return await self.transport.call("POST", box_route(id, "pause"))

    async def resume_sandbox(self, id: str, timeout_secs: Optional[float] = None) -> SandboxInfo:
        """Let a paused sandbox go on; its lifetime begins anew. Of one that runs, nothing changes."""
        return await self.transport.call("POST", box_route(id, "resume"), given(timeout_secs=timeout_secs))

    async def set_sandbox_timeout(self, id: str, timeout_secs: Optional[float], extend: bool = False) -> SandboxInfo:
        """Change how long a sandbox still lives, None for ever; with extend never to less."""
        body = {"timeout_secs": timeout_secs, **given(extend=extend or None)}
        return await self.transport.call("POST", box_route(id, "timeout"), body)

    async def sandbox_metrics(self, id: str) -> Metrics:
        """Tell what a sandbox uses."""
        return await self.transport.call("GET", box_route(id, "metrics"))

    async def branch_sandbox(
        self,
        id: str,
        tag: Optional[str] = None,
        mode: Optional[str] = None,
        wait: bool = True,
    ) -> SnapshotInfo:
        """Make a snapshot of a sandbox, which goes on running.

        mode is "live", the default, "diff" or "full". Without wait the answer comes
        as soon as the sandbox runs again; see wait_snapshot.
        """
        return await self.transport.call("POST", box_route(id, "branch"), given(tag=tag, mode=mode, wait=wait))

    async def rollback_sandbox(self, id: str, tag: str) -> SandboxInfo:
        """Take a sandbox back, in place, to a snapshot that it descends from."""
        return await self.transport.call("POST", box_route(id, "rollback"), {"snapshot_tag": tag})

    async def exec_command(
        self,
        id: str,
        args: Sequence[str],
        timeout_secs: Optional[float] = None,
        *,
        env: Optional[Mapping[str, str]] = None,
        cwd: Optional[str] = None,
        user: Optional[str] = None,
        stdin: Optional[str] = None,
        output_limit_bytes: Optional[int] = None,
    ) -> ExecAnswer:
        """Run a command to its end: {"stdout", "stderr", "exit_code", …}."""
        if isinstance(args, str):
            raise TypeError("args must be a list of strings; for a shell, give ['/bin/sh', '-c', command]")
        body = given(
            args=list(args),
            timeout_secs=timeout_secs,
            env=None if env is None else dict(env),
            cwd=cwd,
            user=user,
            stdin=stdin,
            output_limit_bytes=output_limit_bytes,
        )
        return await self.transport.call("POST", box_route(id, "exec"), body)

    async def eval_code(self, id: str, code: str, timeout_secs: Optional[float] = None) -> EvalAnswer:
        """Evaluate code in the warm runtime: {"result", "value", "error", …}."""
        return await self.transport.call("POST", box_route(id, "eval"), given(code=code, timeout_secs=timeout_secs))

    def eval_all(
        self, sandboxes: Iterable[S], code: str, timeout: Optional[float] = None
    ) -> AsyncIterator[Tuple[S, EvalOutcome]]:
        """Evaluate the same code in many sandboxes at once; yield (sandbox, outcome) as they answer.

        Sandboxes are given, and yielded, as objects, records or ids, 1 to 1000 different
        ones. timeout counts in each. A failure in one is in its outcome and nothing to
        the others; if the daemon stops answering, PartialEvalError names those that have
        not. It begins with the first step of the iteration, and whoever stops iterating
        interrupts the evaluations that still run.
        """
        boxes = listed(sandboxes)
        body = given(sandboxes=[id_of(box) for box in boxes], code=code, timeout_secs=timeout)
        return eval_all(self.transport, route("eval"), boxes, body)

    async def eval_each(self, sandboxes: Iterable[S], code: str, timeout: Optional[float] = None) -> List[EvalOutcome]:
        """Evaluate the same code in many sandboxes at once, and return their outcomes, in their order.

        See eval_all, which does not wait for all.
        """
        boxes = listed(sandboxes)
        outcomes = {outcome.sandbox_id: outcome async for _, outcome in self.eval_all(boxes, code, timeout)}
        return [outcomes[id_of(box)] for box in boxes]

    async def interrupt_sandbox(self, id: str) -> None:
        """Interrupt the evaluation that runs in a sandbox."""
        await self.transport.call("POST", box_route(id, "interrupt"))

    async def ping_sandbox(self, id: str) -> Ping:
        """Ask a sandbox for a sign of life."""
        return await self.transport.call("POST", box_route(id, "ping"))


def _hub(url: Optional[str], token: Optional[str]) -> Dict[str, Optional[str]]:
    """Return the fields that say which hub is meant."""
    return {
        "hub_url": url or os.environ.get("FORKD_HUB_URL") or None,
        "hub_token": token or os.environ.get("FORKD_HUB_TOKEN") or None,
    }
