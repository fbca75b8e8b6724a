#!/usr/bin/env python3
"""lab/attention/stalls.py SOURCE.csv [LEAST_PERCENT]

Where the warps of a kernel wait, by its parts (warpgroups that set their registers differently): of each part the share
of samples and its stalls, then its instructions with at least LEAST_PERCENT (1) of the part's samples, and barriers and
products with at least a tenth of that. SOURCE.csv:

    ncu --section SourceCounters -k regex:attention_backward -s 1 -c 1 -o x ./check_backward time ...
    ncu -i x.ncu-rep --page source --csv > SOURCE.csv"""

import csv
import sys
from collections import Counter

MARKS = ("HGMMA", "DEPBAR", "SYNCS", "BAR", "MEMBAR", "FENCE", "WARPGROUP")


def rows_of(path):
    """Of each instruction: its text, its samples, and those of each stall."""
    lines = list(csv.reader(open(path)))
    head = next(i for i, line in enumerate(lines) if line and line[0] == "Address")
    names = lines[head]
    for line in lines[head + 1 :]:
        row = dict(zip(names, line, strict=False))
        stalls = Counter()
        for name, value in row.items():
            if name.startswith("stall_") and "Not Issued" not in name and value:
                stalls[name[6:]] = float(value)
        yield " ".join(row["Source"].split()), float(row["# Samples"] or 0), stalls


def top(stalls, count):
    return ", ".join(f"{name} {n:.0f}" for name, n in stalls.most_common(count) if n)


def main():
    least = float(sys.argv[2]) if len(sys.argv) > 2 else 1.0
    parts, part = {}, "before"
    for number, (text, samples, stalls) in enumerate(rows_of(sys.argv[1])):
        parts.setdefault(part, []).append((number, text, samples, stalls))
        if "USETMAXREG" in text:
            part = f"{int(text.split()[-1].rstrip(';'), 16)} registers"
    whole = sum(samples for rows in parts.values() for _, _, samples, _ in rows)
    for part, rows in parts.items():
        of_part = sum(samples for _, _, samples, _ in rows)
        print(f"== {part}: {100 * of_part / whole:.1f} % of {whole:.0f} samples; {top(sum((r[3] for r in rows), Counter()), 6)}")
        so_far = 0.0
        for number, text, samples, stalls in rows:
            so_far += samples
            share = 100 * samples / of_part if of_part else 0
            if share >= least or share >= least / 10 and any(mark in text for mark in MARKS):
                print(f"{number:5} {text[:70]:70} {share:5.1f} % (to here {100 * so_far / of_part:5.1f} %)  {top(stalls, 2)}")


main()
