"""What a worker is told of its job, and the words that both sides use: base/notice.h and base/ctl.h are the authority."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Notice(enum.IntEnum):
    """What the agent tells this worker."""

    NONE = 0
    CHECKPOINT = 1  # write a checkpoint at the next boundary, and go on
    REJOIN = 2  # membership changes: leave at a boundary that all ranks agree on, and rejoin()
    DRAIN = 3  # as REJOIN, but this process is not to come back: leave, and exit with 0
    STOP = 4  # the generation is over: abort communication, make no further step; rejoin() or exit


class Phase(enum.IntEnum):
    """What this worker is doing; each has its own deadline (`hang` in the job spec)."""

    STARTUP = 0
    DATA = 1
    FORWARD = 2
    BACKWARD = 3
    COMMUNICATE = 4
    OPTIMIZER = 5
    CHECKPOINT = 6
    EVALUATION = 7
    IDLE = 8


@dataclass(frozen=True)
class World:
    """The generation that this process belongs to."""

    rank: int = 0  # 0 .. size - 1, contiguous on each node
    size: int = 1
    local_rank: int = 0  # on this node
    local_size: int = 1
    node_rank: int = 0
    nnodes: int = 1
    generation: int = 0  # only grows within a job; 0 without an agent
    restarts: int = 0  # counted restarts of the whole job
    job: str = ""
    run: str = ""  # (run, generation) is never used again
    node_id: str = ""
    checkpoint_dir: str = ""  # "" when the job has none
    # Steps whose samples the job leaves out, ascending: workers failed in them again and again (restart.poison_step, action skip). The
    # same on all ranks: count such a step as done, and change nothing.
    skip_steps: tuple[int, ...] = ()
