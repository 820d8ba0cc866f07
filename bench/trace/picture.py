#!/usr/bin/env python3
"""Draws what trace.sh wrote as an SVG: a row for each host thread and each stream of each GPU.

    python3 picture.py TRACE.jsonl PICTURE.svg --at "8.4 MB" --number 60 --ms 2

The picture begins 60 us before what has these words in its name, for the so many-th time. Prints what each row is busy
with.
"""
import argparse
import gzip
import json
import re
from collections import defaultdict

WIDTH, ROW, LEFT = 1200, 26, 190
COLOURS = [
    ("ncclDev|MB", "#c0392b"), ("bwd|dq|dkv|dO|odo", "#16a085"), ("fprop|sdpa|attention|flash", "#2980b9"),
]  # fmt: skip


def read(path):
    opener = gzip.open if path.endswith(".gz") else open
    with opener(path, "rt") as file:
        for line in file:
            try:
                yield json.loads(line)
            except ValueError:
                continue


def colour(name):
    return next((colour for words, colour in COLOURS if re.search(words, name)), "#7f8c8d")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("trace")
    parser.add_argument("picture")
    parser.add_argument("--at", default="")
    parser.add_argument("--number", type=int, default=0)
    parser.add_argument("--ms", type=float, default=2.0)
    args = parser.parse_args()
    records = list(read(args.trace))
    named = sorted(r["begin"] for r in records if args.at in r["name"])
    begin = named[args.number] - 60_000
    end = begin + args.ms * 1e6
    rows, threads = defaultdict(list), sorted({r["thread"] for r in records if r["kind"] == "call"})
    for r in records:
        if r["begin"] < end and r["end"] > begin:
            call = r["kind"] == "call"
            where = f"host thread {threads.index(r['thread'])}" if call else f"GPU {r['gpu']}, stream {r['stream']}"
            rows[where].append(r)
    names = sorted(rows)
    scale = (WIDTH - LEFT) / (end - begin)
    height = ROW * len(names) + 30
    size = f'width="{WIDTH}" height="{height}"'
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">']
    for at, name in enumerate(names):
        y = at * ROW
        svg.append(f'<text x="4" y="{y + 17}">{name}</text>')
        total = defaultdict(lambda: [0, 0])
        for r in rows[name]:
            left, right = max(r["begin"], begin), min(r["end"], end)
            # Calls that would be no wider than a line are only counted.
            if r["kind"] != "call" or right - left > 2000:
                x, width = LEFT + (left - begin) * scale, max((right - left) * scale, 0.6)
                box = f"M{x:.1f} {y + 3}h{width:.1f}v{ROW - 6}h-{width:.1f}"
                svg.append(f'<path d="{box}" fill="{colour(r["name"])}"/>')
            total[r["name"]][0] += 1
            total[r["name"]][1] += right - left
        for what, (count, ns) in sorted(total.items(), key=lambda item: -item[1][1])[:6]:
            print(f"{name}: {count} x {what[:90]}, {ns / 1e3:.1f} us")
    for ms in range(int(args.ms * 4) + 1):
        x = LEFT + ms * 250_000 * scale
        svg.append(f'<text x="{x:.0f}" y="{height - 8}" fill="#555">{ms * 0.25:.2f} ms</text>')
    svg.append("</svg>")
    with open(args.picture, "w") as file:
        file.write("\n".join(svg) + "\n")


if __name__ == "__main__":
    main()
