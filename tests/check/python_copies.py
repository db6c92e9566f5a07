#!/usr/bin/env python3
"""What the package `elastic` has copied from the C sources (page, messages, error codes, phases, notices, bounds) is as it is there: a
C program made from the headers prints theirs."""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile

import tree

sys.path.insert(0, os.path.join(tree.SOURCE_ROOT, "python"))
from elastic import _page, _wire, errors, job, world  # noqa: E402

CC = shlex.split(os.environ.get("CC", "gcc"))
PROGRAM = """
#include <stddef.h>
#include <stdio.h>
#include "base/ctl.h"
#include "base/histogram.h"
#include "base/page.h"

#define NUMBER(name, value) printf("\\"%s\\": %lld,\\n", name, (long long)(value));
#define CODE(name, value, text) printf("\\"error %s\\": [%d, \\"%s\\"],\\n", #name, value, text);
#define PHASE(name, text) NUMBER("phase " #name, ER_PHASE_##name)
#define NOTICE(name, text) NUMBER("notice " #name, ER_NOTICE_##name)
#define TYPE(name) NUMBER("type " #name, ER_CTL_##name)

int main(void)
{
    printf("{");
    ER_ERROR_CODES(CODE)
    ER_PHASES(PHASE)
    ER_NOTICES(NOTICE)
    ER_CTL_TYPES(TYPE)
    NUMBER("page bytes", ER_PAGE_BYTES)
    NUMBER("page magic", ER_PAGE_MAGIC)
    NUMBER("page version", ER_PAGE_VERSION)
    NUMBER("notice word", offsetof(struct er_page, to_worker.word))
    NUMBER("notice kind", ER_NOTICE_KIND)
    NUMBER("notice save", ER_NOTICE_SAVE)
    NUMBER("protocol", ER_CTL_PROTOCOL)
    NUMBER("rejoins", ER_CTL_REJOINS)
    NUMBER("key max", ER_CTL_KEY_MAX)
    NUMBER("value max", ER_CTL_VALUE_MAX)
    NUMBER("packet max", ER_CTL_PACKET_MAX)
    NUMBER("num max", ER_CTL_NUM_MAX)
    NUMBER("str max", ER_CTL_STR_MAX)
FIELDS
    printf("\\"bounds\\": [");
    for (size_t i = 0; i < er_bounds_fine.n; i++)
        printf("%s%.17g", i ? ", " : "", er_bounds_fine.of[i]);
    printf("]}");
    return 0;
}
"""


def of_c():
    """By name, what the headers say."""
    body = re.search(r"struct er_page_progress \{(.*?)\n\};", tree.read("base/page.h"), re.S).group(1)
    body = re.sub(r"/\*.*?\*/", "", body, flags=re.S)
    names = [re.sub(r"\[.*", "", name).strip() for line in re.findall(r"_Atomic uint64_t ([^;]+);", body) for name in line.split(",")]
    fields = "".join(f'    NUMBER("field {n}", offsetof(struct er_page, from_worker.{n}))\n' for n in names)
    with tempfile.TemporaryDirectory() as folder:
        source, program = os.path.join(folder, "copies.c"), os.path.join(folder, "copies")
        with open(source, "w", encoding="utf-8") as f:
            f.write(PROGRAM.replace("FIELDS\n", fields))
        subprocess.run([*CC, "-std=gnu17", "-D_GNU_SOURCE", "-I", tree.SOURCE_ROOT, source, os.path.join(tree.SOURCE_ROOT, "base/histogram.c"), "-o",
                        program], check=True)
        return json.loads(subprocess.run([program], check=True, capture_output=True, text=True).stdout)


def of_python():
    # pylint: disable=protected-access
    words = {**_page._AT, "steps_by_time": _page._STEPS_BY_TIME}
    types = {k: v for k, v in vars(_wire).items() if k.isupper() and isinstance(v, int) and not k.startswith("_") and
             k not in ("PROTOCOL", "KEY_MAX", "VALUE_MAX", "PACKET_MAX", "READY_REJOINS")}
    return {
        **{f"field {name}": 8 * at for name, at in words.items()},
        **{f"error ER_E_{k}": [v, errors._NAMES[v]] for k, v in vars(errors).items() if k.isupper() and isinstance(v, int) and v in errors._NAMES},
        **{f"phase {p.name}": int(p) for p in world.Phase},
        **{f"notice {n.name}": int(n) for n in world.Notice},
        **{f"type {name}": number for name, number in types.items()},
        "page bytes": _page._BYTES, "page magic": _page._MAGIC, "page version": _page._VERSION, "notice word": 8 * _page._NOTICE,
        "notice kind": job._NOTICE_KIND, "notice save": job._NOTICE_SAVE, "protocol": _wire.PROTOCOL, "rejoins": _wire.READY_REJOINS,
        "key max": _wire.KEY_MAX, "value max": _wire.VALUE_MAX, "packet max": _wire.PACKET_MAX, "num max": _wire._NUM_MAX,
        "str max": _wire._STR_MAX, "bounds": list(_page._BOUNDS),
    }


c, python = of_c(), of_python()
# Messages of elastic-ctl's alone are nothing to a worker.
missing = [name for name in c if name not in python and not name.startswith("type ")]
tree.report("copies in python/elastic", [f"{name}: C has {c[name]}, Python nothing" for name in missing] +
            [f"{name}: Python has {python[name]}, C {c.get(name)}" for name in python if c.get(name) != python[name]])
