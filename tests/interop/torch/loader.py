"""Ranks with DataLoader workers; the first says when they are all there, then the test kills a rank."""

import os
import sys
import time

from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        with open(os.path.join(sys.argv[1], f"loader-{os.getpid()}"), "w", encoding="utf-8") as f:
            f.write("here")
        return index


if __name__ == "__main__":
    for batch in DataLoader(Numbers(), batch_size=4, num_workers=2, persistent_workers=True):
        with open(os.path.join(sys.argv[1], f"rank-{os.environ['RANK']}"), "w", encoding="utf-8") as f:
            f.write(str(os.getpid()))
        time.sleep(1000)
