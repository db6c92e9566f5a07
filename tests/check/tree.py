"""What the checks share: the tracked files, and lines that say what is wrong."""

import os
import subprocess
import sys

FOLDERS = ("base", "rendezvous", "agent", "runtime", "ckpt", "trainer", "examples", "tests", "bench")
SOURCE_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def files(untracked=True):
    """Files that git tracks or (untracked) would track; without git, every file outside build folders."""
    command = ["git", "-C", SOURCE_ROOT, "ls-files", "-c", "-z"] + (["-o", "--exclude-standard"] if untracked else [])
    listed = subprocess.run(command, capture_output=True, check=False)
    if listed.returncode == 0:
        names = listed.stdout.decode().split("\0")
    else:
        names = []
        for folder, subfolders, here in os.walk(SOURCE_ROOT):
            subfolders[:] = [s for s in subfolders if not s.startswith((".", "build"))]
            names += [os.path.relpath(os.path.join(folder, name), SOURCE_ROOT) for name in here]
    return sorted(n for n in set(names) if n and os.path.isfile(os.path.join(SOURCE_ROOT, n)))


def sources(*suffixes):
    """C files (or those with other suffixes) of our folders."""
    return [f for f in files() if f.split("/")[0] in FOLDERS and f.endswith(suffixes or (".c", ".h"))]


def read(name):
    with open(os.path.join(SOURCE_ROOT, name), encoding="utf-8", errors="replace") as f:
        return f.read()


def report(what, problems):
    """Print the problems and leave with the exit status of the check."""
    for problem in problems:
        print(problem)
    print(f"{what}: {len(problems)} problem(s)" if problems else f"{what}: ok")
    sys.exit(1 if problems else 0)
