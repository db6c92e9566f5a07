"""A cable that is not perfect: frames go from one interface to another, late, out of order, twice or never.

What `tc netem` does, without asking the kernel for it: raw sockets at both ends, offload headers carried along. `relay A B {"delay_ms": 20, "jitter_ms": 5,
"loss": 0.01, "duplicate": 0.01, "reorder": 0.05} SEED`, both ways; a reordered frame is one that overtakes the delay. {"reset": true}: no TCP segment arrives, and whoever sends one is told
that the connection is reset.
"""

import heapq
import json
import os
import random
import select
import signal
import socket
import struct
import time

SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING, ETH_P_ALL = 263, 15, 23, 3
FRAME_MAX = 10 + 14 + 65536 + 64
AT_ONCE = 64


def tap(interface):
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0)
    s.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    s.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    s.bind((interface, ETH_P_ALL))
    return s


def ones_complement(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff


def reset_of(frame):
    """What a peer that knows nothing of the connection would answer to this segment; None: it is none, or is a reset itself."""
    link, ip = frame[10:24], frame[24:]
    if link[12:14] == b"\x08\x00" and ip[9] == 6:
        at, sender, receiver = (ip[0] & 15) * 4, ip[12:16], ip[16:20]
    elif link[12:14] == b"\x86\xdd" and ip[6] == 6:
        at, sender, receiver = 40, ip[8:24], ip[24:40]
    else:
        return None
    source, target, _, acked = struct.unpack("!HHII", ip[at:at + 12])
    flags = ip[at + 13]
    if flags & 4 or not flags & 16:
        return None
    tcp = struct.pack("!HHIIBBHHH", target, source, acked, 0, 5 << 4, 4, 0, 0, 0)
    sum_ = ones_complement(receiver + sender + struct.pack("!HH", 6, len(tcp)) + tcp)
    tcp = tcp[:16] + struct.pack("!H", sum_) + tcp[18:]
    if len(sender) == 4:
        head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(tcp), 0, 0, 64, 6, 0, receiver, sender)
        head = head[:10] + struct.pack("!H", ones_complement(head)) + head[12:]
    else:
        head = struct.pack("!IHBB16s16s", 6 << 28, len(tcp), 6, 64, receiver, sender)
    return bytes(10) + link[6:12] + link[:6] + link[12:14] + head + tcp


class Cable:
    def __init__(self, one, other, how, seed):
        self.ends, self.how, self.random = (tap(one), tap(other)), how, random.Random(seed)
        self.queue, self.n = [], 0
        self.done = dict.fromkeys(("carried", "reset", "lost", "late", "doubled", "overtook"), 0)

    def take(self, frame, back, to):
        how, rand = self.how, self.random
        answer = reset_of(frame) if how.get("reset") else None
        if answer:
            self.done["reset"] += 1
            self.send(answer, back)
            return
        if rand.random() < how.get("loss", 0):
            self.done["lost"] += 1
            return
        overtakes, twice = rand.random() < how.get("reorder", 0), rand.random() < how.get("duplicate", 0)
        late = 0.0 if overtakes else max(0.0, how.get("delay_ms", 0) + how.get("jitter_ms", 0) * rand.uniform(-1, 1)) / 1000
        for what, counts in (("carried", True), ("late", late > 0), ("doubled", twice), ("overtook", overtakes)):
            self.done[what] += counts
        for _ in range(2 if twice else 1):
            self.n += 1
            heapq.heappush(self.queue, (time.monotonic() + late, self.n, to, frame))

    def deliver(self):
        while self.queue and self.queue[0][0] <= time.monotonic():
            _, _, to, frame = heapq.heappop(self.queue)
            self.send(frame, to)

    @staticmethod
    def send(frame, to):
        try:
            to.send(frame)
        except OSError:
            pass  # a queue that is full loses it: as cables do

    def end(self, *_):
        """What was done with the frames."""
        print(json.dumps(self.done), flush=True)
        os._exit(0)

    def run(self):
        signal.signal(signal.SIGTERM, self.end)
        poll = select.poll()
        for end in self.ends:
            poll.register(end, select.POLLIN)
        print("ready", flush=True)
        while True:
            wait = max(0.0, self.queue[0][0] - time.monotonic()) * 1000 if self.queue else None
            ready = {fd for fd, _ in poll.poll(wait)}
            for end, to in (self.ends, self.ends[::-1]):
                if end.fileno() in ready:
                    for _ in range(AT_ONCE):
                        try:
                            self.take(end.recv(FRAME_MAX), end, to)
                        except OSError:
                            break
            self.deliver()


def main(one, other, how, seed):
    Cable(one, other, json.loads(how), seed).run()
