"""The key-value store of a world of one, in this process's memory."""

from __future__ import annotations

import threading
import time
from typing import Optional

from .errors import InvalidValue


class LocalStore:
    """As the job's, with one worker."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._values: dict[str, bytes] = {}

    def put(self, key: str, value: bytes) -> None:
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key: str, timeout: Optional[float]) -> Optional[bytes]:
        until = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while key not in self._values:
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    return None
                self._changed.wait(left)
            return self._values[key]

    def add(self, key: str, delta: int) -> int:
        with self._changed:
            try:
                value = int(self._values.get(key, b"0")) + delta
            except ValueError:
                raise InvalidValue(f"add '{key}': not a counter") from None
            if not -(1 << 63) <= value < 1 << 63:
                raise InvalidValue(f"add '{key}': overflow")
            self._values[key] = str(value).encode()
            self._changed.notify_all()
            return value
