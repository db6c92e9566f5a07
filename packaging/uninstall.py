#!/usr/bin/env python3
"""Remove what `meson install` of a build folder puts in place: uninstall.py FOLDER [DESTDIR]."""

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


def main(build, destdir=""):
    done = subprocess.run(["meson", "introspect", "--installed", build], capture_output=True, text=True, check=True)
    # A relative join would drop DESTDIR before an absolute path.
    paths = [os.path.normpath(destdir + "/" + path if destdir else path) for path in json.loads(done.stdout).values()]
    removed = sum(remove(path) for path in paths)
    # Folders of our own; rmdir takes empty ones only.
    for folder in sorted({os.path.dirname(path) for path in paths}, key=len, reverse=True):
        while "elastic-run" in folder.split("/"):
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
