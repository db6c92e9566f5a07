"""elastic-run for Python workers: docs/python.md. Standard library only; `elastic.torch` needs PyTorch, and is imported by name.

    import elastic

    with elastic.join() as job:
        print(job.world.rank, "of", job.world.size)
"""

from .errors import AgentLost, ElasticError, InvalidValue, LimitReached, NotLaunched, ProtocolMismatch, Stale, Timeout
from .job import Job, join
from .sampler import Order, Plan, Range, StepSampler, Strided, rng
from .world import Notice, Phase, World

__all__ = [
    "AgentLost", "ElasticError", "InvalidValue", "Job", "LimitReached", "NotLaunched", "Notice", "Order", "Phase", "Plan",
    "ProtocolMismatch", "Range", "Stale", "StepSampler", "Strided", "Timeout", "World", "join", "rng",
]
