"""How busy the machine is, and time that passes more slowly the busier it is.

A bound says how long something takes at most on a machine that has room. `Clock` counts such seconds: while four want to run for each one that can, a second
counts a quarter. Looked at are what wants to run on a core (/proc/loadavg), how long this process itself waits for one after it could run (schedstat:
what a low priority costs), and what the hypervisor takes away (/proc/stat, steal). Invariants have nothing to do with it.
"""

import os
import time

FACTOR_MAX = 40.0   # a machine that is slower than that is broken
SMOOTH_S = 1.0      # how fast what is measured takes effect


def wanted():
    """How many want to run for each core, at least 1."""
    with open("/proc/loadavg", encoding="ascii") as f:
        return max(1.0, (int(f.read().split()[3].split("/")[0]) - 1) / (os.cpu_count() or 1))


def waits():
    """(seconds run, seconds waited for a core) of this process; zeros where the kernel does not count them."""
    try:
        with open("/proc/self/schedstat", encoding="ascii") as f:
            ran, waited = f.read().split()[:2]
        return int(ran) / 1e9, int(waited) / 1e9
    except (OSError, ValueError):
        return 0.0, 0.0


def stolen():
    """(all ticks, stolen ticks) of all cores."""
    with open("/proc/stat", encoding="ascii") as f:
        ticks = [int(n) for n in f.readline().split()[1:9]]
    return sum(ticks), ticks[7]


class Clock:
    """look() often; `at` is what has passed, in seconds of a machine that has room, `factor` how much slower it is now, mean() was."""

    def __init__(self):
        self.at, self.factor = 0.0, wanted()
        self.last = self.began = time.monotonic()
        self.waits, self.stolen, self.worst = waits(), stolen(), 1.0

    def _measure(self):
        (ran, waited), (ticks, taken) = waits(), stolen()
        dr, dw = ran - self.waits[0], waited - self.waits[1]
        dt, ds = ticks - self.stolen[0], taken - self.stolen[1]
        found = wanted()
        if dr > 0.002:
            found, self.waits = max(found, (dr + dw) / dr), (ran, waited)
        if dt > 20:
            found, self.stolen = found / max(0.05, 1 - ds / dt), (ticks, taken)
        return min(found, FACTOR_MAX)

    def look(self):
        now = time.monotonic()
        passed, self.last = now - self.last, now
        share = min(1.0, passed / SMOOTH_S)
        self.factor += share * (self._measure() - self.factor)
        self.worst = max(self.worst, self.factor)
        self.at += passed / self.factor
        return self.at

    def mean(self):
        """Over all its life."""
        return max(1.0, (self.last - self.began) / self.at) if self.at > 0 else self.factor


def busy(seconds=0.3):
    """The factor, measured for a moment."""
    clock, until = Clock(), time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.01)
        clock.look()
    return clock.mean()
