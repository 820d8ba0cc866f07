#!/usr/bin/env python3
"""Sums records of the self-test and of compute-sanitizer: what docs/results/selftest.json and sanitize.json hold.

    python3 bench/sum_records.py selftest RECORD.json... > docs/results/selftest.json
    python3 bench/sum_records.py sanitize RECORD.json... > docs/results/sanitize.json
"""
import collections
import json
import re
import sys


def code_of(row):
    found = re.search(r"/ ([a-z0-9.-]+)\]", str(row.get("why", "")))
    return found.group(1) if found else "other"


def selftest(records):
    """Per cuDNN: counts, seeds with their cases, refusals by code, and every case that is wrong or failed."""
    versions = {}
    for record in records:
        version = versions.setdefault(record["cudnn"], {
            "device": record["device"], "cases": 0, "right": 0, "refused": 0, "wrong": 0, "failed": 0,
            "worst_relative_error": 0.0, "verdicts_differed": 0, "seeds": {},
            "refused_by_code": collections.Counter(), "not_right": [],
        })
        for key in ("cases", "right", "refused", "wrong", "failed"):
            version[key] += record[key]
        version["worst_relative_error"] = max(version["worst_relative_error"], record["worst_relative_error"])
        version["verdicts_differed"] += record.get("verdicts", {}).get("differed", 0)
        seeds = version["seeds"]
        seed = str(record["seed"])
        seeds[seed] = seeds.get(seed, 0) + record["cases"]
        for row in record["not_right"]:
            if row["status"] == "refused":
                version["refused_by_code"][code_of(row)] += 1
            else:
                version["not_right"].append({k: row.get(k) for k in ("case", "status", "why", "text")})
    for version in versions.values():
        version["refused_by_code"] = dict(version["refused_by_code"].most_common())
    return dict(sorted(versions.items()))


def sanitize(records):
    """Cases and errors of memcheck together and per kind, the other tools' samples, and every distinct fault.

    `launched` leaves out the cases that were refused before a launch; `seeds` counts the cases of each seed.
    """
    whole = {"cases": 0, "launched": 0, "errors": 0, "kinds": {}, "versions": {}, "tools": {}, "faults": [], "silent": []}
    for record in records:
        start = {"cases": 0, "launched": 0, "errors": 0, "seeds": {}}
        version = whole["versions"].setdefault(record["cudnn"], start)
        launched = sum(n for kind in record["kinds"].values() for end, n in kind["ended"].items() if end != "refused")
        for part in (whole, version):
            part["cases"] += record["cases"]
            part["launched"] += launched
            part["errors"] += record["errors"]
        seeds = version["seeds"]
        seeds[str(record["seed"])] = seeds.get(str(record["seed"]), 0) + record["cases"]
        for group in ("kinds", "tools"):
            for name, counts in record[group].items():
                sums = whole[group].setdefault(name, {"cases": 0, "errors": 0})
                sums["cases"] += counts["cases"]
                sums["errors"] += counts["errors"]
        merged = {}
        for fault in whole["faults"] + [dict(fault, cudnn=record["cudnn"]) for fault in record["faults"]]:
            key = (fault["cudnn"], fault["tool"], fault["what"], fault["kernel"], fault["place"])
            if key in merged:
                merged[key]["count"] += fault["count"]
            else:
                merged[key] = fault
        whole["faults"] = list(merged.values())
        whole["silent"] += record["silent"]
    return whole


def main():
    kind, files = sys.argv[1], sys.argv[2:]
    records = [json.load(open(file)) for file in files]
    json.dump({"selftest": selftest, "sanitize": sanitize}[kind](records), sys.stdout, indent=1)
    print()


main()
