#!/usr/bin/env python3
"""Files of ours read by PyPI's `safetensors`, files of its read by ours: safetensors_py.py ST_TOOL ELASTIC_CKPT BUILD.

The package goes into a virtual environment below the build folder. Exit status 77 (a skip) when PyPI cannot be reached.
"""

import os
import subprocess
import sys
import tempfile

PACKAGES = ["safetensors", "numpy", "xxhash"]


def prepare(build):
    """The environment's Python; None without the packages."""
    folder = os.path.join(build, "interop-venv")
    python = os.path.join(folder, "bin", "python")
    stamp = os.path.join(folder, "installed")
    if os.path.exists(stamp):
        return python
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "check": False}
    if subprocess.run([sys.executable, "-m", "venv", folder], **quiet).returncode != 0:
        return None
    if subprocess.run([python, "-m", "pip", "install", "--quiet", "--retries=1", "--timeout=15", *PACKAGES], **quiet).returncode != 0:
        return None
    with open(stamp, "w", encoding="utf-8"):
        pass
    return python


def compare(tool, ckpt_tool):
    import numpy as np
    import xxhash
    from safetensors import safe_open
    from safetensors.numpy import load_file, save_file

    with tempfile.TemporaryDirectory() as folder:
        # Ours -> theirs: the shard, and the exported file.
        subprocess.run([tool, "save", folder], check=True)
        shard = os.path.join(folder, "step-000000000001", "shard-0-of-1.safetensors")
        exported = os.path.join(folder, "out.safetensors")
        subprocess.run([ckpt_tool, "export", folder, exported], check=True, stdout=subprocess.DEVNULL)
        for path in (shard, exported):
            got = load_file(path)
            assert np.array_equal(got["layer.weight"], np.arange(35, dtype=np.float32).reshape(7, 5) / 4), path
            assert got["doubles"].tolist() == [0.5, -1e300, 3.0] and got["doubles"].dtype == np.float64
            assert got["count"].tolist() == [-9007199254740993] and got["bytes"].tolist() == [0, 1, 127, 128, 255]
            assert got["halves"].tolist() == [1.0, -2.5] and got["halves"].dtype == np.float16
            with safe_open(path, framework="np") as f:
                assert sorted(f.keys()) == ["bytes", "count", "doubles", "halves", "layer.weight"] and f.metadata()["format"]
        # Theirs -> ours.
        theirs = {"a": np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4), "b.c": np.array([1e-300, 2], dtype=np.float64),
                  "n": np.array([[[-5]], [[6]]], dtype=np.int64), "u": np.arange(251, dtype=np.uint8),
                  "h": np.linspace(-60000, 60000, 9, dtype=np.float16)}
        path = os.path.join(folder, "theirs.safetensors")
        save_file(theirs, path, metadata={"x": "y"})
        lines = subprocess.run([tool, "show", path], check=True, capture_output=True, text=True).stdout.split("\n")[:-1]
        kinds = {"float32": "F32", "float64": "F64", "int64": "I64", "uint8": "U8", "float16": "F16"}
        want = {f"{name} {kinds[str(v.dtype)]} {'x'.join(map(str, v.shape))} {xxhash.xxh3_128_hexdigest(v.tobytes())}"
                for name, v in theirs.items()}
        assert set(lines) == want, (lines, want)
        # A type that is not ours is refused by name.
        save_file({"h": np.zeros(4, dtype=np.int16)}, path)
        done = subprocess.run([tool, "show", path], check=False, capture_output=True, text=True)
        assert done.returncode == 1 and "I16" in done.stderr, done.stderr


def main():
    if len(sys.argv) == 5:
        compare(sys.argv[1], sys.argv[2])
        return 0
    python = prepare(sys.argv[3])
    if python is None:
        print("PyPI cannot be reached")
        return 77
    return subprocess.run([python, "-B", __file__, *sys.argv[1:4], "inside"], check=False).returncode


sys.exit(main())
