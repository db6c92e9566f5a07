#!/usr/bin/env python3
"""No tracked file names a folder of the machine it was written on."""

import os
import re

import tree

# Home folders, and the folder that this tree is in right now.
PATTERNS = [r"/home/[a-z][\w-]*/", r"/root/", r"/Users/\w+/", re.escape(tree.SOURCE_ROOT) + r"\b"]
SUSPECT = re.compile("|".join(PATTERNS))


def problems_of(name):
    for number, line in enumerate(tree.read(name).splitlines(), 1):
        if SUSPECT.search(line):
            yield f"{name}:{number}: {line.strip()[:120]}"


SELF = os.path.relpath(os.path.abspath(__file__), tree.SOURCE_ROOT)
tree.report("no absolute paths", [p for name in tree.files(untracked=False) if name != SELF for p in problems_of(name)])
