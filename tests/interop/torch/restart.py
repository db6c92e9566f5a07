"""The first generation loses a rank that died hard; the second finishes."""

import os
import signal

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    total = torch.ones(1)
    dist.all_reduce(total)
except RuntimeError:
    os._exit(3)  # the peer's death; never the root cause
# One write, since the ranks share the output and the interpreter is unbuffered (-u), where print() writes the newline by itself.
os.write(1, f"sum {int(total)} after {os.environ['TORCHELASTIC_RESTART_COUNT']} restart(s)\n".encode())
