#!/usr/bin/env python3
"""Run a command, wait for it, then end whatever it left behind: reap.py COMMAND...

Processes whose parents have gone become children of this one, so none escapes, however broken the program under test is. Exit status:
the command's; 128 and more when a signal ended it.
"""

import ctypes
import os
import signal
import sys
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
PATIENCE_S = 30


def children_of(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as f:
            return [int(word) for word in f.read().split()]
    except OSError:
        return []


def descendants(pid):
    found = []
    for child in children_of(pid):
        found += [child] + descendants(child)
    return found


def sweep():
    """Returns how many there were."""
    seen = set()
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            break
        for pid in descendants(os.getpid()):
            seen.add(pid)
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.02)
    return len(seen)


def on_signal(number, _frame):
    sweep()
    os._exit(128 + number)


def main(command):
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller ends us
    child = os.spawnvp(os.P_NOWAIT, command[0], command)
    while True:
        pid, status = os.waitpid(-1, 0)  # orphans too, as they end: tests look whether they are gone
        if pid == child:
            break
    left = sweep()
    if left:
        print(f"# {left} process(es) were left behind, and have been ended", flush=True)
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
