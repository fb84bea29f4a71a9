"""The daemon."""

from __future__ import annotations

import json
import os
import time
from typing import IO, Any, Callable, Dict, List, Mapping, Optional, Sequence, Union
from urllib.parse import quote, urlencode

from ._data import Data, pieces_of
from ._errors import ForkdError, PartialSpawnError
from ._transport import STREAM_SECS, Transport, json_body

JSON = {"Content-Type": "application/json"}
OnProgress = Optional[Callable[[Dict[str, Any]], None]]


def box_path(id: str, rest: str = "", **query: Any) -> str:
    """Return the path of a sandbox's route. Query values may be bytes."""
    path = f"/v1/sandboxes/{quote(id, safe='')}{rest}"
    given = {name: value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def tag_path(tag: str, rest: str = "", **query: Any) -> str:
    """Return the path of a snapshot's route."""
    path = f"/v1/snapshots/{quote(tag, safe='')}{rest}"
    return f"{path}?{urlencode(query)}" if query else path


def workspace_path(name: str, rest: str = "") -> str:
    """Return the path of a workspace's route."""
    return f"/v1/workspaces/{quote(name, safe='')}{rest}"


def without_none(**fields: Any) -> Dict[str, Any]:
    """Return the fields that are given."""
    return {name: value for name, value in fields.items() if value is not None}


class Controller:
    """Speaks to a daemon. Answers are the dictionaries that the REST API has.

    It keeps connections and may be used from several threads.
    """

    def __init__(self, url: Optional[str] = None, token: Optional[str] = None):
        self.transport = Transport(url, token)

    def __enter__(self) -> "Controller":
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()

    def close(self) -> None:
        """Drop idle connections."""
        self.transport.close()

    # Daemon

    def health(self) -> Dict[str, Any]:
        """Ask whether the daemon answers; this needs no token."""
        return self.transport.call("GET", "/healthz")

    def version(self) -> Dict[str, Any]:
        """Tell which daemon answers."""
        return self.transport.call("GET", "/version")

    # Snapshots

    def list_snapshots(self) -> List[Dict[str, Any]]:
        """List the snapshots."""
        return self.transport.call("GET", "/v1/snapshots")

    def get_snapshot(self, tag: str) -> Dict[str, Any]:
        """Describe a snapshot, with its sizes and what depends on it."""
        return self.transport.call("GET", tag_path(tag, "/info"))

    def create_snapshot(
        self,
        tag: str,
        on_progress: OnProgress = None,
        **options: Any,
    ) -> Dict[str, Any]:
        """Make a snapshot and return it.

        options are the fields of the REST request: memory_mib, vcpus, disk_mib,
        packages, mirror, runtime, modules, warm_up, setup. on_progress is called
        with {"step", "message", "done", "total"} as the work goes on.
        """
        return self._follow("/v1/snapshots", {"tag": tag, **options}, on_progress)

    def _follow(self, path: str, body: Any, on_progress: OnProgress) -> Dict[str, Any]:
        """Ask for work that takes its time and return the snapshot it ends with."""
        headers = {**JSON, "Accept": "application/x-ndjson"}
        with self.transport.exchange("POST", path, json_body(body), headers, STREAM_SECS) as answer:
            for event in answer.events():
                if "error" in event:
                    raise event_error(event["error"])
                if "snapshot" in event:
                    answer.read()
                    return event["snapshot"]
                if on_progress is not None:
                    on_progress(event["progress"])
        raise ForkdError("waiting for the snapshot: the daemon stopped answering half way", code="unavailable")

    def delete_snapshot(self, tag: str, force: bool = False, cascade: bool = False) -> List[str]:
        """Remove a snapshot and return the tags of all that went with it.

        While sandboxes run from it or other snapshots stand on it that is an
        "in_use" error, whose dependents names them. force ends the sandboxes, and
        the snapshots keep what they need of it; cascade removes those too, and ends
        all their sandboxes. The two exclude each other.
        """
        answer = self.transport.call("DELETE", tag_path(tag, force=str(force).lower(), cascade=str(cascade).lower()))
        return answer["removed"] if answer else [tag]

    def wait_snapshot(self, tag: str, timeout: Optional[float] = None) -> Dict[str, Any]:
        """Return a snapshot when it is no longer being written.

        One that could not be written is an error, as is one that is not ready
        after timeout seconds.
        """
        end = None if timeout is None else time.monotonic() + timeout
        pause = 0.001
        while True:
            info = self.get_snapshot(tag)
            if info["status"] == "ready":
                return info
            if info["status"] == "failed":
                raise ForkdError(f"snapshot {tag} could not be written: {info.get('warning', '')}", code="not_bootable")
            if end is not None and time.monotonic() >= end:
                raise ForkdError(f"snapshot {tag} is still being written after {timeout:g} s", code="timeout")
            time.sleep(pause)
            pause = min(pause * 1.2, 0.1)

    def derive_snapshot(
        self,
        tag: str,
        new_tag: str,
        commands: Sequence[Union[str, Sequence[str]]] = (),
        evals: Sequence[str] = (),
        on_progress: OnProgress = None,
    ) -> Dict[str, Any]:
        """Make a snapshot of another one after some work in a child of it.

        A command is a string for /bin/sh or a list of arguments, and must exit with
        0. The evaluations come after all commands and must not raise.
        """
        lines = [["/bin/sh", "-c", cmd] if isinstance(cmd, str) else list(cmd) for cmd in commands]
        body = {"tag": new_tag, "commands": lines, "evals": list(evals)}
        return self._follow(tag_path(tag, "/derive"), body, on_progress)

    def compact_snapshot(self, tag: str, to: str) -> Dict[str, Any]:
        """Flatten the chain of a snapshot into a new one that stands on no other."""
        return self.transport.call("POST", tag_path(tag, "/compact"), {"to": to}, JSON)

    def verify_snapshot(self, tag: str, on_progress: OnProgress = None) -> Dict[str, Any]:
        """Compare every byte of a snapshot with its hashes; damage is an error."""
        return self._follow(tag_path(tag, "/verify"), {}, on_progress)

    def pack_snapshot(self, tag: str, to: IO[bytes]) -> int:
        """Write a snapshot, with all that it stands on, to a binary file; return the size."""
        return self.transport.download(tag_path(tag, "/pack"), to)

    def unpack_snapshot(self, pack: Data, tag: Optional[str] = None) -> Dict[str, Any]:
        """Make a snapshot of a pack: bytes, a binary file, or pieces of bytes.

        Its tag is the one that it was packed with unless another is given.
        """
        path = "/v1/snapshots/unpack" + ("" if tag is None else "?" + urlencode({"tag": tag}))
        with self.transport.exchange("POST", path, pieces_of(pack), {"Content-Type": "application/zstd"}) as answer:
            return json.loads(answer.read())

    def push_snapshot(
        self,
        tag: str,
        reference: str,
        on_progress: OnProgress = None,
        *,
        hub_url: Optional[str] = None,
        hub_token: Optional[str] = None,
    ) -> Dict[str, Any]:
        """Have the daemon send a snapshot elsewhere.

        reference is the URL of a pack, owner/name[:version] on a hub, or
        oci://host/repository[:tag]. The hub is FORKD_HUB_URL with FORKD_HUB_TOKEN
        by default.
        """
        body = without_none(reference=reference, **_hub(hub_url, hub_token))
        return self._follow(tag_path(tag, "/push"), body, on_progress)

    def pull_snapshot(
        self,
        reference: str,
        tag: Optional[str] = None,
        on_progress: OnProgress = None,
        *,
        hub_url: Optional[str] = None,
        hub_token: Optional[str] = None,
    ) -> Dict[str, Any]:
        """Have the daemon fetch a snapshot; see push_snapshot for references."""
        body = without_none(reference=reference, tag=tag, **_hub(hub_url, hub_token))
        return self._follow("/v1/snapshots/pull", body, on_progress)

    def tree(self) -> List[Dict[str, Any]]:
        """List snapshots and sandboxes with what each of them comes from."""
        return self.transport.call("GET", "/v1/tree")

    # Workspaces

    def create_workspace(self, name: str, tag: str, memory_limit_mib: Optional[int] = None) -> Dict[str, Any]:
        """Make a workspace, a named sandbox that outlives the daemon, and start it."""
        body = without_none(name=name, snapshot_tag=tag, memory_limit_mib=memory_limit_mib)
        return self.transport.call("POST", "/v1/workspaces", body, JSON)

    def list_workspaces(self) -> List[Dict[str, Any]]:
        """List the workspaces."""
        return self.transport.call("GET", "/v1/workspaces")

    def get_workspace(self, name: str) -> Dict[str, Any]:
        """Describe a workspace; "sandbox_id" is there while it runs."""
        return self.transport.call("GET", workspace_path(name))

    def suspend_workspace(self, name: str) -> Dict[str, Any]:
        """Save a workspace to disk and end its sandbox."""
        return self.transport.call("POST", workspace_path(name, "/suspend"))

    def resume_workspace(self, name: str) -> Dict[str, Any]:
        """Let a suspended workspace run on."""
        return self.transport.call("POST", workspace_path(name, "/resume"))

    def delete_workspace(self, name: str) -> None:
        """Remove a workspace and what was saved of it."""
        self.transport.call("DELETE", workspace_path(name))

    # Sandboxes

    def spawn_sandboxes(
        self,
        tag: str,
        n: int = 1,
        *,
        live_fork: bool = False,
        per_child_netns: bool = False,
        prewarm: bool = False,
        memory_limit_mib: Optional[int] = None,
        timeout_secs: Optional[float] = None,
        idempotency_key: Optional[str] = None,
    ) -> List[Dict[str, Any]]:
        """Fork n children of a snapshot.

        timeout_secs is their lifetime. If only some can be started,
        PartialSpawnError names them. With an idempotency_key, repeating the call
        returns the same children.
        """
        body = without_none(
            snapshot_tag=tag,
            n=n,
            live_fork=live_fork or None,
            per_child_netns=per_child_netns or None,
            prewarm=prewarm or None,
            memory_limit_mib=memory_limit_mib,
            timeout_secs=timeout_secs,
        )
        return self._spawn(body, idempotency_key)

    def fork_sandbox(
        self,
        id: str,
        n: int = 1,
        *,
        prewarm: bool = False,
        memory_limit_mib: Optional[int] = None,
        timeout_secs: Optional[float] = None,
        idempotency_key: Optional[str] = None,
    ) -> List[Dict[str, Any]]:
        """Fork n children of a running sandbox as it is now; it goes on running."""
        body = without_none(
            from_sandbox=id,
            n=n,
            prewarm=prewarm or None,
            memory_limit_mib=memory_limit_mib,
            timeout_secs=timeout_secs,
        )
        return self._spawn(body, idempotency_key)

    def _spawn(self, body: Dict[str, Any], idempotency_key: Optional[str]) -> List[Dict[str, Any]]:
        headers = dict(JSON)
        if idempotency_key is not None:
            headers["Idempotency-Key"] = idempotency_key
        answer = self.transport.call("POST", "/v1/sandboxes", body, headers)
        if isinstance(answer, dict):
            raise PartialSpawnError(answer["sandboxes"], answer["errors"])
        return answer

    def list_sandboxes(self) -> List[Dict[str, Any]]:
        """List the sandboxes, oldest first."""
        return self.transport.call("GET", "/v1/sandboxes")

    def get_sandbox(self, id: str) -> Dict[str, Any]:
        """Describe a sandbox."""
        return self.transport.call("GET", box_path(id))

    def kill_sandbox(self, id: str) -> None:
        """End a sandbox."""
        self.transport.call("DELETE", box_path(id))

    def branch_sandbox(
        self,
        id: str,
        tag: Optional[str] = None,
        mode: Optional[str] = None,
        wait: bool = True,
    ) -> Dict[str, Any]:
        """Make a snapshot of a running sandbox, which goes on running.

        mode is "live", the default, "diff" or "full". Without wait the answer comes
        as soon as the sandbox runs again; see wait_snapshot.
        """
        body = without_none(tag=tag, mode=mode, wait=wait)
        return self.transport.call("POST", box_path(id, "/branch"), body, JSON)

    def rollback_sandbox(self, id: str, tag: str) -> Dict[str, Any]:
        """Take a sandbox back, in place, to a snapshot that it descends from."""
        return self.transport.call("POST", box_path(id, "/rollback"), {"snapshot_tag": tag}, JSON)

    def exec_command(
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
    ) -> Dict[str, Any]:
        """Run a command to its end: {"stdout", "stderr", "exit_code", …}."""
        if isinstance(args, str):
            raise TypeError("args must be a list of strings; for a shell, give ['/bin/sh', '-c', command]")
        body = without_none(
            args=list(args),
            timeout_secs=timeout_secs,
            env=None if env is None else dict(env),
            cwd=cwd,
            user=user,
            stdin=stdin,
            output_limit_bytes=output_limit_bytes,
        )
        return self.transport.call("POST", box_path(id, "/exec"), body, JSON)

    def eval_code(self, id: str, code: str, timeout_secs: Optional[float] = None) -> Dict[str, Any]:
        """Evaluate code in the warm runtime: {"result", "value", "error", …}."""
        body = without_none(code=code, timeout_secs=timeout_secs)
        return self.transport.call("POST", box_path(id, "/eval"), body, JSON)

    def interrupt_sandbox(self, id: str) -> None:
        """Interrupt the evaluation that runs in a sandbox."""
        self.transport.call("POST", box_path(id, "/interrupt"))

    def ping_sandbox(self, id: str) -> Dict[str, Any]:
        """Ask a sandbox for a sign of life."""
        return self.transport.call("POST", box_path(id, "/ping"))


def event_error(body: Mapping[str, Any]) -> ForkdError:
    """Return the error that a stream has told."""
    return ForkdError(body["error"], body["code"], body.get("hint", ""))


def _hub(url: Optional[str], token: Optional[str]) -> Dict[str, Optional[str]]:
    """Return the fields that say which hub is meant."""
    return {
        "hub_url": url or os.environ.get("FORKD_HUB_URL") or None,
        "hub_token": token or os.environ.get("FORKD_HUB_TOKEN") or None,
    }
