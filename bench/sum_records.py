#!/usr/bin/env python3
"""Reduces records of a GPU run to the fields that the pages of docs/results read.

    python3 bench/sum_records.py selftest RECORD.json... > docs/results/selftest.json
    python3 bench/sum_records.py adapter RECORD.json > docs/results/adapter-c.json
    python3 bench/sum_records.py keep RECORD.json... > THEME.json

`keep` reads records of `run`, `bench` and the peers' scripts, and writes their fields that pages read,
by record name.
"""
import collections
import json
import os
import re
import sys


def code_of(row):
    found = re.search(r"/ ([a-z0-9.-]+)\]", str(row.get("why", "")))
    return found.group(1) if found else "other"


def selftest(records):
    """Sums records into runs, one for each engine, kind of case and cuDNN: counts, also of each family of data, cases of
    each seed, refusals by code, and every wrong or failed case, which its seed draws again."""
    runs = {}
    for record in records:
        kind = "8 bits" if "amax_s" in record else "ranks" if "ranks" in record else "serving" if record.get("serving") else "mixed"
        engine = record.get("engine", "cudnn")
        run = runs.setdefault((engine, kind, record.get("cudnn", ""), record["device"]), {
            "engine": engine, "kind": kind, "cudnn": record.get("cudnn"), "device": record["device"],
            "cases": 0, "right": 0, "refused": 0, "wrong": 0, "failed": 0, "worst_relative_error": 0.0,
            "worst_of_roundings": 0.0, "families": {}, "seeds": {},
            "refused_by_code": collections.Counter(), "not_right": [],
        })
        for key in ("cases", "right", "refused", "wrong", "failed"):
            run[key] += record[key]
        for key in ("worst_relative_error", "worst_of_roundings"):
            run[key] = max(run[key], record.get(key, 0.0))
        seed = str(record["seed"])
        run["seeds"][seed] = run["seeds"].get(seed, 0) + record["cases"]
        for family, counts in record.get("families", {}).items():
            sums = run["families"].setdefault(family, dict.fromkeys(("right", "refused", "wrong", "failed"), 0))
            for status, count in counts.items():
                sums[status] += count
        for row in record["not_right"]:
            if row["status"] == "refused":
                run["refused_by_code"][code_of(row)] += 1
            else:
                run["not_right"].append({k: str(row.get(k))[:120] for k in ("case", "family", "status", "why")})
    for run in runs.values():
        run["refused_by_code"] = dict(run["refused_by_code"].most_common())
    return {"runs": [run for _, run in sorted(runs.items())]}


# The fields that pages of docs/results read, at any depth of a record; `keep` leaves out the others.
KEPT = set("""
    device gpu machine cudnn torch flashinfer burst rest builds disk_hits right wrong refused failed
    median_load_ms median_vault_ms median_vault_and_load_ms median_first_launch_ms
    runs what device_ms first_launch_ms host_us tflops terabytes_per_s rows torch_ms
    entries case direction form status forward backward ms peers flex torch_cudnn reached
    decode prefill padding steps drawn growing copy_tb_per_s b kv new us us_launched step plan batch keys
    queries times_the_tightest choose_us update_us launch_us bytes_copied_per_step median p99 most
    torch_flash flashinfer_cuda_cores flashinfer_fa2
""".split())


def adapter(records):
    """Keeps a record of an adapter, with its cases counted: by pass and type those that are right with the largest
    error, refusals by code, and every wrong case."""
    sums = []
    for record in records:
        right, refused, wrong = {}, collections.Counter(), []
        for case in record["cases"]:
            of = f"{case['pass']} {case['what'].split()[1]}"
            if case["verdict"] == "right":
                count, error = right.get(of, (0, 0.0))
                right[of] = (count + 1, max(error, case["error"]))
            elif case["verdict"] == "refused":
                refused[case["codes"]] += 1
            else:
                wrong.append(case)
        cases = {of: {"right": count, "largest_error": error} for of, (count, error) in sorted(right.items())}
        sums.append({**record, "cases": cases, "refused_by_code": dict(refused.most_common()), "wrong_cases": wrong})
    return sums[0] if len(sums) == 1 else sums


def kept(value):
    """The fields that pages read, without default values, and with five digits per number."""
    if isinstance(value, dict):
        return {k: kept(v) for k, v in value.items() if k in KEPT and v not in (None, [], {}, "right", "auto")}
    if isinstance(value, list):
        return [kept(v) for v in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def lines(value, indent=""):
    """Formats JSON with a line for each record, field and row."""
    inner = indent + " "
    if isinstance(value, dict) and len(indent) < 2:
        rows = [f"{inner}{json.dumps(k)}: {lines(v, inner)}" for k, v in value.items()]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join(inner + json.dumps(v, separators=(",", ":")) for v in value) + f"\n{indent}]"
    return json.dumps(value)


def main():
    kind, files = sys.argv[1], sys.argv[2:]
    records = [json.load(open(file)) for file in files]
    if kind == "keep":
        names = [os.path.basename(file).removesuffix(".json") for file in files]
        print(lines({name: kept(record) for name, record in zip(names, records, strict=True)}))
        return
    json.dump({"adapter": adapter, "selftest": selftest}[kind](records), sys.stdout, indent=1)
    print()


main()
