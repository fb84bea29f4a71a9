"""The records of the REST API, as dictionaries with known keys."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, TypedDict


class _Version(TypedDict):
    version: str
    api: str
    engine: str
    pid: int
    started_at_unix: int


class Version(_Version, total=False):
    executor: str


class _Snapshot(TypedDict):
    tag: str
    dir: str
    created_at_unix: int
    status: str  # writing, ready or failed
    bootable: bool


class SnapshotInfo(_Snapshot, total=False):
    """A snapshot; from "engine" on only if it was asked for alone."""

    branched_from: str
    mode: str
    pause_ms: float
    warning: str
    engine: str
    vcpus: int
    memory_mib: int
    modules: List[str]
    memory_logical_bytes: int
    memory_physical_bytes: int
    disk_physical_bytes: int
    vmstate_bytes: int
    content_hash: str
    parent_tag: str
    parent_content_hash: str
    chain_depth: int
    ancestors: List[str]
    dependents: List[str]
    dependent_snapshots: List[str]
    exclusive_bytes: int


class Progress(TypedDict):
    """A step of long work. total is 0 while it is unknown."""

    step: str
    message: str
    done: int
    total: int


class Limits(TypedDict, total=False):
    """What a sandbox may take of its host, besides memory.

    cpus is processors' worth of time, cpu_weight its share of them where sandboxes
    compete (100 if it has none). pids_limit counts processes and threads, and
    disk_limit_mib what it may write besides what its disk had. The rates are for
    reading and writing together.
    """

    cpus: Optional[float]
    cpu_weight: Optional[int]
    pids_limit: Optional[int]
    disk_limit_mib: Optional[int]
    disk_bytes_per_sec: Optional[int]
    net_bytes_per_sec: Optional[int]


class Shortage(TypedDict):
    """What a host lacked for a request that it did not begin."""

    resource: str  # memory, disk, descriptors or sandboxes
    needed: int
    free: int
    held: int


class _Workspace(TypedDict):
    name: str
    state: str  # running or suspended
    snapshot_tag: str
    base_tag: str
    created_at_unix: int
    memory_limit_mib: Optional[int]


class Workspace(_Workspace, Limits, total=False):
    idle_timeout_secs: float
    sandbox_id: str  # while it runs
    suspended_at_unix: int
    warning: str


class _TreeNode(TypedDict):
    kind: str  # snapshot or sandbox
    name: str
    created_at_unix: int
    state: str
    private_kib: int
    disk_kib: int


class TreeNode(_TreeNode, total=False):
    parent: str
    source: str
    workspace: str


class _Sandbox(TypedDict):
    id: str
    snapshot_tag: str
    engine: str
    state: str  # running, paused, exited or crashed
    created_at_unix: int
    expires_at: Optional[str]
    pid: int
    netns: Optional[str]
    guest_addr: Optional[str]
    memory_limit_mib: Optional[int]
    private_kib: int
    translated_blocks: int
    metadata: Dict[str, str]
    on_timeout: str  # kill or pause
    auto_resume: bool


class SandboxInfo(_Sandbox, Limits, total=False):
    idle_timeout_secs: float
    reason: str
    paused_at: str
    branched_from: str
    workspace: str


class Ping(TypedDict):
    ok: bool
    round_trip_ms: float
    agent_version: str
    uptime_secs: float


class _Exec(TypedDict):
    stdout: str
    stderr: str
    exit_code: int
    signal: Optional[str]
    timed_out: bool
    stdout_truncated: bool
    stdout_total_bytes: int
    stderr_truncated: bool
    stderr_total_bytes: int
    duration_ms: float


class ExecAnswer(_Exec, total=False):
    stdout_b64: str
    stderr_b64: str


class EvalFailure(TypedDict):
    type: str
    message: str
    traceback: str


class _Eval(TypedDict):
    result: Optional[str]
    error: Optional[EvalFailure]
    exit_code: int
    stdout: str
    stderr: str
    stdout_truncated: bool
    stderr_truncated: bool


class EvalAnswer(_Eval, total=False):
    value: Any  # only if JSON carries it faithfully
    result_truncated: bool  # result is only the beginning; older daemons do not tell


class Metrics(TypedDict):
    """What a sandbox uses. cpu_percent is of one vCPU, since the last time somebody asked, or the fork."""

    time: str
    vcpus: int
    cpu_percent: float
    mem_total_bytes: int
    mem_used_bytes: int
    mem_cache_bytes: int
    disk_total_bytes: int
    disk_used_bytes: int
    private_bytes: int


class ForkFields(Limits, total=False):
    """What a fork may be given besides its source; see also Limits.

    timeout_secs is the lifetime, at whose end on_timeout says whether to "kill" the
    sandbox or to "pause" it; so it is when nobody has used it for idle_timeout_secs. env is for every command and run in it. auto_resume
    resumes a paused one when it is used.
    """

    timeout_secs: Optional[float]
    idle_timeout_secs: Optional[float]
    memory_limit_mib: Optional[int]
    prewarm: bool
    metadata: Optional[Dict[str, str]]
    env: Optional[Dict[str, str]]
    on_timeout: Optional[str]
    auto_resume: bool
    per_child_netns: bool
    live_fork: bool


class ForkOptions(Limits, total=False):
    """What a new sandbox may be given; see also Limits.

    timeout ends it after so many seconds, and idle_timeout when nobody has used it for
    so many; with on_timeout="pause" it is paused instead. metadata is to find it by, env is for every command and run in it,
    auto_resume resumes it when it is used while it is paused, and prewarm makes it
    ready before the call returns instead of before its first use.
    """

    timeout: Optional[float]
    idle_timeout: Optional[float]
    memory_limit_mib: Optional[int]
    prewarm: bool
    metadata: Optional[Dict[str, str]]
    env: Optional[Dict[str, str]]
    on_timeout: Optional[str]
    auto_resume: bool


class CommandOptions(TypedDict, total=False):
    """How a command runs.

    timeout kills it, and all that it has started, after so many seconds. env is
    added to the sandbox's environment. user is a name or uid[:gid], root by default.
    """

    timeout: Optional[float]
    env: Optional[Mapping[str, str]]
    cwd: Optional[str]
    user: Optional[str]


class CodeContext(TypedDict):
    """An interpreter that keeps state between runs."""

    id: str
    language: str
    cwd: str
