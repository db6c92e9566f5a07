#!/usr/bin/env python3
"""Writes docs/staleness.svg: Fashion-MNIST with parameter servers, test loss by epoch for several staleness bounds.

    bench/plot_staleness.py build > docs/staleness.svg          (about a minute; 4 workers)
"""
import re
import subprocess
import sys

BOUNDS = (("0 (lock-step)", "0", "#1b6ca8"), ("1 step", "1", "#2a9d4f"), ("4 steps", "4", "#e08e0b"), ("none", "1000000", "#c0392b"))
EPOCHS, WORKERS = 10, 4
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 640, 360, 60, 40, 20, 50


def losses(build, staleness):
    out = subprocess.run(
        [f"{build}/elastic-run", "--nproc-per-node", str(WORKERS), f"{build}/examples/fashion_mnist", "--ps",
         "--epochs", str(EPOCHS), "--staleness", staleness, "--log-steps", "0"],
        check=True, capture_output=True, text=True).stdout
    found = [float(x) for x in re.findall(r"test_loss=([0-9.]+)", out)]
    assert len(found) == EPOCHS, out
    return found


def main():
    build = sys.argv[1] if len(sys.argv) > 1 else "build"
    curves = [(name, colour, losses(build, bound)) for name, bound, colour in BOUNDS]
    low = min(min(c[2]) for c in curves) * 0.97
    high = max(max(c[2]) for c in curves) * 1.03

    def x(epoch):
        return LEFT + (epoch - 1) * (WIDTH - LEFT - RIGHT) / (EPOCHS - 1)

    def y(loss):
        return TOP + (high - loss) * (HEIGHT - TOP - BOTTOM) / (high - low)

    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">')
    print(f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>')
    print(f'<text x="{LEFT}" y="20">Fashion-MNIST, {WORKERS} workers and parameter servers: test loss by staleness bound</text>')
    for i in range(6):
        loss = low + (high - low) * i / 5
        print(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(loss):.1f}" y2="{y(loss):.1f}" stroke="#ddd"/>')
        print(f'<text x="{LEFT - 6}" y="{y(loss) + 4:.1f}" text-anchor="end">{loss:.3f}</text>')
    for epoch in range(1, EPOCHS + 1):
        print(f'<text x="{x(epoch):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{epoch}</text>')
    print(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 12}" text-anchor="middle">epoch</text>')
    for i, (name, colour, curve) in enumerate(curves):
        points = " ".join(f"{x(e + 1):.1f},{y(loss):.1f}" for e, loss in enumerate(curve))
        print(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{points}"/>')
        print(f'<text x="{WIDTH - RIGHT - 120}" y="{TOP + 14 + 16 * i}" fill="{colour}">{name}: {curve[-1]:.4f}</text>')
    print("</svg>")


main()
