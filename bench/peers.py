"""Other people's programs to measure beside ours, in one virtual environment below the build folder."""

import os
import subprocess
import sys

# Peer -> what pip installs for it. `torch` brings torchrun; its CPU code is what is measured here.
PACKAGES = {"torchrun": ["torch", "numpy"], "train": ["torch", "numpy"], "ckpt": ["torch", "numpy", "safetensors"]}


def prepare(build, wanted):
    """Folder of the environment with the wanted peers in it; installs those that are missing, once."""
    folder = os.path.join(build, "bench-peers")
    python = os.path.join(folder, "bin", "python")
    if not os.path.exists(python):
        run([sys.executable, "-m", "venv", folder], "python3 -m venv (Debian: python3-venv)")
    for peer in wanted:
        stamp = os.path.join(folder, peer + ".installed")
        if not os.path.exists(stamp):
            run([python, "-m", "pip", "install", "--disable-pip-version-check", "--quiet", *PACKAGES[peer]], f"pip for {peer}")
            with open(stamp, "w", encoding="utf-8"):
                pass
    return folder


def run(command, what):
    print(f"bench: {what} ...", file=sys.stderr)
    if subprocess.run(command, stdout=sys.stderr, stdin=subprocess.DEVNULL, check=False).returncode != 0:
        sys.exit(f"bench: {what} failed; without it PEERS=1 has nothing to measure")
