#!/usr/bin/env python3
"""Remove what `meson install` of a build folder puts in place: uninstall.py FOLDER [DESTDIR]."""

import glob
import json
import os
import subprocess
import sys


def remove(path):
    try:
        os.unlink(path)
    except FileNotFoundError:
        return 0
    return 1


def compiled(path):
    """What Python has made of a module, and left beside it."""
    folder, name = os.path.split(path)
    return glob.glob(os.path.join(glob.escape(folder), "__pycache__", name[:-len("py")] + "*.pyc")) if name.endswith(".py") else []


def is_ours(folder):
    return "elastic-run" in folder.split("/") or os.path.basename(folder) in ("elastic", "__pycache__")


def main(build, destdir=""):
    done = subprocess.run(["meson", "introspect", "--installed", build], capture_output=True, text=True, check=True)
    # A relative join would drop DESTDIR before an absolute path.
    paths = [os.path.normpath(destdir + "/" + path if destdir else path) for path in json.loads(done.stdout).values()]
    paths += [cache for path in paths for cache in compiled(path)]
    removed = sum(remove(path) for path in paths)
    # Folders of our own; rmdir takes empty ones only.
    for folder in sorted({os.path.dirname(path) for path in paths}, key=len, reverse=True):
        while is_ours(folder):
            try:
                os.rmdir(folder)
            except OSError:
                break
            folder = os.path.dirname(folder)
    print(f"{removed} files removed")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    main(*sys.argv[1:])
