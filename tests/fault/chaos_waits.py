"""Waits in each way that chaos_time.c knows for 0.1 s, and prints how long that was by the clock of the C library and by the kernel's: a line `NAME OWN REAL` each."""

import ctypes
import os
import select
import threading
import time

LIBC = ctypes.CDLL(None)
WAIT_S = 0.1
MONOTONIC, ABSTIME, FUTEX, FUTEX_WAIT_PRIVATE = 1, 1, {"x86_64": 202}.get(os.uname().machine, 98), 128
GETTIME = {"x86_64": 228}.get(os.uname().machine, 113)


class Timespec(ctypes.Structure):
    _fields_ = [("s", ctypes.c_long), ("ns", ctypes.c_long)]


class Itimerspec(ctypes.Structure):
    _fields_ = [("interval", Timespec), ("value", Timespec)]


def of(seconds):
    return Timespec(int(seconds), int(seconds % 1 * 1e9))


def true_time():
    t = Timespec()
    LIBC.syscall(GETTIME, MONOTONIC, ctypes.byref(t))
    return t.s + t.ns / 1e9


def condition():
    c = threading.Condition()
    with c:
        c.wait(WAIT_S)


def timer(flags, at):
    fd = LIBC.timerfd_create(MONOTONIC, 0)
    LIBC.timerfd_settime(fd, flags, ctypes.byref(Itimerspec(of(0), of(at))), None)
    os.read(fd, 8)
    os.close(fd)


WAYS = {
    "sleep": lambda: time.sleep(WAIT_S),
    "select": lambda: select.select([], [], [], WAIT_S),
    "poll": lambda: select.poll().poll(WAIT_S * 1000),
    "epoll": lambda: select.epoll().poll(WAIT_S),
    "lock": condition,
    "timerfd": lambda: timer(0, WAIT_S),
    "timerfd_until": lambda: timer(ABSTIME, time.monotonic() + WAIT_S),
    "futex": lambda: LIBC.syscall(FUTEX, ctypes.byref(ctypes.c_int(0)), FUTEX_WAIT_PRIVATE, 0, ctypes.byref(of(WAIT_S)), None, 0),
    "usleep": lambda: LIBC.usleep(int(WAIT_S * 1e6)),
}

for name, wait in WAYS.items():
    before = time.monotonic(), true_time()
    wait()
    print(name, time.monotonic() - before[0], true_time() - before[1])
