"""What goes wrong between a worker and its agent, as exceptions. Codes are those of base/error.h: -errno, or one of our own."""

from __future__ import annotations

import errno as _errno
import os as _os
from typing import Type

PEER_LOST, ABORTED, MISMATCH, STALE, CORRUPT, CONFIG = -4001, -4002, -4003, -4004, -4005, -4006
USAGE, PROTOCOL, AMBIGUOUS, UNSUPPORTED, LIMIT = -4007, -4008, -4009, -4010, -4011

_NAMES = {
    PEER_LOST: "peer lost", ABORTED: "aborted", MISMATCH: "ranks disagree", STALE: "generation superseded", CORRUPT: "corrupt data",
    CONFIG: "wrong configuration", USAGE: "wrong usage", PROTOCOL: "protocol error", AMBIGUOUS: "outcome unknown",
    UNSUPPORTED: "not available in this build", LIMIT: "limit reached",
}


class ElasticError(Exception):
    """Every failure of this package. `code` is negative: -errno, or one of the codes of this module."""

    code = USAGE

    def __init__(self, text: str, code: int | None = None) -> None:
        super().__init__(text)
        if code is not None:
            self.code = code


class NotLaunched(ElasticError):
    """The script needs elastic-run, and was not started by it."""

    code = UNSUPPORTED


class AgentLost(ElasticError):
    """The agent on this node is gone, and with it this process's part in the job: exit."""

    code = PEER_LOST


class Stale(ElasticError):
    """The generation is over: nothing of it can be written or waited for any more. `rejoin()`, or exit."""

    code = STALE


class LimitReached(ElasticError):
    """The job's key-value store, or the agent's table of barriers, is full."""

    code = LIMIT


class ProtocolMismatch(ElasticError):
    """Agent and package are of versions that do not understand each other, or a message is malformed."""

    code = PROTOCOL


class Timeout(ElasticError, TimeoutError):
    """What was waited for did not come in time."""

    code = -_errno.ETIMEDOUT


class InvalidValue(ElasticError, ValueError):
    """An argument is out of its limits; nothing was sent."""

    code = -_errno.EINVAL


_CLASSES: dict[int, Type[ElasticError]] = {
    cls.code: cls for cls in (AgentLost, Stale, LimitReached, ProtocolMismatch, Timeout, InvalidValue)
}


def name_of(code: int) -> str:
    """A few words for a code of ours or a negative errno."""
    return _NAMES.get(code) or _os.strerror(-code)


def error_for(code: int, text: str) -> ElasticError:
    """The exception of a failure with that code."""
    return _CLASSES.get(code, ElasticError)(text, code)
