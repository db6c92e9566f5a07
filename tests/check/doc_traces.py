#!/usr/bin/env python3
"""Excerpts of golden traces in docs/ are what the traces say; --fix writes them anew.

An excerpt stands in a code block behind `<!-- trace NAME FROM TO -->`: the lines of tests/sim/golden/NAME.txt from second FROM to
second TO.
"""

import os
import re
import sys

import tree

BLOCK = re.compile(r"<!-- trace (\w+) ([0-9.]+) ([0-9.]+) -->\n```text\n(.*?)```\n", re.S)


def excerpt(name, first, last):
    path = os.path.join("tests", "sim", "golden", name + ".txt")
    if not os.path.exists(os.path.join(tree.SOURCE_ROOT, path)):
        return None
    lines = re.findall(r"^ *[0-9]+\.[0-9]{3}  .*$", tree.read(path), re.M)
    return "".join(line + "\n" for line in lines if float(first) <= float(line.split()[0]) <= float(last))


def check(document, fix):
    text = tree.read(document)
    for name, first, last, shown in BLOCK.findall(text):
        wanted = excerpt(name, first, last)
        if not wanted:
            yield f"{document}: no golden trace '{name}', or nothing in it from second {first} to {last}"
        elif fix:
            head = f"<!-- trace {name} {first} {last} -->\n```text\n"
            text = text.replace(head + shown + "```\n", head + wanted + "```\n")
        elif shown != wanted:
            yield f"{document}: the excerpt of '{name}' is not what the trace says: tests/check/doc_traces.py --fix"
    if text.count("<!-- trace ") != len(BLOCK.findall(text)):
        yield f"{document}: a trace marker without numbers or without its ```text block"
    if fix and text != tree.read(document):
        with open(os.path.join(tree.SOURCE_ROOT, document), "w", encoding="utf-8") as f:
            f.write(text)


documents = [f for f in tree.files() if f.startswith("docs/") and f.endswith(".md")]
tree.report("traces in docs", [p for d in documents for p in check(d, "--fix" in sys.argv)])
