"""Models of transformers through `attn_implementation="qkvault"`: packed sequences, caches, masks of other kinds.

    cargo xtask torch-tests
"""

import itertools
import os
import unittest
from unittest import mock

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch

if not os.environ.get("QKVAULT_LIBRARY"):
    raise unittest.SkipTest("QKVAULT_LIBRARY names no library")
try:
    import transformers
except ImportError:
    raise unittest.SkipTest("transformers is not installed") from None

import qkvault.torch as qt
from transformers.generation.continuous_batching import initialization
from qkvault.torch import _operators
from torch_common import FOLDER, Case

SMALL = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "pad_token_id": 0,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "eos_token_id": None}  # fmt: skip
KINDS = {
    "Llama": {}, "Mistral": {"sliding_window": 4}, "Gemma2": {"sliding_window": 4, "query_pre_attn_scalar": 8},
    "GptOss": {"sliding_window": 4, "num_local_experts": 2, "num_experts_per_tok": 2},
}  # fmt: skip


def setUpModule():
    qt.configure(FOLDER.name, cpu=True)
    qt.register_transformers()


def made(kind, **more):
    """A model of random weights."""
    torch.manual_seed(3)
    config = getattr(transformers, f"{kind}Config")(**SMALL, **KINDS[kind], **more)
    config._attn_implementation = "eager"
    return getattr(transformers, f"{kind}ForCausalLM")(config).to(torch.bfloat16).eval()


def specs(run):
    """What a function gives, the specifications of its calls, and the plans that they need."""
    seen, plans, original = [], set(), _operators.run

    def noted(q, k, v, extra, spec, *more):
        seen.append(spec)
        plans.add((spec, *(tuple(t.shape) for t in (q, k, v, *extra))))
        return original(q, k, v, extra, spec, *more)

    with mock.patch.object(_operators, "run", noted):
        return run(), seen, plans


class Packed(Case):
    LENGTHS = (5, 1, 9, 6)

    def apart(self, model, tokens):
        """Logits of each sequence by itself with eager, and the gradients of the attention."""
        model.set_attn_implementation("eager")
        model.zero_grad()
        logits = torch.cat([model(part[None], use_cache=False).logits[0] for part in tokens.split(self.LENGTHS)])
        return logits.detach(), self.gradients(model, logits)

    def gradients(self, model, logits):
        model.zero_grad()
        logits.float().square().sum().backward()
        return torch.cat([p.grad.flatten() for n, p in model.named_parameters() if "self_attn" in n])

    def test_sequences_of_one_row_are_each_as_if_alone(self):
        tokens = torch.randint(1, 40, (sum(self.LENGTHS),))
        positions = torch.cat([torch.arange(n) for n in self.LENGTHS])[None]
        ends = torch.tensor([0, *itertools.accumulate(self.LENGTHS)], dtype=torch.int32)
        told = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": 9, "max_length_k": 9}
        for kind in KINDS:
            model = made(kind)
            wanted, wanted_gradients = self.apart(model, tokens)
            # The second stands for the first while a model generates batches.
            names = ("qkvault", "qkvault_flash_2") if kind == "Mistral" else ("qkvault",)
            ways = itertools.product(names, (False, True), ({}, told))
            for way, cached, more in ways:
                with self.subTest(model=kind, way=way, cached=cached, told=bool(more)):
                    model.set_attn_implementation(way)
                    run = lambda: model(  # noqa: E731
                        tokens[None], position_ids=positions, use_cache=cached, **more
                    ).logits[0]  # fmt: skip
                    logits, seen, _ = specs(run)
                    self.near(logits, wanted, 0.03)
                    self.near(self.gradients(model, logits), wanted_gradients, 0.05)
                    self.assertTrue(all("varlen: " in spec for spec in seen), seen)

class Batches(Case):
    """`generate_batch`, transformers' continuous batching: prompts in chunks, then a token of each sequence."""

    PROMPTS = ([3, 4, 5, 6, 7], [8, 9, 10], [11, 3] * 10, [5])

    def one_by_one(self, model, way):
        model.set_attn_implementation(way)
        given = dict(max_new_tokens=9, min_new_tokens=9, do_sample=False)
        return [model.generate(torch.tensor([p]), **given)[0, len(p) :].tolist() for p in self.PROMPTS]

    def batched(self, model, pages, prompts=PROMPTS):
        model.set_attn_implementation("qkvault")
        given = transformers.GenerationConfig(max_new_tokens=9, do_sample=False, eos_token_id=-1, pad_token_id=0)
        sizes = transformers.ContinuousBatchingConfig(
            num_blocks=64, page_size=8, max_batch_tokens=16, max_requests_per_batch=3, max_memory_percent=0.1,
            max_blocks_per_request=8 if pages else 0,
        )  # fmt: skip
        with mock.patch.object(initialization, "ensure_decode_fast_path_is_available", lambda *_: None):
            found = model.generate_batch(
                inputs=prompts, generation_config=given, continuous_batching_config=sizes, progress_bar=False
            )  # fmt: skip
        self.assertEqual(model.config._attn_implementation, "qkvault")
        return [found[f"req_{at}"].generated_tokens for at in range(len(prompts))]

    def test_tokens_are_those_of_one_sequence_after_another(self):
        for kind in KINDS:
            # Weights that are far apart, so that no two tokens are as likely.
            model = made(kind, initializer_range=0.3)
            wanted = self.one_by_one(model, "eager")
            for pages in (False, True) if kind == "Llama" else (False,):  # Only the pages of full layers have tables.
                with self.subTest(model=kind, pages=pages):
                    found, seen, plans = specs(lambda: self.batched(model, pages))
                    self.assertEqual(found, wanted)
                    self.assertEqual(pages, any("paged: " in spec for spec in seen))
                    self.assertTrue(all("varlen: " in spec or "paged: " in spec for spec in seen))
                    self.assertLess(len(plans), 8, plans)
                    others = [[*prompt[1:], 7, 7] for prompt in self.PROMPTS]
                    again = specs(lambda: self.batched(model, pages, others))[2]
                    self.assertLess(len(again - plans), 2, again - plans)


if __name__ == "__main__":
    unittest.main()
