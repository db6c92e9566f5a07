"""What a script may ask torch about its launcher."""

import os
import sys

import torch.distributed as dist
from torch.distributed.elastic.utils import get_env_variable_or_raise, macros
from torch.distributed.elastic.utils.distributed import get_free_port

assert dist.is_torchelastic_launched()
for name in ("LOCAL_RANK", "RANK", "GROUP_RANK", "ROLE_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE", "GROUP_WORLD_SIZE",
             "ROLE_WORLD_SIZE", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"):
    int(get_env_variable_or_raise(name))
for name in ("ROLE_NAME", "MASTER_ADDR", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE"):
    get_env_variable_or_raise(name)
assert os.environ["TORCHELASTIC_USE_AGENT_STORE"] == "False"
assert macros.local_rank == "${local_rank}" and sys.argv[1] == os.environ["LOCAL_RANK"]
assert 0 < get_free_port() < 65536
# The key-value store that init_process_group("env://") makes.
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
store, _, _ = next(dist.rendezvous("env://", rank, size))
store.set(f"rank{rank}", os.environ["TORCHELASTIC_RESTART_COUNT"])
store.wait([f"rank{r}" for r in range(size)])
dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
everyone = [None] * size
dist.all_gather_object(everyone, (rank, int(os.environ["LOCAL_RANK"])))
assert everyone == [(r, r) for r in range(size)]
dist.barrier()
# One write, since the ranks share the output and the interpreter is unbuffered (-u), where print() writes the newline by itself.
os.write(1, f"rank {rank} knows its launcher\n".encode())
