"""What chaos_shim.c and chaos_slow.c are told: the layout of chaos_orders.h, in a file that both sides map."""

import mmap
import os
import struct
import time

MAGIC, RULES, NODES = 0x3130736f616863, 16, 8
RULE = struct.Struct("<IIIIiIIIII88s")
CLOCK = struct.Struct("<qqqQ")
MONOTONIC = struct.Struct("<QqqqQQ")
CLOCKS_AT = 24
MONOTONIC_AT = CLOCKS_AT + CLOCK.size * NODES
RULES_AT = MONOTONIC_AT + MONOTONIC.size * NODES
SIZE = RULES_AT + RULE.size * RULES
OPS = {"open": 1, "read": 2, "write": 3, "sync": 4, "rename": 5, "listen": 6}
ACTIONS = {"fail": 1, "delay": 2, "hang": 3, "kill": 4, "tear": 5, "tear_kill": 6}
WORKER, AGENT = 1, 2


class Rule:
    """One that is in force until clear()."""

    def __init__(self, orders, slot):
        self.orders, self.at = orders, RULES_AT + RULE.size * slot

    def _field(self, i):
        return struct.unpack_from("<I", self.orders.map, self.at + 4 * i)[0]

    @property
    def hits(self):
        """How often it acted."""
        return self._field(9)

    def clear(self):
        struct.pack_into("<I", self.orders.map, self.at, 0)


class Orders:
    def __init__(self, path):
        self.path = path
        with open(path, "wb") as f:
            f.write(struct.pack("<Q", MAGIC) + bytes(SIZE - 8))
        with open(path, "r+b") as f:
            self.map = mmap.mmap(f.fileno(), SIZE)
        self.used = 0

    def rule(self, op, action, nodes, path="", roles=WORKER, error=0, delay_ms=0, skip=0, times=0):
        """In force from now on. `nodes`: their numbers."""
        slot, self.used = self.used % RULES, self.used + 1
        at, mask = RULES_AT + RULE.size * slot, sum(1 << n for n in nodes)
        struct.pack_into("<I", self.map, at, 0)
        self.map[at + 4:at + RULE.size] = RULE.pack(0, ACTIONS[action], roles, mask, error, int(delay_ms * 1000), skip, times, 0, 0, path.encode())[4:]
        struct.pack_into("<I", self.map, at, OPS[op])
        return Rule(self, slot)

    def clock(self, node, offset_s=0, rate=1.0):
        """The node's wall clock from now on: so far from the real one, and so much faster."""
        CLOCK.pack_into(self.map, CLOCKS_AT + CLOCK.size * node, int(offset_s * 1e6), int(time.time() * 1e6), round((rate - 1) * 1e6), 0)

    def clock_reads(self, node):
        return CLOCK.unpack_from(self.map, CLOCKS_AT + CLOCK.size * node)[3]

    def monotonic(self, node, rate):
        """The node's monotonic clock, and all that waits by it, runs so much faster from now on."""
        at, now = MONOTONIC_AT + MONOTONIC.size * node, time.monotonic_ns()
        seq, since, own, ppm, _, _ = MONOTONIC.unpack_from(self.map, at)
        own = own + (now - since) + (now - since) * ppm // 1000000 if seq else now
        struct.pack_into("<Q", self.map, at, seq + 1)
        self.map[at + 8:at + MONOTONIC.size] = MONOTONIC.pack(0, now, own, round((rate - 1) * 1e6), 0, 0)[8:]
        struct.pack_into("<Q", self.map, at, seq + 2)

    def monotonic_uses(self, node):
        """How often it was read, and waited by, since then."""
        return MONOTONIC.unpack_from(self.map, MONOTONIC_AT + MONOTONIC.size * node)[4:]

    def sync_delay(self, milliseconds):
        struct.pack_into("<Q", self.map, 8, int(milliseconds * 1000))

    def syncs(self):
        return struct.unpack_from("<Q", self.map, 16)[0]


def library(build):
    return os.path.join(build, "tests/fault/libchaos_shim.so")
