#!/usr/bin/env python3
"""Relative links in Markdown files lead to something that is there."""

import os
import re

import tree

LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")


def broken():
    for name in tree.files():
        if name.endswith(".md"):
            for target in LINK.findall(tree.read(name)):
                path = os.path.join(tree.SOURCE_ROOT, os.path.dirname(name), target)
                if "://" not in target and not os.path.exists(path):
                    yield f"{name}: {target} is not there"


tree.report("links", list(broken()))
