"""The asking end of a worker's control socket. Any thread may ask; a long wait of one does not hold up the others."""

from __future__ import annotations

import select
import socket
import threading
import time
from typing import Optional

from . import _wire
from .errors import AgentLost, ElasticError, Timeout


def _gone() -> AgentLost:
    return AgentLost("the agent closed the control socket")


class Client:
    """Requests and their answers, matched by number. Whoever waits reads for all: there is no thread of our own."""

    def __init__(self, path: str, timeout: float) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        self._changed = threading.Condition()
        self._seq = 0
        self._reading = False
        self._lost: Optional[ElasticError] = None
        self._answers: dict[int, Optional[_wire.Message]] = {}
        try:
            self._socket.settimeout(timeout)
            self._socket.connect(path)
            self._socket.settimeout(None)
        except (socket.timeout, BlockingIOError):
            self._socket.close()
            raise Timeout(f"the agent at '{path}' accepts no connection") from None
        except OSError as e:
            self._socket.close()
            raise ElasticError(f"connect to the agent at '{path}': {e.strerror or e}", -(e.errno or 1)) from None

    def close(self) -> None:
        """Who still waits for an answer gets AgentLost."""
        with self._changed:
            self._lost = self._lost or _gone()
            self._changed.notify_all()
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._socket.close()

    def forget(self) -> None:
        """Close this process's copy of a connection that is another's: of the parent, after a fork."""
        self._socket.close()

    def call(self, request: _wire.Message, timeout: Optional[float]) -> _wire.Message:
        """The answer to a request. Timeout: the agent did not answer within so many seconds (None: no limit)."""
        until = None if timeout is None else time.monotonic() + timeout
        packet = self._expect(request)
        try:
            self._send(packet, until)
            return self._answer(request.seq, until)
        finally:
            with self._changed:
                del self._answers[request.seq]

    def _expect(self, request: _wire.Message) -> bytes:
        """The packet of a request that has its number now, under which the answer will be found."""
        with self._changed:
            if self._lost:
                raise self._lost
            self._seq = self._seq % 0xFFFFFFFF + 1
            request.seq = self._seq
            packet = _wire.encode(request)
            self._answers[request.seq] = None
            return packet

    def _send(self, packet: bytes, until: Optional[float]) -> None:
        """An agent that does not read must not hold this thread beyond its time, nor the others at all: no lock is held."""
        try:
            while True:
                try:
                    self._socket.send(packet, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                    return
                except BlockingIOError:
                    if not self._ready(select.POLLOUT, until) and _is_over(until):
                        raise Timeout("the agent did not take the request in time") from None
        except ElasticError:
            raise
        except (OSError, ValueError) as e:
            raise _gone() from e

    def _answer(self, seq: int, until: Optional[float]) -> _wire.Message:
        while True:
            with self._changed:
                while self._answers[seq] is None and not self._lost and self._reading and not _is_over(until):
                    self._changed.wait(_left(until))
                answer = self._answers[seq]
                if answer is not None:
                    return answer
                if self._lost or _is_over(until):
                    raise self._lost or Timeout("the agent did not answer in time")
                self._reading = True
            self._read_one(until)

    def _read_one(self, until: Optional[float]) -> None:
        """One packet for whoever asked for it, or none within the time; then another may read."""
        answer, problem = None, None
        try:
            if self._ready(select.POLLIN, until):
                packet = self._socket.recv(_wire.PACKET_MAX)
                answer = _wire.decode(packet) if packet else None
                problem = None if packet else _gone()
        except ElasticError as e:
            problem = e
        except (OSError, ValueError):
            problem = _gone()
        finally:
            with self._changed:
                self._reading = False
                if answer is not None and answer.seq in self._answers:
                    self._answers[answer.seq] = answer
                self._lost = self._lost or problem
                self._changed.notify_all()

    def _ready(self, events: int, until: Optional[float]) -> bool:
        poll = select.poll()
        poll.register(self._socket, events)
        left = _left(until)
        return bool(poll.poll(None if left is None else left * 1000 + 1))


def _left(until: Optional[float]) -> Optional[float]:
    return None if until is None else max(0.0, until - time.monotonic())


def _is_over(until: Optional[float]) -> bool:
    return until is not None and time.monotonic() >= until
