"""The recorder: which calls it sees, how it describes each, and the file that it writes."""

import json
import os
import subprocess
import sys
import tempfile
import threading
import unittest

import golden
import torch
import torch.nn.functional as F
from torch.nn.attention.bias import causal_lower_right
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention as bound_early
from torch.utils.checkpoint import checkpoint

import qkvault_record
from qkvault_record import Undescribed, describe, record

KEPT = [bound_early]
COMPILED = torch.compile(flex_attention)
HALF = torch.bfloat16


def tensor(*shape, **options):
    return torch.randn(shape, dtype=HALF, **options)


def softcap(score, b, h, q, k):
    return torch.tanh(score / 20) * 20


def seen(program, **options):
    """What a recorder has after a program: pairs of calls and texts, and notes."""
    with tempfile.TemporaryDirectory() as folder:
        with record(os.path.join(folder, "m.json"), **options) as recorder:
            program()
        return [(entry["layers"], entry["text"].split("\n")) for entry in recorder.entries], recorder.notes


def one(program, **options):
    """The text of the only attention of a program, without Q and K, and its phase and scale."""
    entries, notes = seen(program, **options)
    assert len(entries) == 1, (entries, notes)
    return entries[0][1][2:]


class Calls(unittest.TestCase):
    """Every way to call the two functions is seen, and each call once."""

    def assert_calls(self, wanted, program):
        entries, notes = seen(program)
        self.assertEqual(sum(calls for calls, _ in entries), wanted, (entries, notes))
        self.assertEqual([note for note in notes if note.startswith("not recorded")], [])

    def test_by_attribute_by_names_bound_before_and_by_references(self):
        q = tensor(1, 2, 16, 64)
        self.assert_calls(1, lambda: F.scaled_dot_product_attention(q, q, q))
        self.assert_calls(1, lambda: bound_early(q, q, q))
        self.assert_calls(1, lambda: KEPT[0](q, q, q))
        self.assert_calls(1, lambda: F.scaled_dot_product_attention(query=q, key=q, value=q, is_causal=True))
        self.assert_calls(1, lambda: torch._C._nn.scaled_dot_product_attention(q, q, q))

    def test_in_modules_of_torch(self):
        rows = tensor(2, 8, 64)
        layer = torch.nn.TransformerEncoderLayer(64, 2, batch_first=True, dtype=HALF).eval()
        attention = torch.nn.MultiheadAttention(64, 2, batch_first=True, dtype=HALF)
        decoder = torch.nn.TransformerDecoderLayer(64, 2, batch_first=True, dtype=HALF).eval()
        with torch.no_grad():
            self.assert_calls(1, lambda: layer(rows))
            self.assert_calls(1, lambda: attention(rows, rows, rows, need_weights=False))
            self.assert_calls(2, lambda: decoder(rows, rows))

    def test_attention_that_returns_its_weights_is_named(self):
        rows = tensor(2, 8, 64)
        attention = torch.nn.MultiheadAttention(64, 2, batch_first=True, dtype=HALF)
        entries, notes = seen(lambda: attention(rows, rows, rows))
        self.assertEqual(entries, [])
        self.assertIn("MultiheadAttention", notes[0])
        self.assertIn("need_weights=False", notes[0])

    def test_on_other_threads(self):
        q = tensor(1, 2, 16, 64)

        def work():
            KEPT[0](q, q, q)
            F.scaled_dot_product_attention(q, q, q)
            flex_attention(q.float(), q.float(), q.float())

        def program():
            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        entries, _ = seen(program, dtype="bf16")
        self.assertEqual([calls for calls, _ in entries], [12])

    def test_on_a_thread_that_ran_before(self):
        q = tensor(1, 2, 16, 64)
        go, done = threading.Event(), threading.Event()

        def work():
            go.wait()
            F.scaled_dot_product_attention(q, q, q)
            bound_early(q, q, q)
            done.set()

        thread = threading.Thread(target=work)
        thread.start()

        def program():
            go.set()
            done.wait()

        self.assert_calls(2, program)
        thread.join()

    def test_inside_compiled_functions(self):
        q = tensor(1, 2, 16, 64)

        @torch.compile(fullgraph=True)
        def program():
            return F.scaled_dot_product_attention(q, q, q) + bound_early(q, q, q)

        self.assert_calls(2, program)
        mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 16, 16, device="cpu")
        self.assert_calls(1, lambda: COMPILED(q, q, q, score_mod=softcap, block_mask=mask))

    def test_a_compiled_function_still_works_afterwards(self):
        q = tensor(1, 2, 16, 64)
        compiled = torch.compile(lambda x: bound_early(x, x, x), backend="eager", fullgraph=True)
        before = compiled(q)
        self.assert_calls(1, lambda: compiled(q))
        self.assertTrue(torch.equal(compiled(q), before))
        self.assertIs(F.scaled_dot_product_attention, torch._C._nn.scaled_dot_product_attention)

    def test_a_large_flex_attention_runs_compiled(self):
        qkv = [tensor(1, 2, 128, 64).float() for _ in range(3)]
        wanted = flex_attention(*qkv, score_mod=softcap)
        found = []
        whole = qkvault_record._run_compiled
        calls = []

        def compiled(*arguments):
            calls.append(arguments)
            return whole(*arguments)

        qkvault_record._run_compiled, qkvault_record._LARGE_SCORES, kept = compiled, 0, qkvault_record._LARGE_SCORES
        try:
            with tempfile.TemporaryDirectory() as folder, record(os.path.join(folder, "m.toml"), dtype="bf16"):
                qkvault_record._ON_HOST, host = (), qkvault_record._ON_HOST
                found.append(flex_attention(*qkv, score_mod=softcap))
                qkvault_record._ON_HOST = host
        finally:
            qkvault_record._run_compiled, qkvault_record._LARGE_SCORES = whole, kept
        self.assertEqual(len(calls), 1)
        self.assertTrue(torch.allclose(found[0], wanted, atol=1e-4))

    def test_under_transforms_and_checkpointing(self):
        q = tensor(1, 2, 16, 64)
        causal = lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True).float().sum()  # noqa: E731
        self.assert_calls(1, lambda: torch.func.grad(causal)(q))
        leaf = q.clone().requires_grad_()
        for reentrant in (False, True):
            # The forward, and again in the backward.
            self.assert_calls(2, lambda: checkpoint(causal, leaf, use_reentrant=reentrant).backward())

    def test_under_vmap_the_whole_batch_is_described(self):
        samples = tensor(5, 2, 16, 64)
        entries, _ = seen(lambda: torch.vmap(lambda x: F.scaled_dot_product_attention(x, x, x))(samples))
        self.assertEqual(entries, [(1, ["q: bf16 [5,2,16,64] bhsd", "k: [5,2,16,64] bhsd"])])
        inside = tensor(2, 16, 3, 64)
        twice = torch.vmap(torch.vmap(lambda x: F.scaled_dot_product_attention(x, x, x), in_dims=1), in_dims=2)
        entries, _ = seen(lambda: twice(inside.unsqueeze(-2).expand(2, 16, 3, 4, 64).permute(0, 1, 2, 3, 4)))
        self.assertEqual(entries[0][1][0].split("[")[1].split("]")[0], "48,2,4,64")

    def test_nested_recorders_all_see_a_call_once(self):
        q = tensor(1, 2, 16, 64)
        with tempfile.TemporaryDirectory() as folder:
            with record(os.path.join(folder, "a.toml")) as a:
                F.scaled_dot_product_attention(q, q, q)
                with record(os.path.join(folder, "b.toml")) as b:
                    F.scaled_dot_product_attention(q, q, q)
                F.scaled_dot_product_attention(q, q, q)
        self.assertEqual(([e["layers"] for e in a.entries], [e["layers"] for e in b.entries]), ([3], [1]))

    def test_a_program_computes_what_it_computes_without_a_recorder(self):
        torch.manual_seed(0)
        # PyTorch 2.11 has no backward of flex_attention on CPUs where there is a GPU.
        device = "cuda" if torch.cuda.is_available() else "cpu"
        q = tensor(2, 4, 32, 64).float().to(device).requires_grad_()
        bias, corner = torch.randn(4, 32, 32, device=device), causal_lower_right(8, 32)

        def program():
            out = F.scaled_dot_product_attention(q, q, q, attn_mask=bias) + flex_attention(q, q, q, score_mod=softcap)
            few = F.scaled_dot_product_attention(q[:, :, :8], q, q, attn_mask=corner)
            (gradient,) = torch.autograd.grad(out.sum() + few.sum(), q)
            return out, few, gradient

        wanted, found = program(), []
        seen(lambda: found.extend(program()), dtype="bf16")
        for a, b in zip(wanted, found):
            self.assertTrue(torch.allclose(a, b, atol=1e-3 if device == "cuda" else 1e-5))

    def test_programs_that_trace_themselves_still_do(self):
        class Model(torch.nn.Module):
            def forward(self, x):
                return F.scaled_dot_product_attention(x, x, x, is_causal=True)

        q, model = tensor(2, 2, 16, 64), Model()
        wanted = model(q)
        free = ({0: torch.export.Dim("batch")},)
        for program in (
            lambda: torch.export.export(model, (q,), dynamic_shapes=free, strict=False).module()(torch.cat([q, q]))[:2],
            lambda: torch.fx.symbolic_trace(model)(q),
            lambda: torch.jit.trace(model, q)(q),
            lambda: torch.jit.script(model)(q),
        ):
            out = []
            seen(lambda: out.append(program()))  # noqa: B023
            self.assertTrue(torch.allclose(out[0], wanted, atol=1e-2))

    def test_on_the_meta_device_with_flex_attention(self):
        q = tensor(1, 2, 16, 64, device="meta")
        mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 16, 16, device="meta")
        out = []
        entries, notes = seen(lambda: out.append(flex_attention(q, q, q, score_mod=softcap, block_mask=mask)))
        self.assertEqual((out[0].shape, len(entries), notes), (q.shape, 1, []))


class Descriptions(unittest.TestCase):
    """Each property of a call is in the text."""

    def test_layouts_are_those_of_the_strides(self):
        packed = tensor(2, 16, 3, 4, 64).permute(2, 0, 3, 1, 4)
        for tensors, wanted in {
            (tensor(2, 16, 4, 64).transpose(1, 2),) * 3: ["q: bf16 [2,4,16,64]", "k: [2,4,16,64]"],
            (tensor(2, 4, 16, 64),) * 3: ["q: bf16 [2,4,16,64] bhsd", "k: [2,4,16,64] bhsd"],
            (tensor(16, 2, 4, 64).permute(1, 2, 0, 3),) * 3: ["q: bf16 [2,4,16,64] sbhd", "k: [2,4,16,64] sbhd"],
            tuple(packed): ["q: bf16 [2,4,16,64] bs3hd", "k: [2,4,16,64] bs3hd", "o: [2,4,16,64] bshd"],
            (tensor(2, 4, 16, 64), tensor(2, 4, 20, 64), tensor(2, 4, 20, 32)): [
                "q: bf16 [2,4,16,64] bhsd", "k: [2,4,20,64] bhsd", "v: [2,4,20,32] bhsd",
            ],
            (tensor(2, 4, 20, 64)[:, :, :16],) * 3: [
                "q: bf16 [2,4,16,64] strides [5120,1280,64,1]", "k: [2,4,16,64] strides [5120,1280,64,1]",
                "o: [2,4,16,64] bhsd",
            ],
            (tensor(8, 16, 64),) * 3: ["q: bf16 [1,8,16,64] bhsd", "k: [1,8,16,64] bhsd"],
            (tensor(3, 2, 4, 16, 64),) * 3: ["q: bf16 [6,4,16,64] bhsd", "k: [6,4,16,64] bhsd"],
        }.items():  # fmt: skip
            self.assertEqual(describe(*tensors).text.split("\n"), wanted)

    def test_one_head_for_all_is_one_head(self):
        q, k = tensor(2, 4, 16, 64), tensor(2, 1, 16, 64)
        for key in (k, k.expand(2, 4, 16, 64)):
            self.assertEqual(describe(q, key, key).text.split("\n")[1], "k: [2,1,16,64]")
        grouped = tensor(2, 2, 16, 64)
        text = one(lambda: F.scaled_dot_product_attention(q, grouped, grouped, enable_gqa=True))
        self.assertEqual(text, [])

    def test_what_must_be_copied_is_said(self):
        q = tensor(2, 4, 64, 16).mT
        described = describe(q, q, q)
        self.assertEqual(described.text.split("\n")[0], "q: bf16 [2,4,16,64]")
        self.assertIn("described as a copy", described.remarks[0])

    def test_scale_dropout_phase_and_gradients(self):
        q = tensor(2, 4, 16, 64)
        plain = describe(q, q, q)
        self.assertEqual((plain.scale, plain.phase), (None, "prefill"))
        self.assertIsNone(describe(q, q, q, scale=0.125).scale)
        self.assertEqual(describe(q, q, q, scale=0.3).scale, 0.3)
        self.assertEqual(describe(q[:, :, :1], q, q).phase, "decode")
        leaf = q.clone().requires_grad_()
        trained = describe(q, leaf, q, dropout_p=0.1)
        self.assertEqual(
            (trained.phase, trained.text.split("\n")[2:]), ("train", ["dropout: philox 0.1", "outputs: stats"])
        )
        with torch.no_grad():
            self.assertEqual(describe(leaf, leaf, leaf).phase, "prefill")

    def test_causal_is_aligned_as_in_pytorch(self):
        q, k = tensor(1, 2, 4, 64), tensor(1, 2, 16, 64)
        call = F.scaled_dot_product_attention
        # The text form counts from the top left unless it says otherwise, as `is_causal` does.
        self.assertEqual(one(lambda: call(q, k, k, is_causal=True)), ["o: [1,2,4,64] bhsd", "mask: causal"][1:])
        self.assertEqual(one(lambda: call(q, k, k, attn_mask=causal_lower_right(4, 16))), ["mask: causal bottom-right"])

    def test_masks_with_values_are_recognised_if_they_are_exactly_that(self):
        q, k = torch.arange(16)[:, None], torch.arange(16)[None]
        tri = k <= q
        samples = torch.tensor([9, 16])[:, None, None, None]
        late = (k >= 3)[None, None].expand(2, 4, 16, 16)
        for mask, sizes, wanted in [
            (torch.ones(16, 16, dtype=torch.bool), (16, 16), []),
            (tri, (16, 16), ["mask: causal"]),
            (tri[:4], (4, 16), ["mask: causal"]),
            (tri[12:], (4, 16), ["mask: causal bottom-right"]),
            (tri & (q - k < 5), (16, 16), ["mask: causal window 5"]),
            ((q - k).abs() < 3, (16, 16), ["mask: band left 3 right 2"]),
            (tri[6:10], (4, 16), ["mask: causal bottom-right", "lengths: per-sequence"]),
            ((k < 7)[None, None], (16, 16), ["lengths: per-sequence"]),
            ((k < 7)[None, None], (1, 16), ["lengths: per-sequence"]),
            (tri & (k < samples), (16, 16), ["mask: causal", "lengths: per-sequence"]),
            (q // 5 == k // 5, (16, 16), ["mask_mod: tensor @query_documents: i32[1, 1, 16, 1]; tensor @key_documents: "
                                          "i32[1, 1, 1, 16]; @query_documents == @key_documents"]),
            (tri | (k < 2), (16, 16), ["mask_mod: tensor @mask: i32[1, 1, 16, 16]; @mask != 0"]),
            (late, (16, 16), ["mask_mod: tensor @mask: i32[1, 1, 1, 16]; @mask != 0"]),
            (k < q, (16, 16), ["mask_mod: tensor @mask: i32[1, 1, 16, 16]; @mask != 0"]),
        ]:  # fmt: skip
            rows, keys = sizes
            query, key = tensor(2, 4, rows, 64), tensor(2, 4, keys, 64)
            self.assertEqual(describe(query, key, key, attn_mask=mask).text.split("\n")[2:], wanted)
            if 0 not in mask.stride():
                added = torch.zeros(mask.shape, dtype=HALF).masked_fill(~mask, -float("inf"))
                self.assertEqual(describe(query, key, key, attn_mask=added).text.split("\n")[2:], wanted)
            # Without values it is a tensor.
            without = torch.empty_strided(mask.shape, mask.stride(), dtype=torch.bool, device="meta")
            line = describe(query, key, key, attn_mask=without).text.split("\n")[2]
            self.assertTrue(line.startswith("mask_mod: tensor @mask: i32["), line)
            self.assertEqual(describe(query, key, key, attn_mask=mask, read_masks=False).text.split("\n")[2], line)

    def test_rows_that_see_no_key_are_not_rows_of_equal_probabilities(self):
        query = tensor(1, 1, 4, 64)
        least = torch.zeros(4, 4, dtype=HALF)
        least[1] = torch.finfo(HALF).min
        self.assertIn("score + @bias", describe(query, query, query, attn_mask=least).text)

    def test_a_bias_keeps_its_dims_and_its_gradient(self):
        query = tensor(2, 4, 16, 64)
        for shape, wanted in {
            (16, 16): "[1, 1, 16, 16]",
            (4, 1, 16): "[1, 4, 1, 16]",
            (2, 1, 16, 16): "[2, 1, 16, 16]",
        }.items():
            text = describe(query, query, query, attn_mask=tensor(*shape)).text
            self.assertIn(f"score_mod: tensor @bias: bf16{wanted}; score + @bias", text)
        described = describe(query, query, query, attn_mask=tensor(16, 16, requires_grad=True))
        self.assertIn("bf16[1, 1, 16, 16] grad", described.text)
        self.assertEqual(described.phase, "train")

    def test_what_has_no_description_has_a_reason(self):
        half, single = tensor(1, 2, 16, 64), torch.randn(1, 2, 16, 64)
        for call, reason in [
            (dict(query=single, key=single, value=single), "float32"),
            (dict(query=half, key=half, value=half, scale=-1.0), "scale"),
            (dict(query=half, key=half, value=half, dropout_p=1.0), "dropout"),
            (dict(query=half[:, :, :0], key=half, value=half), "no elements"),
            (dict(query=half, key=half, value=half, attn_mask=torch.ones(16, 16, dtype=torch.long)), "int64"),
        ]:
            with self.assertRaisesRegex(Undescribed, reason):
                describe(**call)
        self.assertEqual(describe(single, single, single, dtype="f16").text.split("\n")[0], "q: f16 [1,2,16,64] bhsd")
        with torch.autocast("cpu", HALF):
            mixed = describe(half.half(), single, half)
            self.assertEqual(mixed.text.split("\n")[0], "q: bf16 [1,2,16,64] bhsd")
            self.assertEqual(describe(single, single, single).text.split("\n")[0], "q: bf16 [1,2,16,64] bhsd")

    def test_calls_without_description_are_named_with_the_line(self):
        q = tensor(1, 2, 16, 64)
        single = q.float()

        def branch(score, b, h, q, k):
            return score if q > k else -score

        def program():
            F.scaled_dot_product_attention(single, single, single)
            with self.assertRaises(RuntimeError):
                flex_attention(q, q, q, score_mod=lambda score, b, h, q, k: branch(score, b, h, q, k))
            flex_attention(q, q, q, score_mod=lambda score, b, h, q, k: torch.round(score))
            blocks = create_block_mask(lambda b, h, q, k: q >= k, None, None, 256, 256, device="cpu")
            blocks.mask_mod = qkvault_record._flex_module().noop_mask
            long = tensor(1, 2, 256, 64)
            flex_attention(long, long, long, block_mask=blocks)

        entries, notes = seen(program)
        self.assertEqual(entries, [])
        self.assertEqual(len(notes), 4, notes)
        for note, part in zip(notes, ("float32", "asks for a value", "round", "blocks without mask_mod")):
            self.assertIn(part, note)
        self.assertRegex(notes[2], r"round.*\(test_record\.py:\d+\)")

    def test_a_learned_table_of_float32_is_described_as_its_gradient_comes(self):
        q = tensor(1, 2, 16, 64)
        table = torch.randn(2, 16, 16, requires_grad=True)
        described = describe(q, q, q, score_mod=lambda score, b, h, q, k: score + table[h, q, k])
        self.assertIn("tensor @table: bf16[1, 2, 16, 16] grad; score + @table", described.text)
        self.assertEqual(described.phase, "train")
        self.assertIn("@table is f32", described.remarks[0])

    def test_outputs_that_a_call_asks_for(self):
        q = tensor(1, 2, 16, 64)
        self.assertEqual(one(lambda: flex_attention(q, q, q, return_lse=True)), ["outputs: stats"])
        self.assertEqual(one(lambda: flex_attention(q, q, q)), [])
        trained = q.to("cuda" if torch.cuda.is_available() else "cpu").clone().requires_grad_()
        self.assertEqual(one(lambda: flex_attention(trained, trained, trained)), ["outputs: stats"])


class File(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.folder.name, "m.toml")
        self.q = tensor(1, 2, 16, 64)

    def tearDown(self):
        self.folder.cleanup()

    def read(self, path=None):
        with open(path or self.path, encoding="utf-8") as file:
            return file.read()

    def call(self, rows=16):
        F.scaled_dot_product_attention(self.q[:, :, :rows], self.q, self.q)

    def test_a_program_that_raises_leaves_what_was_seen_and_says_so(self):
        with self.assertRaises(KeyError):
            with record(self.path):
                self.call()
                raise KeyError("a 'quoted' \"name\"\nand more")
        text = self.read()
        self.assertIn("[1,2,16,64]", text)
        self.assertIn("ended early (KeyError", text)
        self.assertEqual(os.listdir(self.folder.name), ["m.toml"])

    def test_an_existing_file_is_replaced_or_added_to(self):
        for merge, wanted in ((False, 1), (True, 2), (True, 2), (False, 1)):
            with record(self.path, merge=merge):
                self.call(8 if merge else 16)
            self.assertEqual(self.read().count("[[attention]]"), wanted)

    def test_a_merge_keeps_what_people_wrote(self):
        mine = "# mine\nqkvault-manifest = 1\n[[attention]]\nmodel = 'x'\nseq = [512]\ntext = 'q: bf16 [1,2,$seq,64]'\n"
        with open(self.path, "w", encoding="utf-8") as file:
            file.write(mine)
        with record(self.path, merge=True):
            pass
        self.assertEqual(self.read(), mine)
        with record(self.path, merge=True):
            self.call()
        self.assertIn("$seq", self.read())
        self.assertIn("seq = [512]", self.read())

    def test_a_file_that_is_something_else_stays(self):
        with open(self.path, "w", encoding="utf-8") as file:
            file.write("qkvault-manifest = 99\n")
        with self.assertRaisesRegex(ValueError, "version 1"):
            with record(self.path, merge=True):
                self.call()
        self.assertEqual(self.read(), "qkvault-manifest = 99\n")
        for path in ("m.txt", "m"):
            with self.assertRaisesRegex(ValueError, "toml"):
                record(path)
        with self.assertRaisesRegex(FileNotFoundError, "no folder"):
            record(os.path.join(self.folder.name, "missing", "m.toml")).__enter__()

    def test_processes_that_add_to_one_file_lose_nothing_of_each_other(self):
        program = (
            "import sys, torch\nfrom qkvault_record import record\n"
            "with record(sys.argv[1], merge=True):\n"
            "    q = torch.empty(1, 2, int(sys.argv[2]), 64, dtype=torch.bfloat16, device='meta')\n"
            "    torch.nn.functional.scaled_dot_product_attention(q, q, q)\n"
        )
        own = os.path.join(golden.HERE, "..")
        command = [sys.executable, "-c", program, self.path]
        running = [subprocess.Popen([*command, str(rows)], cwd=own) for rows in (16, 32, 48)]
        self.assertEqual([process.wait() for process in running], [0, 0, 0])
        self.assertEqual(self.read().count("[[attention]]"), 3)

    def test_an_error_of_the_program_is_not_hidden_by_one_of_the_file(self):
        missing = os.path.join(self.folder.name, "gone")
        os.mkdir(missing)
        with self.assertWarns(UserWarning), self.assertRaises(KeyError):
            with record(os.path.join(missing, "m.toml")):
                os.rmdir(missing)
                raise KeyError("the program's")

    def test_json_has_the_same(self):
        path = os.path.join(self.folder.name, "m.json")
        with record(path, model="mine"):
            self.call()
        entry = json.loads(self.read(path))["attention"][0]
        self.assertEqual((entry["model"], entry["layers"], entry["phase"]), ("mine", 1, "prefill"))

    def test_as_a_program(self):
        script = os.path.join(self.folder.name, "script.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write(
                "import sys, torch\nfrom torch.nn.functional import scaled_dot_product_attention as f\n"
                "q = torch.randn(1, 2, int(sys.argv[1]), 64)\nf(q, q, q)\nsys.exit(3)\n"
            )
        own = os.path.join(golden.HERE, "..")
        command = [sys.executable, "-m", "qkvault_record", "--out", self.path, "--dtype", "f16", script, "24"]
        done = subprocess.run(command, cwd=own, capture_output=True, text=True)
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("1 attentions of 1 calls", done.stderr)
        self.assertIn("q: f16 [1,2,24,64] bhsd", self.read())


if __name__ == "__main__":
    unittest.main()
