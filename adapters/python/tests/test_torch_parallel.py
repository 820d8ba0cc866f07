"""A sequence that processes share, through `qkvault.torch`: two and four ranks over gloo on the CPU, beside the whole.

    cargo xtask torch-tests
"""

import functools
import os
import pathlib
import socket
import subprocess
import sys
import traceback
import unittest

import torch

if not os.environ.get("QKVAULT_LIBRARY"):
    raise unittest.SkipTest("QKVAULT_LIBRARY names no library")

import torch.multiprocessing as mp

ROWS = 32


def draws():
    """Tensors that are the same on all ranks."""
    torch.manual_seed(7)
    make = lambda *dims: torch.randn(*dims, dtype=torch.float16)  # noqa: E731
    return {
        "q": make(2, 4, ROWS, 16), "k": make(2, 4, ROWS, 16), "v": make(2, 4, ROWS, 16),
        "one": (make(2, 1, ROWS, 16), make(2, 1, ROWS, 16)), "d_o": make(2, 4, ROWS, 16),
        "table": torch.randn(4, 2 * ROWS), "slopes": torch.tensor([0.5, 0.25, 0.125, 0.0625]),
        "documents": torch.tensor([[0] * 5 + [1] * 27, [0] * 15 + [1] * 9 + [2] * 8]), "sinks": torch.randn(4),
        "bias": make(1, 4, ROWS, ROWS), "keep": (torch.rand(ROWS, ROWS) > 0.3) | torch.eye(ROWS, dtype=torch.bool),
    }  # fmt: skip


def cases(t):
    """Name, strategies, options."""
    alibi = lambda s, b, h, i, j: s - t["slopes"][h] * (i - j)  # noqa: E731
    table = lambda s, b, h, i, j: s + t["table"][h, i - j + ROWS] + 0.01 * j  # noqa: E731
    documents = lambda b, h, i, j: (t["documents"][b, i] == t["documents"][b, j]) & (j <= i)  # noqa: E731
    lengths = {"q_lengths": torch.tensor([27, 9]), "kv_lengths": torch.tensor([27, 9])}
    both, one = ("gather", "heads"), ("gather",)
    return [
        ("plain", both, {}), ("causal", both, {"is_causal": True}),
        ("window", both, {"is_causal": True, "window": 9}), ("short window", one, {"is_causal": True, "window": 2}),
        ("both sides", both, {"window": (6, 3)}), ("left alone", one, {"window": (6, -1)}),
        ("alibi", both, {"score_mod": alibi, "is_causal": True}),
        ("slopes", both, {"alibi_slopes": t["slopes"], "is_causal": True, "softcap": 3.0}),
        ("a table", both, {"score_mod": table}), ("documents", both, {"mask_mod": documents}),
        ("lengths", both, {"is_causal": True, **lengths}), ("sinks", both, {"is_causal": True, "sinks": t["sinks"]}),
        ("both sides and lengths", both, {"window": (6, 3), **lengths}),
        ("window and positions", one, {"score_mod": lambda s, b, h, i, j: s - 0.01 * i * (i - j), "is_causal": True,
                                       "window": 9, "scale": 0.5, "deterministic": True}),
    ]  # fmt: skip


def off(found, exact):
    found, exact = found.detach().double(), exact.detach().double()
    assert found.shape == exact.shape, (found.shape, exact.shape)
    return ((found - exact).norm() / exact.norm().clamp(min=1e-6)).item()


def compare(ranks, found):
    """Every case in both orders: the rank's rows of O, of the log-sum-exp, and of all gradients."""
    import qkvault.torch as qt

    t = draws()
    for turn, (name, strategies, options) in enumerate(cases(t), ranks // 2):
        whole = [t[at].clone().requires_grad_() for at in "qkv"]
        o, lse = qt.attention(*whole, **options, return_lse=True)
        weights = torch.randn_like(lse)
        exact = torch.autograd.grad((o, lse), whole, (t["d_o"], weights))
        for strategy in strategies:
            order = ("zigzag", "contiguous")[(turn + len(strategy)) % 2]
            mine = lambda x: qt.context_parallel_shard(x, 2, order=order)  # noqa: B023, E731
            local = [mine(x.detach()).requires_grad_() for x in whole]
            own_o, own_lse = qt.context_parallel_attention(
                *local, order=order, strategy=strategy, return_lse=True, **options)
            gradients = torch.autograd.grad((own_o, own_lse), local, (mine(t["d_o"]), mine(weights)))
            worst = [off(own_o, mine(o)), off(*(x.nan_to_num(neginf=-9.0) for x in (own_lse, mine(lse))))]
            found[f"{name} {strategy} {order}"] = worst + [off(a, mine(b)) for a, b in zip(gradients, exact)]


def more(ranks, found):
    """Shared heads, tensors over queries, parts of gradients of parameters, and the whole again."""
    import torch.distributed as dist

    import qkvault.torch as qt

    t = draws()
    mine = lambda x, dim=2: qt.context_parallel_shard(x, dim)  # noqa: E731
    whole = [t["q"].clone().requires_grad_(), *(x.clone().requires_grad_() for x in t["one"])]
    exact = torch.autograd.grad(qt.attention(*whole, is_causal=True), whole, t["d_o"])
    local = [mine(x.detach()).requires_grad_() for x in whole]
    found["one key head"] = []
    for strategy in ("gather", "heads"):
        o = qt.context_parallel_attention(*local, is_causal=True, strategy=strategy)
        gradients = torch.autograd.grad(o, local, mine(t["d_o"]))
        found["one key head"] += [off(a, mine(b)) for a, b in zip(gradients, exact)]

    q, k, v = (t[at] for at in "qkv")
    rows = [mine(t["bias"]), mine(t["keep"], 0)]
    o = qt.context_parallel_attention(mine(q), mine(k), mine(v), bias=rows[0], attn_mask=rows[1], is_causal=True)
    exact_o = qt.attention(q, k, v, bias=t["bias"], attn_mask=t["keep"], is_causal=True)
    found["bias and mask"] = [off(o, mine(exact_o))]
    found["the whole again"] = [off(qt.context_parallel_unshard(o, 2), exact_o)]

    table = t["table"].half().requires_grad_()
    options = {"score_mod": lambda s, b, h, i, j: s + table[h, i - j + ROWS], "is_causal": True}
    (exact_table,) = torch.autograd.grad(qt.attention(q, k, v, **options), table, t["d_o"])
    o = qt.context_parallel_attention(mine(q), mine(k), mine(v), **options)
    part = torch.autograd.grad(o, table, mine(t["d_o"]))[0].float()
    dist.all_reduce(part)
    found["a table's gradient"] = [off(part, exact_table)]
    sinks = t["sinks"].clone().requires_grad_()
    (exact_sinks,) = torch.autograd.grad(qt.attention(q, k, v, sinks=sinks, is_causal=True), sinks, t["d_o"])
    for strategy in ("gather", "heads"):
        o = qt.context_parallel_attention(mine(q), mine(k), mine(v), sinks=sinks, is_causal=True, strategy=strategy)
        (part,) = torch.autograd.grad(o, sinks, mine(t["d_o"]))
        dist.all_reduce(part)
        found[f"sinks' gradient {strategy}"] = [off(part, exact_sinks)]

    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("cp",))
    o = qt.context_parallel_attention(mine(q), mine(k), mine(v), group=mesh["cp"], is_causal=True)
    found["a mesh"] = [off(o, mine(qt.attention(q, k, v, is_causal=True)))]


def moved(q, k, v, **options):
    """The bytes that this rank sends in a forward, as its schedule says them, and its launches."""
    import qkvault.torch as qt
    from qkvault.torch import _ranks

    qt.context_parallel_attention(q, k, v, **options)
    link = _ranks.link(None, q.device)
    told = next(reversed(link.kept.values())).forward.explain()
    rank = torch.distributed.get_rank()
    line = next(line for line in told.splitlines() if line.startswith(f"rank {rank}: sends"))
    return int(line.split()[3]), int(line.split()[-2])


def exchanged(ranks, found):
    """How many bytes leave a rank in a forward, for each window, and in how many launches."""
    import qkvault.torch as qt

    t = draws()
    for order in ("contiguous", "zigzag"):
        q, k, v = (qt.context_parallel_shard(t[at], 2, order=order) for at in "qkv")
        for name, window in (("one side", 2), ("both sides", (2, 1)), ("wide", 40)):
            options = {"is_causal": name == "one side", "window": window, "order": order}
            found[f"{order} {name}"] = moved(q, k, v, **options)


def kept(ranks, found):
    """A shape is prepared once, for every layout in memory, and its plan serves other numbers and lengths."""
    import qkvault.torch as qt
    from qkvault.torch import _ranks

    t = draws()
    mine = lambda x: qt.context_parallel_shard(x, 2)  # noqa: E731
    q, k, v = (t[at] for at in "qkv")
    rows = [mine(x.transpose(1, 2).contiguous().transpose(1, 2)) for x in (q, k, v)]
    spaced = [torch.cat([mine(x), mine(x)], -1)[..., :16] for x in (q, k, v)]
    link = _ranks.link(None, q.device)
    found["rows of all heads stay side by side"] = [float(row.stride(2) < row.stride(1)) for row in rows]
    one = k[:, :1].expand(k.shape)
    same = off(mine(one), mine(one.clone()))
    found["audit: the part of expanded heads is no column"] = [float(mine(one).stride(-1) != 1), same]
    found["heads stay apart"] = [float(mine(x).stride(1) < mine(x).stride(2)) for x in (q, k, v)]
    for name, parts in (("plain", [mine(x) for x in (q, k, v)]), ("rows", rows), ("spaced", spaced)):
        before = len(link.kept)
        for scale in (0.25, 0.5):
            for lengths in (torch.tensor([20, 30]), torch.tensor([32, 3])):
                options = {"is_causal": True, "scale": scale, "q_lengths": lengths, "kv_lengths": lengths}
                o = qt.context_parallel_attention(*parts, prefixes=1 + len(name), **options)
                found[f"{name} {scale} {lengths[1]}"] = [off(o, mine(qt.attention(q, k, v, **options)))]
        found[f"{name} is prepared once"] = [len(link.kept) - before - (name != "spaced")]


def lost(ranks, found):
    """A rank that calls for something else is named on all of them, and the group meets anew."""
    import torch.distributed as dist

    import qkvault
    import qkvault.torch as qt

    t = draws()
    q, k, v = (qt.context_parallel_shard(t[at], 2) for at in "qkv")
    try:
        qt.context_parallel_attention(q, k, v, window=(3, 3 + (dist.get_rank() == 1)))
        found["told"] = "nothing"
    except qkvault.Refused as error:
        found["told"] = str(error)
    o = qt.context_parallel_attention(q, k, v, is_causal=True)
    found["after"] = [off(o, qt.context_parallel_shard(qt.attention(*(t[at] for at in "qkv"), is_causal=True), 2))]


def guide(ranks, found):
    """The program of the guide."""
    import qkvault.torch as qt

    page = pathlib.Path(__file__).resolve().parents[3] / "crates/qkvault/src/guide/several_gpus.md"
    program = page.read_text().split("## PyTorch")[1].split("```python\n")[1].split("```")[0]
    program = "\n".join(line for line in program.splitlines() if "init_process_group" not in line)
    torch.manual_seed(3)
    names = {"device": "cpu"}
    exec(program, names)
    whole = [qt.context_parallel_unshard(names[name].detach(), 2).requires_grad_() for name in "qkv"]
    o = qt.attention(*whole, score_mod=names["alibi"], is_causal=True)
    exact = torch.autograd.grad(o.float().square().sum(), whole)
    mine = lambda x: qt.context_parallel_shard(x, 2)  # noqa: E731
    found["guide"] = [off(names["o"], mine(o)), *(off(names[n].grad, mine(g)) for n, g in zip("qkv", exact))]


def mistakes(ranks, found):
    """What users do wrong, as every rank is told."""
    from torch.distributed.tensor import DTensor, Shard, init_device_mesh

    import qkvault
    import qkvault.torch as qt

    t = draws()
    mine = lambda x: qt.context_parallel_shard(x, 2, order="contiguous")  # noqa: E731
    q, k, v = (mine(t[at]) for at in "qkv")
    ours = qt.context_parallel_attention

    def told(name, call):
        try:
            call()
            found[name] = "nothing"
        except (qt._parallel.ArgumentError, qkvault.Refused) as error:
            found[name] = str(error)

    told("divide", lambda: qt.context_parallel_shard(t["q"][:, :, :30], 2))
    told("odd", lambda: ours(q[:, :, :7], k[:, :, :7], v[:, :, :7]))
    told("order", lambda: ours(q, k, v, order="striped"))
    told("prefixes", lambda: ours(q, k, v, prefixes=0))
    told("strategy", lambda: ours(q, k, v, strategy="ring"))
    told("heads", lambda: ours(q[:, :2], k[:, :1], v[:, :1], strategy="heads"))
    told("bias", lambda: ours(q, k, v, bias=t["bias"]))
    told("bias by heads", lambda: ours(q, k, v, bias=t["bias"], strategy="heads"))
    told("lengths", lambda: ours(q, k[:, :, :4], v[:, :, :4], is_causal=True))
    spread = DTensor.from_local(q, init_device_mesh("cpu", (ranks,)), [Shard(2)])
    told("distributed", lambda: ours(spread, k, v))


def work(rank, ranks, port, queue, names):
    import tempfile

    import torch.distributed as dist

    import qkvault.torch as qt

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(ranks))
    found: dict = {name: {} for name in names}

    def tried(own, step):
        try:
            step()
        except Exception:  # noqa: BLE001
            own["failed"] = traceback.format_exc()

    def begun():
        torch.set_num_threads(1)
        dist.init_process_group("gloo", rank=rank, world_size=ranks)
        qt.configure(tempfile.mkdtemp(), cpu=True)

    tried(found[names[0]], begun)
    for name, own in found.items():
        tried(own, lambda name=name, own=own: globals()[name](ranks, own))
    tried(found[names[-1]], dist.destroy_process_group)
    queue.put(found)


# What so many ranks compute in one life: to start a process takes longer than most of it.
OF_RANKS = {2: ("guide", "compare", "more", "kept"), 4: ("compare", "exchanged", "mistakes", "lost")}


def together(ranks, *names):
    """What every rank found."""
    return [{key: value for name in names for key, value in rank[name].items()} for rank in every(ranks)]


@functools.cache
def every(ranks):
    names = OF_RANKS[ranks]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = mp.get_context("spawn")
    queue = context.Queue()
    workers = [context.Process(target=work, args=(rank, ranks, port, queue, names)) for rank in range(ranks)]
    [worker.start() for worker in workers]
    found = [queue.get(timeout=400) for _ in workers]
    [worker.join(60) for worker in workers]
    return found


class Parallel(unittest.TestCase):
    def right(self, found):
        self.assertEqual([rank["failed"] for rank in found if "failed" in rank], [])
        for rank in found:
            self.assertEqual(rank.keys(), found[0].keys())
            for name, errors in rank.items():
                with self.subTest(name):
                    self.assertLess(max(errors), 6e-3, errors)

    def test_two_ranks_compute_what_one_does(self):
        found = together(2, "guide", "compare", "more", "kept")
        self.assertGreater(len(found[0]), 25)
        self.right(found)

    def test_four_ranks_compute_what_one_does(self):
        self.right(together(4, "compare"))

    def test_windows_move_what_is_seen_of_the_neighbours_and_no_more(self):
        row, found = 2 * 4 * 16 * 2, together(4, "exchanged")
        self.assertEqual([rank["failed"] for rank in found if "failed" in rank], [])
        total = {name: sum(rank[name][0] for rank in found) for name in found[0]}
        # K and V; three borders of four chunks, or six of eight, because the fourth and fifth chunk are on one rank.
        for order, borders in (("contiguous", 3), ("zigzag", 6)):
            for name, rows in (("one side", 2), ("both sides", 3)):
                self.assertEqual(total[f"{order} {name}"], 2 * row * borders * rows, (order, name))
            # Through a window that sees everything, each rank is sent the other ranks' keys.
            self.assertEqual(total[f"{order} wide"], 2 * row * ROWS * 3, order)

    def test_a_rank_that_differs_is_named_and_the_group_meets_anew(self):
        for found in together(4, "lost"):
            self.assertIn("rank 1 has schedule", found["told"])
            self.assertLess(found["after"][0], 6e-3)

    def test_the_example_trains_as_one_rank_does(self):
        example = pathlib.Path(__file__).resolve().parents[1] / "examples" / "train.py"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(example)]
        said = subprocess.run([*command, "--cpu", "--steps", "2"], capture_output=True, text=True, timeout=300)
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertEqual(said.stdout.count("over 2 ranks"), 2, said.stdout)

    def test_mistakes_are_named_on_every_rank(self):
        for found in together(4, "mistakes"):
            for name, said in (
                ("divide", ["30 rows", "8 equal chunks for 4 ranks", "pad it to 32"]),
                ("odd", ["7 rows", "contiguous"]),
                ("order", ["'striped'", "zigzag"]), ("prefixes", ["prefixes is 0", "1 or more"]),
                ("strategy", ["'ring'", "'gather' or 'heads'"]),
                ("heads", ["q has 2 heads", "4 ranks", "gather"]), ("bias", ["bias has dims", "8 rows", "32 keys"]),
                ("bias by heads", ["bias is not exchanged"]), ("lengths", ["8 queries and 4 keys"]),
                ("distributed", ["q is a DTensor", "to_local"]),
            ):  # fmt: skip
                for part in said:
                    self.assertIn(part, found[name])

    def test_without_a_process_group_it_says_what_to_start(self):
        import qkvault.torch as qt

        t = draws()
        with self.assertRaisesRegex(ValueError, "init_process_group.*torchrun"):
            qt.context_parallel_attention(t["q"], t["k"], t["v"])


if __name__ == "__main__":
    unittest.main()
