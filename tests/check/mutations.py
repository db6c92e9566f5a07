#!/usr/bin/env python3
"""The deliberate bugs of `make mutation` still apply to the sources, and the tests that must catch them are there."""

import os
import sys

import tree

sys.path.insert(0, os.path.join(tree.SOURCE_ROOT, "tests", "mutation"))
import bugs  # pylint: disable=wrong-import-position

LEAST = 24


def has_case(bug):
    """Criterion's are Test(suite, name), our own programs' "name" or CASE(name) or NAME_CASE(name."""
    source = f"tests/{bug.suite}/{'test_' if bug.suite == 'unit' else ''}{bug.program}.c"
    if not os.path.isfile(os.path.join(tree.SOURCE_ROOT, source)):
        return f"there is no {source}"
    text = tree.read(source)
    wanted = f"Test({bug.case.replace('::', ', ')})" if "::" in bug.case else bug.case
    return None if wanted in text else f"{source} has no case '{bug.case}'"


def problems():
    known = []
    for name in sorted(os.listdir(bugs.FOLDER)):
        try:
            bug = bugs.read(name)
            known.append(bug)
            changed = bugs.mutate(bug, tree.SOURCE_ROOT)
        except bugs.Broken as problem:
            yield str(problem)
            continue
        missing = has_case(bug)
        if missing:
            yield f"tests/mutation/bugs/{name}: {missing}"
        for file, text in changed.items():
            if text == tree.read(file):
                yield f"tests/mutation/bugs/{name}: it changes nothing in {file}"
    if len(known) < LEAST:
        yield f"tests/mutation/bugs: {len(known)} bugs, at least {LEAST} are wanted"


tree.report("mutations", list(problems()))
