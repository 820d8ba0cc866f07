"""The package without a GPU: descriptions, reasons, the oracle, and plans that are compiled ahead.

    python3 -m unittest adapters/python/tests/test_package.py

`QKVAULT_LIBRARY` names the library; `QKVAULT_TEST_CUDNN` a cuDNN 9.19 or newer, without which nothing is compiled.
"""

import array
import contextlib
import copy
import io
import json
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import threading
import unittest

from words_common import codes

import qkvault
from qkvault._sentences import SENTENCES, UNMET
from qkvault._words import sentence, unmet
from qkvault.oracle import Oracle

CAUSAL = "q: bf16 [1,4,256,64]\nk: bf16 [1,2,256,64]\nmask: causal\n"
CUDNN = os.environ.get("QKVAULT_TEST_CUDNN")


class Descriptions(unittest.TestCase):
    def test_text_json_and_fields_describe_the_same(self):
        a = qkvault.Attention(CAUSAL)
        b = qkvault.Attention(q="bf16 [1,4,256,64]", k="bf16 [1,2,256,64]", mask="causal")
        others = [b, qkvault.Attention(a.text), qkvault.Attention.from_json(a.json), pickle.loads(pickle.dumps(a))]
        for other in others:
            self.assertEqual(a, other)
            self.assertEqual((a.key, hash(a)), (other.key, hash(other)))
        self.assertNotEqual(a, qkvault.Attention("q: bf16 [1,4,256,64]\nmask: causal"))
        self.assertEqual(len({a, *others}), 1)
        self.assertRegex(a.key, "^[0-9a-f]{64}$")
        self.assertEqual(a.default_scale, 0.125)

    def test_operands_are_known_without_a_plan(self):
        q, k, v = (o for o in qkvault.Attention(CAUSAL).operands if o.role in "qkv")
        self.assertEqual((q.dims, k.dims, v.dtype), ((1, 4, 256, 64), (1, 2, 256, 64), "bf16"))
        self.assertEqual(q.strides, (256 * 4 * 64, 64, 4 * 64, 1))
        forward, backward = qkvault.Attention(CAUSAL).training()
        self.assertEqual([o.role for o in forward.operands if o.output], ["o", "stats"])
        self.assertEqual({o.role for o in backward.operands if o.output}, {"d_q", "d_k", "d_v"})
        self.assertEqual(backward, forward.backward())

    def test_a_wrong_text_tells_where_and_a_contradiction_everything(self):
        with self.assertRaises(qkvault.ParseError) as parse:
            qkvault.Attention("q: bf16 [1,4,256,64]\nmask: casual")
        self.assertIn("causal", str(parse.exception))
        with self.assertRaises(qkvault.Refused) as refused:
            qkvault.Attention("q: bf16 [1,5,256,64]\nk: bf16 [1,2,256,64]")
        self.assertTrue(refused.exception.reasons and all(r.code for r in refused.exception.reasons))
        self.assertIsInstance(refused.exception, ValueError)
        for arguments in [{}, {"description": CAUSAL, "mask": "causal"}]:
            with self.assertRaises(TypeError):
                qkvault.Attention(**arguments)

    def test_a_refusal_has_codes_and_what_is_nearest(self):
        self.assertTrue(qkvault.Attention(CAUSAL).explain("h200"))
        odd = qkvault.Attention("q: bf16 [1,4,256,60]").explain("h200", "9.19.0")
        self.assertFalse(odd)
        self.assertIn("head-dim.multiple-of-8", [reason.code for reason in odd.reasons])
        self.assertIn("head-dim.multiple-of-8", str(odd))
        self.assertEqual(odd.facts["cudnn"], "9.19.0")
        with self.assertRaises(qkvault.Error) as unknown:
            qkvault.Attention(CAUSAL).explain("h2000")
        self.assertIn("h200", str(unknown.exception))

    def test_errors_of_threads_do_not_mix(self):
        wrong = []

        def one(n):
            for _ in range(200):
                try:
                    qkvault.Attention(f"q: bf16 [1,4,{n},64]\nunknown{n}: 1")
                except qkvault.ParseError as error:
                    if f"unknown{n}" not in str(error):
                        wrong.append((n, str(error)))

        threads = [threading.Thread(target=one, args=(n,)) for n in range(1, 9)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        self.assertEqual(wrong, [])


class Words(unittest.TestCase):
    def test_public_objects_say_what_they_are(self):
        attention = qkvault.Attention("q: bf16 [1,4,256,60]")
        with tempfile.TemporaryDirectory() as folder:
            found = {
                repr(attention): ["qkvault.Attention", "d60"], repr(Oracle(attention)): ["qkvault.oracle.Oracle", "d60"],
                repr(qkvault.Context(folder, build=True)): ["qkvault.Context", folder, "builds plans"],
                repr(attention.explain("h200")): ["not supported", "head-dim.multiple-of-8"],
                repr(attention.explain("h200").reasons[0]): ["Reason(code='head-dim.multiple-of-8'"],
                repr(attention.operands[0]): ["Operand(role='q'"],
            }
        for said, parts in found.items():
            self.assertLess(len(said), 500, said)
            for part in parts:
                self.assertIn(part, said)

    def test_a_copy_is_another_description_or_an_error_and_nothing_is_freed_twice(self):
        attention = qkvault.Attention(CAUSAL)
        for other in (copy.copy(attention), copy.deepcopy(attention), pickle.loads(pickle.dumps(attention))):
            self.assertEqual(other, attention)
            self.assertNotEqual(other._address, attention._address)
        for handle in (Oracle(attention), qkvault.default_context()):
            for again in (copy.copy, copy.deepcopy, pickle.dumps):
                with self.assertRaises(TypeError) as error:
                    again(handle)
                self.assertIn("cannot be copied", str(error.exception))

    def test_the_version_has_its_usual_name(self):
        self.assertEqual(qkvault.__version__, qkvault.version())
        with self.assertRaises(AttributeError):
            qkvault.nothing

    def test_a_terminal_gets_a_line_that_counts(self):
        from qkvault._context import _Counted

        with contextlib.redirect_stderr(io.StringIO()) as said:
            counted = _Counted()
            counted(1, 2, None), counted(2, 2, None)
        self.assertRegex(said.getvalue(), r"\rqkvault: 1 of 2 plans, \d\.\d s\rqkvault: 2 of 2 plans, \d\.\d s\n")


class Libraries(unittest.TestCase):
    """A library that is not of this package's interface."""

    def imported(self, source):
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "libother.so")
            command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", file]
            try:
                subprocess.run(command, input=source, text=True, check=True, capture_output=True)
            except FileNotFoundError:
                self.skipTest("there is no C compiler")
            environment = {**os.environ, "QKVAULT_LIBRARY": file, "PYTHONPATH": os.pathsep.join(sys.path)}
            program = "import qkvault; qkvault.Attention('q: bf16 [1,1,8,8]')"
            said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
            self.assertNotEqual(said.returncode, 0)
            return said.stderr.strip().splitlines()[-1]

    def test_a_library_of_another_interface_is_told_with_both_versions(self):
        # The version stands behind the size: major, minor.
        def version(major, minor):
            return "int qkv_version(void *i) { unsigned *v = (unsigned *)i + %d; v[0] = %d; v[1] = %d; return 0; }" % (
                qkvault._abi.qkv_version_info.abi_major.offset // 4, major, minor)

        major, minor = qkvault._abi.ABI_MAJOR, qkvault._abi.ABI_MINOR
        for source, parts in [
            (version(major + 1, 0), [f"has version {major + 1}.0", f"needs {major}.{minor}", "one wheel"]),
            (version(major, minor), ["lacks qkv_", "one wheel"]),
            ("int other(void) { return 0; }", ["no libqkvault", "QKVAULT_LIBRARY"]),
        ]:
            said = self.imported(source)
            for part in ["ImportError", "libother.so", *parts]:
                self.assertIn(part, said)

    def test_a_library_that_is_not_there_is_told_with_its_path(self):
        environment = {**os.environ, "QKVAULT_LIBRARY": "/nowhere/lib.so", "PYTHONPATH": os.pathsep.join(sys.path)}
        program = "import qkvault; qkvault.version()"
        said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
        self.assertIn("ImportError: /nowhere/lib.so could not be loaded", said.stderr)


class Oracles(unittest.TestCase):
    def test_an_average_of_equal_scores(self):
        attention = qkvault.Attention("q: f16 [1,1,1,8]\nk: f16 [1,1,4,8]")
        oracle = Oracle(attention)
        zeros, values = array.array("f", [0.0] * 8), array.array("d", [float(n) for n in range(32)])
        oracle["q"], oracle["k"], oracle["v"] = zeros, array.array("f", [1.0] * 32), values
        oracle["scale"] = 0.5
        found = oracle.run()["o"]
        self.assertEqual([float(x) for x in memoryview(found).cast("B").cast("d")], [12.0 + n for n in range(8)])
        rounded = oracle.output("o")
        self.assertEqual(len(rounded), 16)
        self.assertTrue(oracle.compare("o", rounded))
        poisoned = oracle.compare("o", b"\xff" * 16)
        self.assertEqual((poisoned.good, poisoned.unwritten), (False, 8))

    def test_random_inputs_are_the_same_for_the_same_seed(self):
        forward, backward = qkvault.Attention(CAUSAL.replace("256", "32")).training()
        one, two = Oracle(backward).random(7).run(), Oracle(backward).random(7).run()
        self.assertEqual(one.output("d_q"), two.output("d_q"))
        self.assertNotEqual(one.output("d_q"), Oracle(backward).random(8).run().output("d_q"))
        alone = Oracle(forward)
        for name in "qkv":
            size = next(o.bytes for o in forward.operands if o.role == name)
            self.assertEqual(len(one.input(name)), size)
        self.assertIsNotNone(alone)

    def test_a_missing_input_and_an_unknown_name_are_told(self):
        oracle = Oracle(qkvault.Attention(CAUSAL))
        with self.assertRaises(qkvault.Error) as missing:
            oracle.run()
        self.assertIn("q is not there", str(missing.exception).lower())
        with self.assertRaises(qkvault.ArgumentError):
            oracle["qq"] = array.array("f", [0.0])

    def test_arrays_of_numpy_are_shaped_like_operands(self):
        try:
            import numpy as np
        except ImportError:
            self.skipTest("NumPy is not installed")
        attention = qkvault.Attention("q: f16 [2,3,16,8]\nmask: causal")
        rng = np.random.default_rng(1)
        q, k, v = (rng.standard_normal((2, 3, 16, 8)).astype(np.float16) for _ in range(3))
        oracle = Oracle(attention)
        oracle["q"], oracle["k"], oracle["v"] = q, k, v
        found = oracle.run()["o"]
        scores = np.einsum("bhqd,bhkd->bhqk", q.astype(float), k.astype(float)) * float(np.float32(8**-0.5))
        scores = np.where(np.tril(np.ones((16, 16), bool)), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        exact = np.einsum("bhqk,bhkd->bhqd", weights / weights.sum(-1, keepdims=True), v.astype(float))
        np.testing.assert_allclose(found, exact, rtol=1e-12, atol=1e-12)


class Cases(unittest.TestCase):
    """The table that every door runs has the keys and numbers of the Rust packages (adapters/c/tests/cases.rs)."""

    def test_every_case_has_the_keys_and_numbers_of_the_table(self):
        table = json.loads((pathlib.Path(__file__).parents[2] / "cases.json").read_text())
        self.assertGreater(len(table), 9)
        for case in table:
            described = qkvault.Attention(case["text"])
            passes = dict(zip(("forward", "training", "backward"), (described, *described.training())))
            for name, attention in passes.items():
                with self.subTest(case=case["name"], of=name):
                    self.assertEqual(attention.key, case[name]["key"])
                    oracle = Oracle(attention).random(7).run()
                    for role, exact in case[name]["sums"].items():
                        found = memoryview(oracle[role]).cast("B").cast("d")
                        self.assertAlmostEqual(sum(abs(x) for x in found), exact, delta=1e-10 * exact)


class Plans(unittest.TestCase):
    def test_a_context_opens_without_cudnn_and_says_what_is_missing(self):
        with tempfile.TemporaryDirectory() as folder:
            context = qkvault.Context(folder, cudnn=os.path.join(folder, "nowhere"))
            with self.assertRaises(qkvault.Error) as error:
                context.warm(qkvault.Attention(CAUSAL), "h200")
            self.assertIn("nowhere", str(error.exception))
            with self.assertRaises(ValueError):
                qkvault.Context(folder, mode="sometimes")

    def test_plans_are_compiled_ahead_and_found_again(self):
        if not CUDNN:
            self.skipTest("QKVAULT_TEST_CUDNN names no cuDNN")
        with tempfile.TemporaryDirectory() as folder:
            context = qkvault.Context(folder, cudnn=CUDNN)
            attention = qkvault.Attention(CAUSAL)
            with self.assertRaises(qkvault.PlanMissing):
                context.look(attention, "h200")
            seen = []
            plans = context.warm(attention.training(), "h200", progress=lambda *done: seen.append(done[:2]))
            self.assertEqual(seen, [(1, 2), (2, 2)])
            self.assertEqual([plan.source for plan in plans], ["built", "built"])
            again = qkvault.Context(folder, cudnn=CUDNN).look(attention.training()[0], "h200")
            self.assertEqual((again.key, again.source), (plans[0].key, "disk"))
            self.assertEqual((again.device, again.cudnn), (-1, context.cudnn))
            self.assertEqual([t.role for t in again.tensors], ["q", "k", "v", "o", "stats"])
            tensors = {t.role: (256 * n, t.bytes) for n, t in enumerate(again.tensors, 1 << 20)}
            far = {name: (address + n * (1 << 30), size) for n, (name, (address, size)) in enumerate(tensors.items())}
            again.check(far, workspace=(1 << 40, again.workspace))
            with self.assertRaises(qkvault.ArgumentError) as unknown:
                again.check({**far, "stat": far["stats"]}, workspace=(1 << 40, again.workspace))
            self.assertIn("stats", str(unknown.exception))
            with self.assertRaises(qkvault.Error) as none:
                context.prepare(attention, 0)
            self.assertTrue(str(none.exception))


    def test_audit_14_numbers_that_ctypes_would_cut_off_are_refused(self):
        from qkvault._plan import buffer, number

        for size in (-1, 1 << 64):
            with self.assertRaises(ValueError) as error:
                buffer("q", 256, size)
            self.assertIn(f"the size of q is {size}", str(error.exception))
        self.assertEqual(buffer("q", 256, (1 << 64) - 1).bytes, (1 << 64) - 1)
        for dtype, value in (("i32", 1 << 31), ("i32", -(1 << 31) - 1), ("i64", 1 << 63)):
            with self.assertRaises(ValueError):
                number(dtype, value)
        self.assertEqual(number("i32", -(1 << 31)).value.i32, -(1 << 31))
        with tempfile.TemporaryDirectory() as folder:
            for options in ({"handles": -1}, {"handles": 1 << 32}, {"workspace_limit": -1}):
                with self.assertRaises(ValueError):
                    qkvault.Context(folder, **options)
            with self.assertRaises(qkvault.ArgumentError) as error:
                qkvault.Context(folder, handles=5000)
            self.assertIn("at most 1024", str(error.exception))


class Package(unittest.TestCase):
    def test_nothing_of_frameworks_is_imported(self):
        self.assertFalse({"torch", "jax"} & set(sys.modules))
        self.assertRegex(qkvault.version(), r"^\d+\.\d+\.\d+")


class Words(unittest.TestCase):
    """Codes in the words of PyTorch's and JAX's doors: each has a sentence, or no door meets it and it is said why."""

    def test_every_code_has_a_sentence_or_a_reason_why_no_door_meets_it(self):
        known = codes()
        self.assertGreater(len(known), 300)
        lacking = [code for code in known if (sentence(code) is None) == (unmet(code) is None)]
        self.assertEqual(lacking, [], "give each a sentence in _sentences.py, or a reason in UNMET")
        self.assertIsNone(sentence("score-mod.of-tomorrow"))

    def test_no_sentence_is_for_a_code_that_is_gone(self):
        known, families = set(codes()), {code.split(".")[0] for code in codes()}
        for code in (*SENTENCES, *UNMET):
            self.assertTrue(code.split(".")[0] in families if code.endswith("*") else code in known, code)
        self.assertEqual(set(SENTENCES) & set(UNMET), set())


if __name__ == "__main__":
    unittest.main()
