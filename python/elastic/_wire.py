"""Messages between a worker and its agent: the packets of base/ctl.h, which is the authority. Codec only."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from .errors import ProtocolMismatch

PROTOCOL = 1
KEY_MAX, VALUE_MAX, PACKET_MAX = 512, 48 * 1024, 64 * 1024
READY_REJOINS = 1

(HELLO, WORLD, READY, KV_PUT, KV_GET, KV_ADD, BARRIER, COMMIT, LOADED, LEFT, FAIL, BYE, STATUS, REPLY) = range(1, 15)

_MAGIC = 0x4C544345  # "ECTL"
_HEADER = struct.Struct("<IIIiHHI")
_NUM_MAX, _STR_MAX = 12, 6
_U64 = (1 << 64) - 1


@dataclass
class Message:
    """One packet. `status` is that of a reply: 0 done, positive as documented for the request, negative failed."""

    type: int
    nums: list[int] = field(default_factory=list)
    strs: list[bytes] = field(default_factory=list)
    seq: int = 0
    status: int = 0

    def text(self, index: int) -> str:
        return self.strs[index].decode("utf-8", "surrogateescape")


def encode(message: Message) -> bytes:
    """The packet's bytes. Negative numbers are sent as two's complement."""
    strings = b"".join(struct.pack("<I", len(s)) + s for s in message.strs)
    nums = struct.pack(f"<{len(message.nums)}Q", *(n & _U64 for n in message.nums))
    size = _HEADER.size + len(nums) + len(strings)
    if size > PACKET_MAX or len(message.nums) > _NUM_MAX or len(message.strs) > _STR_MAX:
        raise ProtocolMismatch(f"a request of {size} bytes does not fit a packet of {PACKET_MAX}")
    return _HEADER.pack(_MAGIC, message.type, message.seq, message.status, len(message.nums), len(message.strs), size) + nums + strings


def decode(packet: bytes) -> Message:
    """The message in a packet; never trusts a length."""
    if len(packet) < _HEADER.size:
        raise ProtocolMismatch(f"the agent sent a packet of {len(packet)} bytes")
    magic, kind, seq, status, num_n, str_n, size = _HEADER.unpack_from(packet)
    at = _HEADER.size + 8 * num_n
    if magic != _MAGIC or size != len(packet) or num_n > _NUM_MAX or str_n > _STR_MAX or at > len(packet):
        raise ProtocolMismatch("the agent sent a malformed packet")
    message = Message(kind, list(struct.unpack_from(f"<{num_n}Q", packet, _HEADER.size)), [], seq, status)
    for _ in range(str_n):
        if at + 4 > len(packet):
            raise ProtocolMismatch("the agent sent a packet that is cut short")
        (length,) = struct.unpack_from("<I", packet, at)
        at += 4
        if length > len(packet) - at:
            raise ProtocolMismatch("the agent sent a packet that is cut short")
        message.strs.append(packet[at:at + length])
        at += length
    if at != len(packet):
        raise ProtocolMismatch("the agent sent a packet with bytes too many")
    return message
