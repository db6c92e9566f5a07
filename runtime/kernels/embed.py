#!/usr/bin/env python3
"""Write a file's bytes as C: embed.py OUTPUT [INPUT]. Without an input, no kernels."""

import sys

data = open(sys.argv[2], "rb").read() if len(sys.argv) > 2 else b""
rows = [",".join(map(str, data[i:i + 32])) for i in range(0, len(data), 32)] or ["0"]
with open(sys.argv[1], "w", encoding="ascii") as f:
    f.write('#include "runtime/gpu_parts_internal.h"\n\n'
            "_Alignas(64) const unsigned char er_kernels_image[] = {\n" + ",\n".join(rows) + "};\n"
            f"const size_t er_kernels_bytes = {len(data)};\n")
