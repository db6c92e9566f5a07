"""A worker's part in its job: the world, notices, progress, the key-value store, and going on in the next generation."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Optional, Type, Union

from . import _wire
from ._client import Client
from ._local import LocalStore
from ._page import Page, now_us
from .errors import ElasticError, InvalidValue, NotLaunched, ProtocolMismatch, Timeout, error_for, name_of
from .world import Notice, Phase, World

_ANSWER_S = 10.0  # how long an agent may take for what does not wait for anything
_AHEAD_S = 3600.0  # the agent ends us when the generation comes to nothing
_FOREVER = (1 << 64) - 1
_WORLD_NUMS, _WORLD_STRS = 8, 4
_NOTICE_KIND, _NOTICE_SAVE = 0x3F, 0x40
_MESSAGE_MAX = 1023

Value = Union[bytes, str]


def join(required: bool = False) -> "Job":
    """Join the agent that started this process.

    A script that is run by hand gets a world of one, in which everything but `rejoin()` works; with `required` that is NotLaunched.
    An agent that cannot be reached is an error, never silently a world of one.
    """
    path = os.environ.get("ELASTIC_SOCKET")
    if path:
        return Job(Client(path, _ANSWER_S), Page(os.environ.get("ELASTIC_PAGE_FD")))
    size = os.environ.get("WORLD_SIZE", "1")
    if required or size != "1":
        why = f"WORLD_SIZE={size} was set by another launcher" if size != "1" else "it was run by itself"
        raise NotLaunched(f"this script was not started by elastic-run (ELASTIC_SOCKET is not set; {why}): "
                          "start it as `elastic-run [OPTIONS] SCRIPT`")
    return Job(None, Page(None))


class Job:
    """A handle from `join()`. Any thread may use it; a forked child (a DataLoader's worker) may not, and is told so.

    As a context manager it takes leave at the end; an exception that ends the block is told to the agent as this worker's last words.
    """

    def __init__(self, client: Optional[Client], page: Page) -> None:
        self._client = client
        self._page = page
        self._local = LocalStore()
        self._pid = os.getpid()
        self._rejoins = False
        self._checkpoint_taken = False
        self._ahead = False  # the generation is not sealed yet, as far as is known: requests wait for it
        self._base_step = 0
        self._stepped_us = 0  # when the newest step ended; 0: none in this generation
        self._left = client is None
        self._world = World(checkpoint_dir=os.environ.get("ELASTIC_CHECKPOINT_DIR", ""))
        if client is not None:
            try:
                self._take_world(client.call(_wire.Message(_wire.HELLO, [_wire.PROTOCOL, self._pid]), _AHEAD_S), "join")
            except BaseException:
                client.close()
                raise

    # ---- the world

    @property
    def world(self) -> World:
        """The world of the generation this process is in; `rejoin()` makes it another."""
        return self._world

    @property
    def has_agent(self) -> bool:
        """Whether elastic-run started this process."""
        return self._client is not None

    # ---- notices and progress: loads from and stores into a shared page

    def notice(self) -> Notice:
        """What this worker is told. A hint until the ranks have agreed on it: not all learn of it at the same time."""
        return Notice(self._notice_word() & _NOTICE_KIND)

    def take_notice(self) -> Notice:
        """As notice(), but CHECKPOINT only once: the word stays until the agent changes it."""
        notice = self.notice()
        taken, self._checkpoint_taken = self._checkpoint_taken, notice == Notice.CHECKPOINT
        return Notice.NONE if notice == Notice.CHECKPOINT and taken else notice

    def notice_saves(self) -> bool:
        """With REJOIN: whether the state is to be on disk before the ranks leave."""
        return bool(self._notice_word() & _NOTICE_SAVE)

    def progress(self, step: int, phase: Phase = Phase.DATA, *, loss: Optional[float] = None, samples: Optional[int] = None,
                 tokens: Optional[int] = None, total_steps: Optional[int] = None) -> None:
        """Say where this worker is. `step` is the last finished one (0: none yet), `phase` what it does now.

        With Phase.STARTUP, `step` is where the work begins (what a checkpoint or a peer brought), and does not count as done here.
        `samples` and `tokens` are those of this rank so far, `total_steps` what the run wants; all for metrics and status.
        """
        now = now_us()
        for name, value in (("samples", samples), ("tokens", tokens), ("total_steps", total_steps)):
            if value is not None:
                self._page.set(name, value)
        if loss is not None:
            self._page.set_loss(loss)
        if phase == Phase.STARTUP:
            self._base_step, self._stepped_us = step, 0
        elif step > self._base_step:
            self._finished(step, now)
        self._page.set("step_us", now)
        self._page.set("step", step)
        self._page.set("phase", phase)

    def communicator_ready(self) -> None:
        """The process group of this generation stands: what the ledger of time counts as `comm_init` ends here."""
        if self._page.get("first_step_us") == 0:
            self._page.set("connected_us", now_us())

    def ready(self) -> None:
        """Start-up is over: the model is built, the process group stands."""
        if self._client:
            self._ask(self._request(_wire.READY, _wire.READY_REJOINS if self._rejoins else 0), "ready")

    # ---- the key-value store: of the job's workers, fenced to the generation

    def put(self, key: str, value: Value) -> None:
        """Set a key (1 to 512 bytes) to a value (at most 48 KiB). Keys are seen by the workers of this generation alone."""
        _check_key(key)
        data = value.encode() if isinstance(value, str) else bytes(memoryview(value))  # bytes(5) would be five NULs
        if len(data) > _wire.VALUE_MAX:
            raise InvalidValue(f"value of '{key}' has {len(data)} bytes, {_wire.VALUE_MAX} are allowed")
        if self._client is None:
            self._local.put(key, data)
        else:
            self._ask(self._request(_wire.KV_PUT, strs=[key.encode(), data]), f"put '{key}'")
            self._ahead = False  # it was answered, so the generation is sealed

    def get(self, key: str, timeout: Optional[float] = 0.0) -> Optional[bytes]:
        """The value of a key, waited for so many seconds (None: without limit); None when it is not there in time."""
        _check_key(key)
        if self._client is None:
            return self._local.get(key, timeout)
        request = self._request(_wire.KV_GET, _microseconds(timeout), strs=[key.encode()])
        reply = self._ask(request, f"get '{key}'", timeout)
        return None if reply.status > 0 else reply.strs[0]

    def wait(self, key: str, timeout: Optional[float] = None) -> bytes:
        """As get(); Timeout when it is not there in time."""
        value = self.get(key, timeout)
        if value is None:
            raise Timeout(f"'{key}' was not set within {timeout:g} s")
        return value

    def add(self, key: str, delta: int = 1) -> int:
        """Add to a decimal counter (missing: 0), atomically over all workers; the value after it."""
        _check_key(key)
        if self._client is None:
            return self._local.add(key, delta)
        reply = self._ask(self._request(_wire.KV_ADD, delta, strs=[key.encode()]), f"add to '{key}'")
        self._ahead = False
        return reply.nums[0] - (1 << 64 if reply.nums[0] >> 63 else 0)

    def barrier(self, name: str, timeout: Optional[float] = None) -> None:
        """Wait for all ranks. Timeout when they don't all come in time. Use a name again and again: a generation has 1024 of them."""
        _check_key(name)
        if self._client is None:
            return
        reply = self._ask(self._request(_wire.BARRIER, _microseconds(timeout), strs=[name.encode()]), f"barrier '{name}'", timeout)
        if reply.status > 0:
            raise Timeout(f"barrier '{name}': not all ranks arrived within {timeout:g} s")

    # ---- generations

    def offer_rejoin(self) -> None:
        """Before ready(): this process goes on after a change, by rejoin(). It is not stopped by signal from then on, but by notices."""
        self._rejoins = True
        self._page.set("rejoins", 1)  # at once: the generation may end before ready()

    def rejoin(self, timeout: Optional[float] = None) -> Optional[World]:
        """Leave this generation, with its process group destroyed, and wait for the next one.

        Its world; keys and barriers are those of it, and ready() is to be said again. None: the job is over, or goes on without this
        process: exit. NotLaunched: there is no agent.
        """
        if self._client is None:
            raise NotLaunched("rejoin: this script was not started by elastic-run, so there is no next generation")
        left = self._world.generation
        self._check_process()
        self._take_world(self._client.call(self._request(_wire.LEFT), timeout), "rejoin", done_is_none=True)
        if self._left:
            return None
        if self._world.generation <= left:
            raise ProtocolMismatch(f"rejoin: generation {self._world.generation} after {left}")
        return self._world

    # ---- checkpoints and the end

    def commit(self, step: int, path: str, *, digest: str = "", size: int = 0, written: Optional[int] = None, pause: float = 0.0,
               duration: float = 0.0) -> None:
        """Record a published checkpoint as the job's newest. Stale: this generation may not commit any more; remove what was written.

        Sizes in bytes, times in seconds; `digest` in hex.
        """
        nums = [step, size, size if written is None else written, int(pause * 1e6), int(duration * 1e6), 0]
        if self._client:
            self._ask(self._request(_wire.COMMIT, *nums, strs=[os.fsencode(path), digest.encode()]), "commit")

    def commit_failed(self, step: int, path: str, error: OSError) -> None:
        """Tell the operator that a checkpoint could not be written."""
        if self._client:
            nums = [step, 0, 0, 0, 0, -(error.errno or 5)]
            self._ask(self._request(_wire.COMMIT, *nums, strs=[os.fsencode(path), b""]), "report the checkpoint")

    def loaded(self, step: int, path: str, source: str = "disk") -> None:
        """Tell what was loaded at the start: `source` is store, disk, peer or local."""
        if self._client:
            self._ask(self._request(_wire.LOADED, step, strs=[os.fsencode(path), source.encode(), b""]), "report what was loaded")

    def fail(self, message: str) -> None:
        """This worker's last words, for the job's summary; then exit with a code of your own."""
        text = message.encode("utf-8", "replace")[:_MESSAGE_MAX]
        if self._client and not self._left:
            self._ask(self._request(_wire.FAIL, strs=[text.replace(b"\0", b" ")]), "report the failure")

    def close(self) -> None:
        """Take leave of the agent. Done twice it is fine."""
        if self._client is None or self._pid != os.getpid():
            return
        try:
            if not self._left:
                self._left = True
                self._ask(self._request(_wire.BYE), "leave")
        except ElasticError:
            pass
        self._client.close()

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], problem: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        if problem is not None and isinstance(problem, Exception):
            try:
                self.fail(f"{type(problem).__name__}: {problem}")
            except ElasticError:
                pass
        self.close()

    # ---- inside

    def _notice_word(self) -> int:
        word = self._page.notice_word()
        return word & 0xFF if word >> 8 >= self._world.generation else 0  # about an older generation it is history

    def _finished(self, step: int, now: int) -> None:
        before = self._page.get("step")
        if self._page.get("first_step") == 0:
            self._page.set("first_step", step)
            self._page.set("first_step_us", now)
        if step <= before:
            return
        if self._stepped_us:
            self._page.count_steps(step - before, now - self._stepped_us)
        self._stepped_us = now

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise ElasticError("this process was forked from the worker: only the worker itself may talk to the agent")

    def _request(self, kind: int, *nums: int, strs: Optional[list[bytes]] = None) -> _wire.Message:
        return _wire.Message(kind, [self._world.generation, *nums], strs or [])

    def _ask(self, request: _wire.Message, what: str, timeout: Optional[float] = 0.0) -> _wire.Message:
        """The reply; `timeout` is what the request itself waits for. Positive statuses are the caller's."""
        self._check_process()
        limit = _AHEAD_S if self._ahead else None if timeout is None else timeout + _ANSWER_S
        assert self._client
        try:
            reply = self._client.call(request, limit)
        except ElasticError as e:
            raise error_for(e.code, f"{what}: {e}") from None
        if reply.type != _wire.REPLY:
            raise ProtocolMismatch(f"{what}: unexpected answer")
        if reply.status < 0:
            raise _refused(reply, what)
        return reply

    def _take_world(self, reply: _wire.Message, what: str, done_is_none: bool = False) -> None:
        if reply.type == _wire.REPLY and reply.status > 0 and done_is_none:
            self._left = True
            return
        if reply.type == _wire.REPLY and reply.status < 0:
            raise _refused(reply, what)
        if reply.type != _wire.WORLD or len(reply.nums) < _WORLD_NUMS or len(reply.strs) < _WORLD_STRS:
            raise ProtocolMismatch(f"{what}: the agent's answer is not understood")
        self._ahead = len(reply.nums) > _WORLD_NUMS and reply.nums[_WORLD_NUMS] != 0
        skips = reply.text(_WORLD_STRS) if len(reply.strs) > _WORLD_STRS else ""
        self._world = World(*reply.nums[:_WORLD_NUMS], *(reply.text(i) for i in range(_WORLD_STRS)),
                            tuple(int(step) for step in skips.split(",") if step.isdecimal()))


def _refused(reply: _wire.Message, what: str) -> ElasticError:
    """The text of a refused request is its last string."""
    text = reply.text(-1) if reply.strs and reply.strs[-1] else name_of(reply.status)
    return error_for(reply.status, f"{what}: {text}")


def _check_key(key: str) -> None:
    n = len(key.encode())
    if not 1 <= n <= _wire.KEY_MAX or "\0" in key:
        raise InvalidValue(f"a key of {n} bytes{' with a NUL' if chr(0) in key else ''}: 1 to {_wire.KEY_MAX} without NUL are allowed")


def _microseconds(timeout: Optional[float]) -> int:
    return _FOREVER if timeout is None else max(0, int(timeout * 1e6))
