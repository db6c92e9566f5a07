"""torch's c10d rendezvous handler, N participants as threads of this process: peers_rendezvous.py RUNS N... One
line "N milliseconds" a run: from a common start, all connected, to the last participant that has its rank."""

import logging
import os
import socket
import sys
import threading
import time

from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def connect(n, port, run):
    handlers = []
    for i in range(n):
        params = RendezvousParameters("c10d", f"127.0.0.1:{port}", f"run{run}", n, n, "127.0.0.1", is_host=i == 0,
                                      last_call_timeout=1, join_timeout=120)
        backend, store = create_backend(params)
        handlers.append(create_handler(store, backend, params))
    return handlers


def measure(n, run):
    handlers = connect(n, free_port(), run)
    gate = threading.Barrier(n + 1)
    ends = []

    def take_part(handler):
        gate.wait()
        info = handler.next_rendezvous()
        assert info.world_size == n
        ends.append(time.perf_counter())

    threads = [threading.Thread(target=take_part, args=(h,)) for h in handlers]
    for t in threads:
        t.start()
    gate.wait()
    began = time.perf_counter()
    for t in threads:
        t.join()
    if len(ends) != n:
        sys.exit("a participant got no rank")
    print(n, (max(ends) - began) * 1e3, flush=True)


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    for size in sys.argv[2:]:
        for number in range(int(sys.argv[1])):
            measure(int(size), number)
    sys.stdout.flush()
    os._exit(0)  # the participants' keep-alive threads, and a second for each that leaves
