#!/usr/bin/env python3
"""The JSON Schema of the job spec and elastic-run itself have the same opinion of job specs.

Every example and the reference's spec pass both; of the documents below each passes both or neither.
"""

import glob
import json
import os
import subprocess
import sys
import tempfile

import jsonschema
import yaml

SOURCE, BUILD = os.environ["ER_TEST_SOURCE"], os.environ["ER_TEST_BUILD"]

GOOD = """
command: ./train --lr 3e-4
---
command: [python3, -u, train.py, 5, true]
env: {A: 1, B: x, C: null, D: false}
---
command: x
nnodes: {min: 1, max: 1}
nproc_per_node: cpu
---
command: x
nnodes: "1:1"
nproc_per_node: 2
log: {dir: none, redirects: "0:1,12:3", tee: "global:4:3", console: "local:0-3", max_size: 4KiB, max_files: 2}
---
command: x
restart: {max: none, window: none, backoff: {initial: 1s, max: 1h30m}, fatal_exit_codes: 5}
stop: {signal: SIGINT, grace: 250ms, signals_to_handle: [TERM, INT], forward: USR1}
---
command: x
master_port: "20000-20999"
port_range: 4000
node: {id: 17, rank: 3, topology: rack7/leaf2}
---
command: x
checkpoint: {dir: /tmp/ck, every_steps: 5, every: none, keep_last: 1, on_failure: {max: none}}
---
command: x
role: b
roles: {a: {}, b: {nnodes: 1, nproc_per_node: 2, command: [y, "z"], env: {A: null}}}
nnodes: 1
name: n
rendezvous: {endpoints: "h:1"}
---
command: x
stdin: none
virtual_local_rank: true
rendezvous: {lease_ttl: auto, join_timeout: none}
"""

BAD = """
name: x
---
[command]
---
command: x
comand: y
---
command: []
---
command: {a: b}
---
command: x
restart: {max: -1}
---
command: x
restart: {window: 30}
---
command: x
restart: {window: 1m1h}
---
command: x
restart: 5
---
command: x
restart: {backoff: {first: 1s}}
---
command: x
log: {tee: "5"}
---
command: x
log: {tee: "0:4"}
---
command: x
log: {max_size: 4}
---
command: x
log: {format: xml}
---
command: x
stdin: maybe
---
command: x
virtual_local_rank: "yes"
---
command: x
nproc_per_node: 0
---
command: x
nproc_per_node: many
---
command: x
nnodes: {min: 1}
---
command: x
nnodes: "1:2:3"
---
command: x
master_port: 70000
---
command: x
name: -x
---
command: x
name: a b
---
command: x
env: {"A=B": 1}
---
command: x
env: [A]
---
command: x
env: {A: [1]}
---
command: x
stop: {signal: [TERM]}
---
command: x
restart: {fatal_exit_codes: [300]}
---
command: x
checkpoint: {keep_last: none}
---
command: x
hang: {action: panic}
---
command: x
roles: {default: {nodes: 1}}
---
command: x
roles: [default]
"""


class CoreLoader(yaml.SafeLoader):
    """As YAML 1.2's core schema has it: only true and false are booleans, `on` is a string."""


CoreLoader.yaml_implicit_resolvers = {
    first: [(tag, regex) for tag, regex in rows if tag != "tag:yaml.org,2002:bool" or first in "tf"]
    for first, rows in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def verdict_of_program(text):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "job.yaml")
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        done = subprocess.run([os.path.join(BUILD, "elastic-run"), "--print-config", path], capture_output=True, text=True,
                              check=False)
        return done.returncode, done.stderr.strip()


def main():
    with open(os.path.join(SOURCE, "packaging/schema/elastic-job.schema.json"), encoding="utf-8") as f:
        schema = json.load(f)
    jsonschema.Draft7Validator.check_schema(schema)
    validator = jsonschema.Draft7Validator(schema)
    problems = []

    def check(name, text, good):
        errors = [e.message for e in validator.iter_errors(yaml.load(text, CoreLoader))]
        if bool(errors) == good:
            problems.append(f"{name}: the schema {'refuses' if good else 'accepts'} it {errors}")
        code, said = verdict_of_program(text)
        if (code == 0) != good:
            problems.append(f"{name}: elastic-run ends with {code}: {said}")

    examples = sorted(glob.glob(os.path.join(SOURCE, "examples", "*.yaml")))
    if not examples:
        problems.append("no examples")
    for path in examples + [os.path.join(SOURCE, "tests/unit/data/reference_spec.yaml")]:
        with open(path, encoding="utf-8") as f:
            check(os.path.relpath(path, SOURCE), f.read(), True)
    for i, text in enumerate(GOOD.split("---\n")):
        check(f"good {i + 1}", text, True)
    for i, text in enumerate(BAD.split("---\n")):
        check(f"bad {i + 1}: {text}", text, False)
    print("\n".join(problems) or "schema: ok")
    sys.exit(bool(problems))


main()
