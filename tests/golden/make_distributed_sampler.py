"""Writes distributed_sampler.txt: what torch's DistributedSampler gives each rank, without shuffling. Any PyTorch will do:

    python3 tests/golden/make_distributed_sampler.py > tests/golden/distributed_sampler.txt

A line: samples, world size, drop_last, rank, then the rank's indices.
"""
from torch.utils.data.distributed import DistributedSampler

for samples in (1, 2, 5, 7, 10, 16):
    for world in (1, 2, 3, 4, 7):
        for drop_last in (False, True):
            if drop_last and samples < world:
                continue  # torch has no answer
            for rank in range(world):
                sampler = DistributedSampler(range(samples), num_replicas=world, rank=rank, shuffle=False, drop_last=drop_last)
                print(samples, world, int(drop_last), rank, *sampler)
