"""A test's own namespaces: network, processes, mounts. Nothing of the host's network or processes is seen or touched, `/run` and `/dev/shm` are
memory, and the kernel ends everything in them with the test, however that ends."""

import os
import shutil
import socket
import struct
import subprocess
import sys
import threading

_MARK = "ER_TEST_INSIDE"
_UNSHARE = ["unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "--kill-child"]


def why_not():
    """Why there can be none here; None: there can."""
    if os.geteuid() != 0:
        return "needs root"
    for program in ("unshare", "ip", "setpriv"):
        if not shutil.which(program):
            return f"{program} is not installed"
    tried = subprocess.run([*_UNSHARE, "mount", "-t", "tmpfs", "none", "/run"], capture_output=True, text=True, check=False)
    return f"no namespaces: {tried.stderr.strip()}" if tried.returncode else None


def enter():
    """Starts this program anew inside; there it returns."""
    if os.environ.get(_MARK) != "1":
        os.environ[_MARK] = "1"
        os.execvp(_UNSHARE[0], [*_UNSHARE, sys.executable, "-B", *sys.argv])
    for folder in ("/run", "/dev/shm"):
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755" if folder == "/run" else "mode=1777", "er-test", folder], check=True)
    ip("link", "set", "lo", "up")


def ip(*args):
    subprocess.run(["ip", *args], check=True)


class WireTap(threading.Thread):
    """What goes over the loopback interface to and from some TCP ports (None: all): {(from port, to port): [bytes of a connection, ...]}."""

    def __init__(self, ports=None):
        super().__init__(daemon=True)
        self.ports, self.flows = ports and set(ports), {}
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003))
        self.socket.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
        self.socket.bind(("lo", 0))
        self.start()

    def run(self):
        while True:
            frame, where = self.socket.recvfrom(1 << 17)
            if where[2] == socket.PACKET_OUTGOING:  # each comes by twice
                continue
            self._packet(frame[14:], where[1])

    def _packet(self, packet, protocol):
        if protocol == 0x0800 and packet[9] == 6:
            segment = packet[(packet[0] & 15) * 4:struct.unpack_from("!H", packet, 2)[0] or None]
        elif protocol == 0x86dd and packet[6] == 6:
            segment = packet[40:]
        else:
            return
        flow = struct.unpack_from("!HH", segment)
        if self.ports and not self.ports & set(flow):
            return
        if segment[13] & 2:  # SYN
            self.flows.setdefault(flow, []).append(bytearray())
        elif flow in self.flows:
            self.flows[flow][-1] += segment[(segment[12] >> 4) * 4:]

    def said(self, port):
        """What clients said to a port, a connection each."""
        return [bytes(text) for (_, to), all_of_them in list(self.flows.items()) if to == port for text in all_of_them if text]

    def everything(self):
        return [bytes(text) for all_of_them in list(self.flows.values()) for text in all_of_them if text]

    def anywhere(self, word):
        """Who said those bytes: [(from port, to port)]."""
        return [flow for flow, all_of_them in list(self.flows.items()) if any(word in text for text in all_of_them)]
