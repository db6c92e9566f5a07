#!/bin/sh
# Any program is a worker: all it needs to know is in its environment.
echo "rank $RANK of $WORLD_SIZE, attempt $TORCHELASTIC_RESTART_COUNT"
# Rank 1 fails the first time, to show what happens then: all workers start again, this one counted.
if [ "$RANK" = 1 ] && [ "$TORCHELASTIC_RESTART_COUNT" = 0 ]; then
    echo "rank 1: something went wrong" >&2
    exit 3
fi
exec sleep 1
