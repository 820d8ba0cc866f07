"""Compiles what cases need into the caches of the libraries, in parallel processes: kernels of FlashInfer by nvcc, of
FlashAttention-4 and FlexAttention by their own compilers."""
import concurrent.futures
import hashlib
import importlib
import multiprocessing
import os
import sys
import time

# nvcc compiles the files of one module at a time beside those of others.
PROCESSES, FILES = 16, 3


def begin(gpu):
    os.environ |= {"MAX_JOBS": str(FILES), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    import torch

    torch.set_num_threads(1)
    torch.cuda.set_device(gpu)


def small(w):
    """A request for the same kernels of FlashInfer with one short sequence."""
    queries = w["queries"][0]
    keys = -(-max(queries, 2 * w["page"]) // w["page"]) * w["page"] if w["page"] else queries
    pages = keys // max(1, w["page"])
    return w | {"b": 1, "queries": [queries], "keys": [keys], "pages": pages}


def tasks(requests):
    """What is compiled, each once: a module, the name of a peer and a request."""
    from cases import Case

    found = {}
    for module in ("ways_flashinfer", "ways_flash_attn", "ways_flex"):
        try:
            ways = importlib.import_module(module)
        except Exception as problem:
            print(f"{module}: {type(problem).__name__}: {problem}"[:200], file=sys.stderr)
            continue
        for w in requests:
            # No operand is made for that.
            case = Case(w, "meta")
            for name in ways.ways(case):
                of = ways.key(case, name)
                if of is not None:
                    found.setdefault((module, of), (module, name, small(w) if module == "ways_flashinfer" else w))
    # Modules that take longest come first, and rows whose kernels are alike are apart.
    rank = lambda task: (task[0] != "ways_flashinfer", "cores" in task[1] or "mla" in task[1], hash_of(task))
    return sorted(found.values(), key=rank)


def hash_of(task):
    return hashlib.sha256(repr(task).encode()).digest()


def compute(module, name, w):
    import torch

    from cases import Case
    from measure import one_order

    case = Case(w)
    with torch.set_grad_enabled(case.backward), one_order(case):
        f, _ = importlib.import_module(module).ways(case)[name]()
        f()
        torch.cuda.synchronize()


def one(module, name, w):
    """Computes a case once: the name, the seconds, and why it failed. None if it is refused."""
    import torch

    from cases import Refused
    from measure import words

    begun, why = time.time(), None
    try:
        compute(module, name, w)
    except Refused:
        return None
    except Exception as problem:
        why = words(problem)
    torch.cuda.empty_cache()
    return name, time.time() - begun, why


def compiled(requests, gpu):
    begun, lost, count = time.time(), [], 0
    with concurrent.futures.ProcessPoolExecutor(
        PROCESSES, multiprocessing.get_context("spawn"), initializer=begin, initargs=(gpu,)
    ) as pool:
        for done in concurrent.futures.as_completed([pool.submit(one, *task) for task in tasks(requests)]):
            try:
                told = done.result()
            except Exception as problem:
                lost.append(f"{type(problem).__name__}: {problem}"[:200])
                continue
            if told is None:
                continue
            name, seconds, why = told
            if why:
                lost.append(f"{name}: {why}")
            else:
                count += 1
            ended = f": {why}" if why else ""
            print(f"{time.time() - begun:6.1f} s: {name} in {seconds:.1f} s{ended}", file=sys.stderr)
    return {"compiled": count, "lost": lost, "seconds": time.time() - begun}
