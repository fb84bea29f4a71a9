"""The daemon."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence
from urllib.parse import quote, urlencode

from ._errors import ForkdError, PartialSpawnError
from ._transport import STREAM_SECS, Transport, json_body


def box_path(id: str, rest: str = "", **query: Any) -> str:
    """Return the path of a sandbox's route. Query values may be bytes."""
    path = f"/v1/sandboxes/{quote(id, safe='')}{rest}"
    given = {name: value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


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
        return self.transport.call("GET", f"/v1/snapshots/{quote(tag, safe='')}/info")

    def create_snapshot(
        self,
        tag: str,
        on_progress: Optional[Callable[[Dict[str, Any]], None]] = None,
        **options: Any,
    ) -> Dict[str, Any]:
        """Make a snapshot and return it.

        options are the fields of the REST request: memory_mib, vcpus, disk_mib,
        packages, mirror, runtime, modules, warm_up, setup. on_progress is called
        with {"step", "message", "done", "total"} as the work goes on.
        """
        body = json_body({"tag": tag, **options})
        headers = {"Content-Type": "application/json", "Accept": "application/x-ndjson"}
        with self.transport.exchange("POST", "/v1/snapshots", body, headers, STREAM_SECS) as answer:
            for event in answer.events():
                if "error" in event:
                    raise event_error(event["error"])
                if "snapshot" in event:
                    answer.read()
                    return event["snapshot"]
                if on_progress is not None:
                    on_progress(event["progress"])
        raise ForkdError("making the snapshot: the daemon stopped answering half way", code="unavailable")

    def delete_snapshot(self, tag: str, force: bool = False, cascade: bool = False) -> None:
        """Remove a snapshot; force ends the sandboxes that run from it."""
        query = urlencode({"force": str(force).lower(), "cascade": str(cascade).lower()})
        self.transport.call("DELETE", f"/v1/snapshots/{quote(tag, safe='')}?{query}")

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
        headers = {"Content-Type": "application/json"}
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
        return self.transport.call("POST", box_path(id, "/exec"), body, {"Content-Type": "application/json"})

    def eval_code(self, id: str, code: str, timeout_secs: Optional[float] = None) -> Dict[str, Any]:
        """Evaluate code in the warm runtime: {"result", "value", "error", …}."""
        body = without_none(code=code, timeout_secs=timeout_secs)
        return self.transport.call("POST", box_path(id, "/eval"), body, {"Content-Type": "application/json"})

    def interrupt_sandbox(self, id: str) -> None:
        """Interrupt the evaluation that runs in a sandbox."""
        self.transport.call("POST", box_path(id, "/interrupt"))

    def ping_sandbox(self, id: str) -> Dict[str, Any]:
        """Ask a sandbox for a sign of life."""
        return self.transport.call("POST", box_path(id, "/ping"))


def event_error(body: Mapping[str, Any]) -> ForkdError:
    """Return the error that a stream has told."""
    return ForkdError(body["error"], body["code"], body.get("hint", ""))
