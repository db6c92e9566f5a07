"""Which sample is used when: trainer/sampler.h in Python, the same numbers bit for bit.

Pure functions of (seed, epoch, step, rank, world size): whatever world sizes a run goes through, each sample is used exactly once per
epoch, and nothing about the order of data has to be saved.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Iterator

_U64 = (1 << 64) - 1
_TABLE_MAX = 4096  # up to so many samples a Fisher-Yates table, above a Feistel network
_ROUNDS = 8
_OP_KEYS, _OP_TABLE = 0xFFFF0001, 0xFFFF0002
_M0, _M1 = 0xD2E7470EE14C6C93, 0xCA5A826395121157
_W0, _W1 = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B


def rng(seed: int, sample: int, op: int, i: int) -> int:
    """Counter-based random 64-bit number: the same for the same arguments, on any rank. `op` keeps uses apart, below 0xffff0000."""
    c0, c1, c2, c3 = sample & _U64, i & _U64, 0, 0
    k0, k1 = seed & _U64, op & 0xFFFFFFFF
    for _ in range(10):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (p1 >> 64) ^ c1 ^ k0, p1 & _U64, (p0 >> 64) ^ c3 ^ k1, p0 & _U64
        k0, k1 = (k0 + _W0) & _U64, (k1 + _W1) & _U64
    return c0


class Order:
    """The permutation of range(n) of one epoch; `order[i]` is the sample at position i."""

    def __init__(self, n: int, seed: int, epoch: int) -> None:
        if n < 1:
            raise ValueError(f"an order of {n} samples")
        self.n, self.seed, self.epoch = n, seed, epoch
        self._a = math.isqrt(n)
        self._b = -(-n // self._a)
        self._keys = [rng(seed, epoch, _OP_KEYS, i) for i in range(_ROUNDS)]
        self._table = self._fill_table() if n <= _TABLE_MAX else None

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> int:
        if not 0 <= i < self.n:
            raise IndexError(f"position {i} of {self.n} samples")
        if self._table is not None:
            return self._table[i]
        x = self._permute(i)
        while x >= self.n:
            x = self._permute(x)
        return x

    def _fill_table(self) -> list[int]:
        table, counter = list(range(self.n)), 0
        for i in range(self.n - 1, 0, -1):
            bound = i + 1
            while True:
                m = rng(self.seed, self.epoch, _OP_TABLE, counter) * bound
                counter += 1
                if m & _U64 >= (1 << 64) % bound:
                    break
            j = m >> 64
            table[i], table[j] = table[j], table[i]
        return table

    def _permute(self, x: int) -> int:
        left, right = divmod(x, self._b)
        for r in range(0, _ROUNDS, 2):
            left = (left + _round(right, self._keys[r], self._a)) % self._a
            right = (right + _round(left, self._keys[r + 1], self._b)) % self._b
        return left * self._b + right


def _round(half: int, key: int, radix: int) -> int:
    x = (half * _W0 + key) & _U64
    square = x * (x ^ _W1)
    return (((square >> 64) ^ (square & _U64)) * radix) >> 64


@dataclass(frozen=True)
class Range:
    """Positions [first, first + count) of an epoch for one rank; count may be 0. The whole step's are [step_first, + step_count)."""

    epoch: int
    first: int
    count: int
    step_first: int
    step_count: int


@dataclass(frozen=True)
class Plan:
    """A training plan: global, whatever the world size. `global_batch` is the samples of a step over all ranks."""

    samples: int
    global_batch: int
    seed: int = 0
    shards: int = 0  # exact mode: a step is divided into so many parts, and ranks take whole ones; 0: by samples

    def __post_init__(self) -> None:
        if self.samples < 1 or self.global_batch < 1 or self.shards < 0:
            raise ValueError(f"{self}: samples and global_batch are at least 1")

    @property
    def steps(self) -> int:
        """Steps of an epoch; the last one may be shorter."""
        return -(-self.samples // self.global_batch)

    def batch(self, step: int, rank: int, size: int) -> Range:
        """What a rank does in a step. Steps are counted from 1, over all epochs; ranks' ranges cover the step in rank order."""
        if step < 1 or not 0 <= rank < size:
            raise ValueError(f"step {step} of rank {rank} of {size}")
        epoch, index = divmod(step - 1, self.steps)
        first = index * self.global_batch
        count = min(self.global_batch, self.samples - first)
        low, high, parts = rank, rank + 1, size
        if self.shards:
            low, high, parts = (self.shards * rank // size, self.shards * (rank + 1) // size, self.shards)
        at, end = count * low // parts, count * high // parts
        return Range(epoch, first + at, end - at, first, count)

    def indices(self, step: int, rank: int, size: int) -> list[int]:
        """The samples of `batch(step, rank, size)`."""
        part = self.batch(step, rank, size)
        order = _order(self.samples, self.seed, part.epoch)
        return [order[i] for i in range(part.first, part.first + part.count)]


@lru_cache(maxsize=2)
def _order(n: int, seed: int, epoch: int) -> Order:
    return Order(n, seed, epoch)


class StepSampler:
    """Batches of samples for a torch DataLoader (its `batch_sampler`), from the step after `applied` to `last_step`.

    Made anew in each generation, with the new rank and size: batches that were fetched ahead and not used are simply dropped.
    """

    def __init__(self, plan: Plan, rank: int, size: int, applied: int = 0, last_step: int = 0) -> None:
        self.plan, self.rank, self.size = plan, rank, size
        self.applied, self.last_step = applied, last_step or plan.steps

    def __len__(self) -> int:
        return max(0, self.last_step - self.applied)

    def __iter__(self) -> Iterator[list[int]]:
        for step in range(self.applied + 1, self.last_step + 1):
            yield self.plan.indices(step, self.rank, self.size)


@dataclass(frozen=True)
class Strided:
    """The way of torch's DistributedSampler: rank r of `world` takes positions r, r + world, ...; only for a world that stays the same.

    Over range(samples) it is that of shuffle=False.
    """

    samples: int
    world: int
    rank: int
    drop_last: bool = False

    def __len__(self) -> int:
        return self.samples // self.world + (self.samples % self.world > 0 and not self.drop_last)

    def __getitem__(self, i: int) -> int:
        if not 0 <= i < len(self):
            raise IndexError(f"sample {i} of {len(self)}")
        return (self.rank + i * self.world) % self.samples

    def weight(self, i: int) -> float:
        """0 for those that only fill up the tail (they repeat the first ones), so that no sample counts twice; else 1."""
        return 1.0 if self.rank + i * self.world < self.samples else 0.0
