#!/usr/bin/env python3
"""Files over 500 lines and functions over 80: a report for the reader, never a failure."""

import re

import tree

FILE_LINES, FUNCTION_LINES = 500, 80


def functions(text):
    """(name, lines) of each function: a brace in the first column opens it, another closes it."""
    start, name = None, ""
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        if line == "{" and start is None:
            head = " ".join(lines[max(0, number - 4):number - 1])
            names = re.findall(r"(\w+)\s*\(", head.split(";")[-1].split("}")[-1])
            start, name = number, names[0] if names else "?"
        elif line == "}" and start is not None:
            yield name, number - start + 1
            start = None


def long_ones():
    for source in tree.sources():
        text = tree.read(source)
        if text.count("\n") > FILE_LINES:
            yield f"{source}: {text.count(chr(10))} lines"
        for name, n in functions(text):
            if n > FUNCTION_LINES:
                yield f"{source}: {name}() has {n} lines"


found = list(long_ones())
print("\n".join(found + [f"lengths: {len(found)} over {FILE_LINES} lines a file or {FUNCTION_LINES} a function"]))
