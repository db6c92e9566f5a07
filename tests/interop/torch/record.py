"""The last rank fails in a function under @record, as torch's documentation has it."""

import os
import time

from torch.distributed.elastic.multiprocessing.errors import record


@record
def main():
    if int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1:
        raise ValueError("no luck on the last rank")
    time.sleep(1000)


if __name__ == "__main__":
    main()
