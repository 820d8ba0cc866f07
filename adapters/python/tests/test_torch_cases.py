"""The table that every door runs, `adapters/cases.json`, through calls of `qkvault.torch`: the same keys and numbers.

    cargo xtask torch-tests
"""

import json
import os
import pathlib
import unittest

import torch

if not os.environ.get("QKVAULT_LIBRARY"):
    raise unittest.SkipTest("QKVAULT_LIBRARY names no library")

import qkvault
import qkvault.torch as qt
from qkvault.oracle import Oracle
from qkvault.torch import _ahead
from torch_common import FOLDER, Case, causal, exact

TABLE = json.loads((pathlib.Path(__file__).parents[2] / "cases.json").read_text())
SEED = 7
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "i32": torch.int32}


def setUpModule():
    qt.configure(FOLDER.name, cpu=True)


def tensors(attention):
    """The random inputs of a description in its strides, and its numbers."""
    oracle, found = Oracle(attention).random(SEED), {}
    for operand in attention.operands:
        if operand.output or operand.role in ("o", "stats"):
            continue
        flat = torch.frombuffer(bytearray(oracle.input(operand.role)), dtype=DTYPES[operand.dtype])
        name = operand.name or operand.role
        found[name] = float(flat[0]) if operand.scalar else flat.as_strided(operand.dims, operand.strides)
    return found


def options_of(case, given):
    """The arguments of a case."""
    options = {**case["call"], "scale": given["scale"]}
    options.pop("layout", None)  # Tensors have their own strides.
    slopes = given["slopes"].reshape(-1) if "slopes" in given else None
    functions = {
        "alibi": lambda s, b, h, i, j: s + slopes[h] * (j - i),
        "distance": lambda s, b, h, i, j: s - torch.abs((i - j).float()) * 0.125,
        "dilated": lambda b, h, i, j: (i - j) % 2 == 0,
        "prefix": lambda b, h, i, j: (j <= i) | (j < 8),
    }
    for name in ("score_mod", "mask_mod"):
        if name in options:
            options[name] = functions[options[name]]
    if "softcap" in options:
        options["softcap"] = given["softcap"]
    if options.pop("origins", False):
        options.update({name: int(given[name]) for name in ("query_origin", "key_origin")})
    if options.pop("sinks", False):
        options["sinks"] = given["sink"].reshape(-1)
    return options


class Table(Case):
    def summed(self, tensor, wanted):
        # Results are rounded to their element type; the table's sums are not.
        self.assertAlmostEqual(tensor.double().abs().sum().item(), wanted, delta=2e-4 * wanted)

    def keys(self, *given, **options):
        return [attention.key for attention in _ahead._attentions(*given, options)]

    def test_every_case_has_the_keys_and_numbers_of_the_table(self):
        self.assertGreater(len(TABLE), 9)
        for case in TABLE:
            with self.subTest(case["name"]):
                described = qkvault.Attention(case["text"])
                training, backward = described.training()

                given = tensors(described)
                options, qkv = options_of(case, given), [given[name] for name in "qkv"]
                self.assertEqual(self.keys(*qkv, **options), [case["forward"]["key"]])
                self.summed(qt.attention(*qkv, **options), case["forward"]["sums"]["o"])

                given = tensors(training)
                options, qkv = options_of(case, given), [given[name] for name in "qkv"]
                self.assertEqual(self.keys(*qkv, **options, return_lse=True), [case["training"]["key"]])
                for found, name in zip(qt.attention(*qkv, **options, return_lse=True), ("o", "stats")):
                    self.summed(found, case["training"]["sums"][name])

                given = tensors(backward)
                if "sinks" in case["call"]:
                    # A launch of a backward reads no sink, which is in Stats, so the table's draw cannot be asked for.
                    given["sink"] = tensors(training)["sink"]
                options, qkv = options_of(case, given), [given[name].requires_grad_() for name in "qkv"]
                self.assertEqual(self.keys(*qkv, **options), [case["training"]["key"], case["backward"]["key"]])
                for _ in ("by Python's node", "by PyTorch's"):
                    gradients = torch.autograd.grad(qt.attention(*qkv, **options), qkv, given["d_o"])
                    if "sink" in given:
                        wanted = exact(*qkv, None, causal, given["scale"], options["sinks"])
                        for a, b in zip(gradients, torch.autograd.grad(wanted, qkv, given["d_o"].double())):
                            self.near(a, b)
                        continue
                    for found, name in zip(gradients, ("d_q", "d_k", "d_v")):
                        self.summed(found, case["backward"]["sums"][name])


if __name__ == "__main__":
    unittest.main()
