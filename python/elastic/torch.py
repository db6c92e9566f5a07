"""PyTorch programs that live through a change of their world: destroy the process group, rejoin, make another, take the state from a
survivor. Needs PyTorch >= 1.13; gloo is what is tested, nccl follows the same way.

    def generation():
        nonlocal applied
        applied = elastic.torch.sync(job, [model, optimizer], applied)
        ddp = DistributedDataParallel(model)
        job.ready()
        while applied < steps:
            ...backward...
            decision = elastic.torch.vote(job)
            optimizer.step()
            applied += 1
            job.progress(applied)
            if decision.saves:
                ...save...
            decision.follow()

    elastic.torch.run(job, generation)
"""

from __future__ import annotations

import gc
import os
import socket
import stat
import threading
import time
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Callable, Iterator, NamedTuple, Optional, Sequence

import torch
import torch.distributed as dist

from .errors import AgentLost, ElasticError, NotLaunched, Stale, Timeout
from .job import Job
from .world import Notice, Phase

_WATCH_S = 0.02
_NETWORK_WORDS = ("gloo", "nccl", "connection", "socket", "timed out", "timeout", "reset by peer", "broken pipe", "process group")


class WorldChanged(Exception):
    """This generation is over for this process. `run()` handles it; in a loop of your own: destroy the group, then `job.rejoin()`."""


class Store(dist.Store):
    """The job's key-value store as torch's: no server of torch's own, and the keys of a generation are its own."""

    def __init__(self, job: Job, prefix: str = "torch/", timeout: float = 300.0) -> None:
        super().__init__()
        self._job, self._prefix, self._seconds = job, prefix, timeout

    def set(self, key: str, value: Any) -> None:
        self._job.put(self._prefix + key, value)

    def get(self, key: str) -> bytes:
        try:
            return self._job.wait(self._prefix + key, self._seconds)
        except Timeout as e:
            raise RuntimeError(str(e)) from None  # what callers of torch's own stores expect

    def add(self, key: str, amount: int) -> int:
        return self._job.add(self._prefix + key, amount)

    def check(self, keys: Sequence[str]) -> bool:
        return all(self._job.get(self._prefix + key) is not None for key in keys)

    def wait(self, keys: Sequence[str], timeout: Optional[timedelta] = None) -> None:
        until = time.monotonic() + (timeout.total_seconds() if timeout else self._seconds)
        for key in keys:
            if self._job.get(self._prefix + key, max(0.0, until - time.monotonic())) is None:
                raise RuntimeError(f"wait for '{key}': timed out")

    def set_timeout(self, timeout: timedelta) -> None:
        self._seconds = timeout.total_seconds()

    def deleteKey(self, key: str) -> bool:  # pylint: disable=invalid-name
        return False  # keys end with their generation

    delete_key = deleteKey


class Decision(NamedTuple):
    """What the ranks agreed on at a step: the same on all of them, but for what each was told."""

    sums: list[float]  # of the ranks' values
    saves: bool  # write a checkpoint after this step
    leaves: bool  # then leave the generation

    def follow(self) -> None:
        """After the step was applied, and saved if it was to be: WorldChanged when the ranks leave here."""
        if self.leaves:
            raise WorldChanged("membership changes")


def vote(job: Job, values: Sequence[float] = ()) -> Decision:
    """One small all-reduce, between backward and the optimizer's step: every rank takes part in every step.

    It carries what the ranks were told, so that all act at the same step, and sums `values` (a loss, a count) on the way. It also proves
    that this step's gradients are complete everywhere. WorldChanged: they may not be; do not apply them.
    """
    told = job.take_notice()
    stays = told == Notice.REJOIN
    mine = [told >= Notice.REJOIN, stays, stays and job.notice_saves(), told == Notice.CHECKPOINT, told == Notice.STOP, *values]
    sums = torch.tensor(mine, dtype=torch.float64, device=_device())
    dist.all_reduce(sums)
    told_n, stay_n, save_first, asked, stopped, *rest = sums.tolist()  # waits for the device
    watch = _Watch.of(job)
    if watch and watch.aborted:
        raise WorldChanged("the generation is over")
    leaves = stopped > 0 or told_n == dist.get_world_size()
    saves = asked > 0 or (leaves and stopped == 0 and (save_first > 0 or stay_n == 0))
    return Decision(rest, saves, leaves)


def sync(job: Job, objects: Sequence[Any], applied: int) -> int:
    """Bring all ranks to the newest state that any of them has; the step of that state.

    `applied` is how many steps this rank's state contains: 0 for a newcomer, what a checkpoint held otherwise. `objects` have
    state_dict() and load_state_dict(): model, optimizer, schedule; the same list on every rank. Call it first in a generation, before
    DistributedDataParallel is made. A change of the ranks' state is a broadcast from the lowest rank that has the newest.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    steps = [torch.zeros(1, dtype=torch.int64, device=_device()) for _ in range(size)]
    dist.all_gather(steps, torch.tensor([applied], dtype=torch.int64, device=_device()))
    held = [int(s) for s in steps]
    newest = max(held)
    if newest == 0 or min(held) < newest:
        source = held.index(newest)
        for thing in objects:
            _broadcast(thing, source, keeps=rank == source or (newest > 0 and applied == newest))
        if applied < newest:
            job.loaded(newest, f"rank {source}", "peer")
    job.progress(newest, Phase.STARTUP)
    return newest


@contextmanager
def process_group(job: Job, backend: Optional[str] = None, timeout: float = 20.0, patience: float = 15.0) -> Iterator[None]:
    """torch's default process group for the job's generation, destroyed at the end of the block.

    What fails in the block because another rank was lost comes out as WorldChanged: the agent is asked for up to `patience` seconds
    whether that is so. `timeout` is that of an operation, and is to stay below the job's `stop.grace`.
    """
    watch = _Watch(job)
    try:
        _open(job, backend or ("nccl" if torch.cuda.is_available() else "gloo"), timeout, watch)
        job.communicator_ready()
        yield
    except (AgentLost, NotLaunched):
        raise
    except (RuntimeError, Stale, Timeout) as e:
        if not watch.explains(e, patience):
            raise
        raise WorldChanged(f"the generation is over: {e}") from None
    finally:
        watch.close()
        if dist.is_initialized():
            dist.destroy_process_group()


def run(job: Job, generation: Callable[[], None], backend: Optional[str] = None, timeout: float = 20.0, patience: float = 15.0) -> bool:
    """Call generation() in a process group, and again in each generation that this process goes on in.

    True: it returned. False: the job is over, or goes on without this process (a drained node): exit with 0.
    """
    job.offer_rejoin()
    while True:
        try:
            with process_group(job, backend, timeout, patience):
                generation()
                return True
        except WorldChanged:
            drained = job.notice() == Notice.DRAIN
        if drained:
            return False
        gc.collect()  # what is left of the old group, DDP's reducer with its hooks above all
        if job.rejoin() is None:
            return False


# ---- inside


def _device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")


def _open(job: Job, backend: str, timeout: float, watch: "_Watch") -> None:
    watch.before_open()
    job.barrier("elastic.torch")  # newcomers may still be importing torch: that is not to count as a time limit of the network
    store = Store(job, timeout=timeout)
    dist.init_process_group(backend, store=store, rank=job.world.rank, world_size=job.world.size, timeout=timedelta(seconds=timeout))
    watch.opened(store)


def _flatten(value: Any, tensors: list[torch.Tensor]) -> Any:
    """`value` with its tensors replaced by their place in `tensors`."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return _Place(len(tensors) - 1, tuple(value.shape), value.dtype)
    if isinstance(value, dict):
        return {key: _flatten(v, tensors) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_flatten(v, tensors) for v in value]
    return value


class _Place(NamedTuple):
    index: int
    shape: tuple[int, ...]
    dtype: torch.dtype


def _places(value: Any) -> Iterator[_Place]:
    if isinstance(value, _Place):
        yield value
    elif isinstance(value, dict):
        for v in value.values():
            yield from _places(v)
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from _places(v)


def _fill(value: Any, tensors: Sequence[torch.Tensor]) -> Any:
    if isinstance(value, _Place):
        return tensors[value.index]
    if isinstance(value, dict):
        return {key: _fill(v, tensors) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_fill(v, tensors) for v in value]
    return value


def _broadcast(thing: Any, source: int, keeps: bool) -> None:
    """The state of `thing` on rank `source`, for all; who `keeps` has the same bits already, and only takes part."""
    tensors: list[torch.Tensor] = []
    shape = [_flatten(thing.state_dict(), tensors) if dist.get_rank() == source else None]
    dist.broadcast_object_list(shape, source)
    got: list[torch.Tensor] = []
    for place in _places(shape[0]):
        mine = dist.get_rank() == source
        wire = tensors[place.index].detach().to(_device()).contiguous() if mine else torch.empty(place.shape, dtype=place.dtype,
                                                                                                device=_device())
        dist.broadcast(wire, source)
        got.append(wire)
    if not keeps:
        thing.load_state_dict(_fill(shape[0], got))


def _is_connection(s: socket.socket) -> bool:
    """gloo's listening socket is to be left alone: newer versions end the process when it fails."""
    if s.family not in (socket.AF_INET, socket.AF_INET6) or s.type != socket.SOCK_STREAM:
        return False
    return not s.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)


def _connections() -> Iterator[tuple[int, socket.socket]]:
    """(inode, a copy) of each TCP connection of this process. What is looked at is the copy: while other threads open and close files,
    the number may be another one's already."""
    for name in os.listdir("/proc/self/fd"):
        fd = -1
        try:
            if not stat.S_ISSOCK(os.stat(int(name)).st_mode):
                continue
            fd = os.dup(int(name))
            inode = os.fstat(fd).st_ino
            with socket.socket(fileno=fd) as s:
                fd = -1
                if _is_connection(s):
                    yield inode, s
        except (OSError, ValueError):
            continue
        finally:
            if fd >= 0:
                os.close(fd)


def _tcp_connections() -> set[int]:
    """Inodes of this process's TCP connections."""
    return {inode for inode, _ in _connections()}


def _shut(inodes: set[int]) -> None:
    """End these connections, whatever waits for them: gloo has no abort, but knows what a closed connection is."""
    for inode, s in _connections():
        if inode in inodes:
            with suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)


class _Watch:
    """Ends this process's operations when the agent says that the generation is over: a peer may be lost without a word (its host is
    gone), and nccl does not notice at all."""

    _current: "Optional[_Watch]" = None

    def __init__(self, job: Job) -> None:
        self._job = job
        self._generation = job.world.generation
        self._before: set[int] = set()
        self._connections: Optional[set[int]] = None  # None: being opened
        self._store: Optional[Store] = None  # torch keeps only its C++ half alive
        self._closed = threading.Event()
        self.aborted = False
        self._thread = threading.Thread(target=self._watch, name="elastic-watch", daemon=True)
        _Watch._current = self

    @staticmethod
    def of(job: Job) -> "Optional[_Watch]":
        watch = _Watch._current
        return watch if watch and watch._job is job else None

    def before_open(self) -> None:
        self._before = _tcp_connections()
        if self._job.has_agent:
            self._thread.start()

    def opened(self, store: Store) -> None:
        self._store = store
        self._connections = _tcp_connections() - self._before
        if self.aborted:
            raise WorldChanged("the generation is over")

    def close(self) -> None:
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()
        _Watch._current = None

    def explains(self, problem: Exception, patience: float) -> bool:
        """Whether `problem` is what the loss of another rank looks like here, as far as the agent knows or learns in time."""
        text = str(problem).lower()
        known = isinstance(problem, ElasticError) or self.aborted or any(word in text for word in _NETWORK_WORDS)
        if not known or not self._job.has_agent:
            return False
        self._abort()  # the others wait for this rank no longer than for the lost one
        until = time.monotonic() + patience
        while self._job.notice() < Notice.REJOIN and time.monotonic() < until:
            time.sleep(_WATCH_S)
        return self._job.notice() >= Notice.REJOIN or isinstance(problem, Stale)

    def _watch(self) -> None:
        while not self._closed.wait(_WATCH_S):
            if self._job.notice() == Notice.STOP:
                self._abort()
                return

    def _abort(self) -> None:
        self.aborted = True
        if not dist.is_initialized() or dist.get_backend() != "nccl":
            _shut(self._connections if self._connections is not None else _tcp_connections() - self._before)
            return
        abort = getattr(dist.distributed_c10d, "_abort_process_group", None)
        if abort:
            abort()
