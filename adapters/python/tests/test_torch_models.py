"""Models of transformers through `attn_implementation="qkvault"`: packed sequences, caches, masks of other kinds.

    cargo xtask torch-tests
"""

import itertools
import os
import unittest
from unittest import mock

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
import torch.nn.functional as F

if not os.environ.get("QKVAULT_LIBRARY"):
    raise unittest.SkipTest("QKVAULT_LIBRARY names no library")
try:
    import transformers
except ImportError:
    raise unittest.SkipTest("transformers is not installed") from None

import qkvault
import qkvault.torch as qt
from transformers import cache_utils
from transformers.generation.continuous_batching import initialization
from qkvault.torch import _operators, _redirect
from torch._dynamo.testing import CompileCounterWithBackend
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
    config = getattr(transformers, f"{kind}Config")(**{**SMALL, **KINDS.get(kind, {}), **more})
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

class Masks(Case):
    """Masks that are not the causal one, beside eager."""

    def beside_eager(self, model, given, which=None):
        """Outputs and gradients of the attention, with no call but ours."""
        found = []
        for way in ("eager", "qkvault"):
            model.set_attn_implementation(way)
            model.zero_grad()
            with self.subTest(way=way), mock.patch.object(F, "scaled_dot_product_attention", None):
                out = model(**given)
                out = out.logits if hasattr(out, "logits") else out.last_hidden_state
                seen = out if which is None else out[which]
                # Not the squares, which a last norm makes the same.
                (seen.float() * torch.randn(seen.shape, generator=torch.Generator().manual_seed(1))).mean().backward()
            words = ("attn", "attention", "Attention")
            found.append((seen, {
                n: p.grad.clone() for n, p in model.named_parameters() if any(w in n for w in words) and p.grad is not None
            }))  # fmt: skip
        (wanted, right), (mine, own) = found
        self.near(mine, wanted, 0.03)
        self.assertEqual(right.keys(), own.keys())
        for n, gradient in right.items():
            if gradient.norm() > 1e-2 * max(g.norm() for g in right.values()):
                self.near(own[n], gradient, 0.1)

    def test_windows_that_only_the_mask_tells(self):
        experts = {"num_experts": 2, "num_local_experts": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
        tokens = torch.randint(1, 40, (2, 12))
        for kind, more in (
            ("Qwen2Moe", {"use_sliding_window": True, "sliding_window": 4, "layer_types": ["sliding_attention"] * 2}),
            ("Phimoe", {"sliding_window": 4}),
        ):  # fmt: skip
            with self.subTest(model=kind):
                self.beside_eager(made(kind, **experts, **more), {"input_ids": tokens})

    def test_encoders(self):
        torch.manual_seed(5)
        sizes = dict(vocab_size=40, hidden_size=32, intermediate_size=32, num_hidden_layers=3, num_attention_heads=4)
        kinds = {
            "Bert": {}, "Roberta": {}, "DistilBert": {"dim": 32, "n_heads": 4, "n_layers": 2, "hidden_dim": 32},
            "ModernBert": {"local_attention": 8, "global_attn_every_n_layers": 2, "pad_token_id": 0},
        }  # fmt: skip
        tokens, seen = torch.randint(4, 40, (2, 14)), torch.ones(2, 14, dtype=torch.long)
        behind, before = seen.clone(), seen.clone()
        behind[0, 9:], before[1, :3] = 0, 0
        for kind, more in kinds.items():
            config = getattr(transformers, f"{kind}Config")(**({} if kind == "DistilBert" else sizes), **more)
            model = getattr(transformers, f"{kind}Model")(config).to(torch.bfloat16).eval()
            for mask in (None, behind, before):
                with self.subTest(model=kind, mask=mask):
                    given = {} if mask is None else {"attention_mask": mask}
                    self.beside_eager(model, {"input_ids": tokens, **given}, None if mask is None else mask.bool())

    def test_an_encoder_and_a_decoder_with_learned_positions_in_the_scores(self):
        torch.manual_seed(5)
        sizes = dict(vocab_size=40, d_model=32, d_kv=8, d_ff=32, num_layers=2, num_heads=4, pad_token_id=0)
        tokens, target = torch.randint(1, 40, (2, 11)), torch.randint(1, 40, (2, 7))
        mask = torch.ones_like(tokens)
        mask[0, 6:] = 0
        for kind in ("T5", "MT5"):
            config = getattr(transformers, f"{kind}Config")(**sizes, decoder_start_token_id=1, dropout_rate=0.0)
            model = getattr(transformers, f"{kind}ForConditionalGeneration")(config).to(torch.bfloat16).eval()
            for given in ({}, {"attention_mask": mask}):
                with self.subTest(model=kind, **given):
                    self.beside_eager(model, {"input_ids": tokens, "decoder_input_ids": target, **given})

    def test_tokens_of_an_image_see_each_other(self):
        torch.manual_seed(5)
        text = {**SMALL, "sliding_window": 4, "image_token_id": 39}
        vision = dict(hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=4, image_size=16,
                      patch_size=8)  # fmt: skip
        gemma3 = transformers.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4,
                                           image_token_index=39)  # fmt: skip
        paligemma = transformers.PaliGemmaConfig(
            text_config={**SMALL, "model_type": "gemma"}, vision_config={**vision, "model_type": "siglip_vision_model"},
            image_token_index=39, projection_dim=32, hidden_size=32,
        )  # fmt: skip
        tokens = torch.randint(1, 38, (2, 12))
        tokens[:, 2:6] = 39
        kinds = (tokens == 39).long()
        pixels = torch.randn(2, 3, 16, 16, dtype=torch.bfloat16)
        prefix = torch.zeros_like(tokens)
        prefix[:, 8:] = 1
        for model, types in (
            (transformers.Gemma3ForConditionalGeneration(gemma3), kinds),
            (transformers.PaliGemmaForConditionalGeneration(paligemma), prefix),
        ):
            with self.subTest(model=type(model).__name__):
                given = {"input_ids": tokens, "pixel_values": pixels, "token_type_ids": types}
                self.beside_eager(model.to(torch.bfloat16).eval(), {**given, "attention_mask": torch.ones_like(tokens)})

class Eighths(cache_utils.QuantizedLayer):
    """Keys and values of 8 bits with a number for each row, as packages have them that need a compiler."""

    def _quantize(self, tensor, axis):
        most = tensor.abs().amax(-1, keepdim=True).clamp(min=1e-6)
        return (tensor / most * 127).round().to(torch.int8), most

    def _dequantize(self, found):
        return found[0].to(found[1].dtype) / 127 * found[1]


@mock.patch.object(cache_utils, "QuantoQuantizedLayer", Eighths)
class Caches(Case):
    """Generation with each cache of transformers, beside the same with eager."""

    def test_tokens_are_those_of_eager_and_no_token_needs_a_plan(self):
        prompt = torch.randint(1, 40, (2, 10))
        left = torch.ones_like(prompt)
        left[0, :3] = 0
        caches = {
            "dynamic": lambda config: {}, "static": lambda config: {"cache_implementation": "static"},
            # Keys of 8 bits, and the last few as they came.
            "residual": lambda config: {"past_key_values": cache_utils.QuantizedCache(
                "quanto", config, nbits=4, q_group_size=16, residual_length=4
            )},
        }  # fmt: skip
        for kind in KINDS:
            model = made(kind)
            for (name, more), mask in itertools.product(caches.items(), (None, left)):
                if kind != "Llama" and name == "residual":
                    continue  # transformers has it for full layers alone.
                with self.subTest(model=kind, cache=name, padded=mask is not None):
                    given = dict(max_new_tokens=9, min_new_tokens=9, do_sample=False, disable_compile=True,
                                 output_logits=True, return_dict_in_generate=True)  # fmt: skip
                    given |= {} if mask is None else {"attention_mask": mask}
                    model.set_attn_implementation("eager")
                    wanted = model.generate(prompt, **given, **more(model.config))
                    model.set_attn_implementation("qkvault")
                    found, seen, plans = specs(lambda: model.generate(prompt, **given, **more(model.config)))
                    # One for the prompt and one for tokens, of full layers and of those with a window.
                    self.assertLess(len(plans), 5, plans)
                    same = torch.ones(2, dtype=torch.bool)
                    for at, (mine, right) in enumerate(zip(found.logits, wanted.logits)):
                        self.near(mine[same], right[same], 0.04)
                        same &= (found.sequences == wanted.sequences)[:, prompt.shape[1] + at]
                    self.assertTrue(found.sequences.shape == wanted.sequences.shape)


class Compiled(Case):
    def test_programs_are_as_many_as_those_of_the_models_own_attention(self):
        prompt = torch.randint(1, 40, (2, 10))
        left = torch.ones_like(prompt)
        left[0, :3] = 0
        for kind, other in (("Mistral", "sdpa"),):
            # Layers are alike, and each is traced again.
            model, counts = made(kind, num_hidden_layers=1), []
            for way in (other, "qkvault"):
                model.set_attn_implementation(way)
                with self.subTest(model=kind, way=way):
                    torch._dynamo.reset()
                    counts.append(self.forwards(model, prompt, left) + self.tokens(model, prompt))
            with self.subTest(model=kind):
                self.assertEqual(*counts)

    def forwards(self, model, prompt, left):
        """With and without padding, of several lengths, and with gradients."""
        counter = CompileCounterWithBackend("aot_eager")
        compiled, counts = torch.compile(model, backend=counter, fullgraph=True), []
        for tokens, mask in ((prompt, None), (prompt, left), (prompt[:, :7], None), (prompt[:, :9], left[:, :9])):
            given = {"use_cache": False, **({} if mask is None else {"attention_mask": mask})}
            with torch.no_grad():
                found, wanted = compiled(tokens, **given).logits, model(tokens, **given).logits
            seen = slice(None) if mask is None else mask.bool()
            self.near(found[seen], wanted[seen], 0.01)
            counts.append(counter.frame_count)
        compiled(prompt, labels=prompt, use_cache=False).loss.backward()
        return [*counts, counter.frame_count]

    def tokens(self, model, prompt):
        """Generated with a static cache."""
        given = dict(max_new_tokens=4, min_new_tokens=4, do_sample=False, disable_compile=True, output_logits=True,
                     cache_implementation="static", return_dict_in_generate=True)  # fmt: skip
        wanted = [model.generate(prompt[:, :n], **given).logits for n in (10, 8)]
        counter = CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(model.forward, backend=counter)
        with mock.patch.object(model, "forward", compiled):
            for n, right in zip((10, 8), wanted):
                for mine, own in zip(model.generate(prompt[:, :n], **given).logits, right):
                    self.near(mine, own, 0.01)
        return [counter.frame_count]

class PassedOn(Case):
    def test_what_is_not_taken_is_told_once_and_goes_on_to_sdpa(self):
        tokens, left = torch.randint(1, 40, (2, 10)), torch.ones(2, 10, dtype=torch.long)
        left[0, :3] = 0
        positions = torch.cat([torch.arange(4), torch.arange(6)])[None].expand(2, -1)
        for kind in ("Llama", "Mistral"):
            model = made(kind).float()
            for given in ({}, {"attention_mask": left}, {"position_ids": positions, "use_cache": False}):
                with self.subTest(model=kind, given=list(given)):
                    model.set_attn_implementation("eager")
                    wanted = model(tokens, **given).logits
                    model.set_attn_implementation("qkvault")
                    _redirect._told.clear()
                    with self.assertLogs("qkvault", "WARNING") as logs:
                        found = model(tokens, **given).logits
                    seen = given.get("attention_mask", torch.ones_like(left)).bool()
                    self.near(found[seen], wanted[seen], 1e-5)
                    self.assertEqual(len(logs.output), 1)
        # SDPA has no softcap.
        model = made("Gemma2").float()
        model.set_attn_implementation("qkvault")
        with self.assertRaisesRegex(qkvault.ArgumentError, "q is float32"):
            model(tokens)


if __name__ == "__main__":
    unittest.main()
