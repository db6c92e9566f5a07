#!/usr/bin/env python3
"""Write a file's bytes as C: embed.py OUTPUT HEADER ARRAY LENGTH [INPUT]. HEADER declares both names; without an input there are no
bytes."""

import sys

output, header, array, length = sys.argv[1:5]
data = open(sys.argv[5], "rb").read() if len(sys.argv) > 5 else b""
rows = [",".join(map(str, data[i:i + 32])) for i in range(0, len(data), 32)] or ["0"]
with open(output, "w", encoding="ascii") as f:
    f.write(f'#include "{header}"\n\n'
            f"_Alignas(64) const unsigned char {array}[] = {{\n" + ",\n".join(rows) + "};\n"
            f"const size_t {length} = {len(data)};\n")
