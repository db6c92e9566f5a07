"""The memory page that an agent shares with a worker: base/page.h, which is the authority. Aligned 64-bit loads and stores, no system call."""

from __future__ import annotations

import bisect
import mmap
import os
import struct
import time

from .errors import ProtocolMismatch

_BYTES, _MAGIC, _VERSION = 4096, 0x45525047, 1
_NOTICE = 64 // 8  # index of the notice's word among the page's
_FIELDS = ("phase", "step", "step_us", "first_step", "first_step_us", "collective", "samples", "loss_bits", "total_steps", "tokens",
           "samples_per_s", "tokens_per_s", "data_us", "forward_us", "backward_us", "communicate_us", "optimizer_us")
_AT = {name: 128 // 8 + i for i, name in enumerate(_FIELDS)}
_BOUNDS = (.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60)  # er_bounds_fine, seconds
_STEPS_BY_TIME = _AT["optimizer_us"] + 1  # a bucket for each bound, and one beyond
_AT["steps_time_us"] = _STEPS_BY_TIME + len(_BOUNDS) + 1
_AT["connected_us"] = _AT["steps_time_us"] + 1
_AT["median_busy_us"] = _AT["connected_us"] + 1
_AT["rejoins"] = _AT["median_busy_us"] + 1


def now_us() -> int:
    """The clock of the page's times."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000


class Page:
    """A worker's side of the page. Without a descriptor it is memory of our own, which nobody reads."""

    def __init__(self, fd_text: str | None) -> None:
        self._map = mmap.mmap(-1, _BYTES) if fd_text is None else _map(fd_text)
        if fd_text is not None:
            magic, version = struct.unpack_from("=II", self._map)
            if magic != _MAGIC or version != _VERSION:
                raise ProtocolMismatch(f"the worker page has version {version}, this package speaks {_VERSION}")
        self._words = memoryview(self._map).cast("Q")

    def notice_word(self) -> int:
        return self._words[_NOTICE]

    def set(self, name: str, value: int) -> None:
        self._words[_AT[name]] = value

    def get(self, name: str) -> int:
        return self._words[_AT[name]]

    def count_steps(self, steps: int, took_us: int) -> None:
        """So many steps at once took the same time each."""
        self._words[_STEPS_BY_TIME + bisect.bisect_left(_BOUNDS, took_us / 1e6 / steps)] += steps
        self._words[_AT["steps_time_us"]] += took_us

    def set_loss(self, loss: float) -> None:
        self.set("loss_bits", struct.unpack("=Q", struct.pack("=d", loss))[0])


def _map(fd_text: str) -> mmap.mmap:
    try:
        fd = int(fd_text)
        if os.fstat(fd).st_size < _BYTES:
            raise ProtocolMismatch(f"ELASTIC_PAGE_FD={fd_text} is not a worker page")
        return mmap.mmap(fd, _BYTES)
    except (ValueError, OSError) as e:
        raise ProtocolMismatch(f"ELASTIC_PAGE_FD={fd_text}: {e}; was this process started with its descriptors closed?") from None
