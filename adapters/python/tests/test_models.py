"""Whole programs: a diffusion transformer, a vision encoder, an encoder-decoder, and generation with a static cache.

Each gives a manifest, which lies in `crates/models/tests/recorded` and which a Rust test reads and validates. The
models have the shapes of published ones with few layers, on the meta device where no value decides.
"""

import os
import tempfile
import unittest

import golden
import torch
from qkvault_record import record


def recorded(program, name="manifest.toml", **options):
    """The manifest of a program, as text."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, name)
        with record(path, **options):
            program()
        with open(path, encoding="utf-8") as file:
            return file.read()


class Programs(unittest.TestCase):
    maxDiff = None

    def test_a_diffusion_transformer_on_the_meta_device(self):
        from diffusers import FluxTransformer2DModel, QwenImageTransformer2DModel, WanTransformer3DModel

        with torch.device("meta"), torch.no_grad():
            wan = WanTransformer3DModel(num_layers=2, num_attention_heads=12, ffn_dim=512).to(torch.bfloat16)
            flux = FluxTransformer2DModel(num_layers=1, num_single_layers=2).to(torch.bfloat16)
            qwen = QwenImageTransformer2DModel(num_layers=2).to(torch.bfloat16)

            def half(*shape):
                return torch.empty(shape, dtype=torch.bfloat16)

            def program():
                # 480 x 832 pixels and 81 frames: 21 x 60 x 104 latents, in patches of 1 x 2 x 2.
                wan(half(1, 16, 21, 60, 104), torch.ones(1), half(1, 512, 4096))
                # 1024 x 1024 pixels: 64 x 64 patches, and 512 tokens of text.
                flux(
                    half(1, 4096, 64), half(1, 512, 4096), half(1, 768), torch.ones(1),
                    torch.zeros(4096, 3), torch.zeros(512, 3),
                )  # fmt: skip
                qwen(
                    half(1, 4096, 64), half(1, 40, 3584), torch.ones(1, 40, dtype=torch.long), torch.ones(1),
                    [[(1, 64, 64)]],
                )  # fmt: skip

            golden.check("diffusion.toml", recorded(program, model="diffusion"))

    def test_a_vision_encoder(self):
        from transformers import AutoModel, SiglipVisionConfig, ViTConfig

        with torch.device("meta"), torch.no_grad():
            models = [AutoModel.from_config(c, dtype=torch.bfloat16) for c in (ViTConfig(), SiglipVisionConfig())]

            def program():
                for model in models:
                    model(torch.empty(8, 3, 224, 224, dtype=torch.bfloat16))

            golden.check("vision.toml", recorded(program, model="vision"))
            golden.check("vision.json", recorded(program, "manifest.json", model="vision"))

    def test_an_encoder_decoder_in_training(self):
        from transformers import BartConfig, BartForConditionalGeneration, T5Config, T5ForConditionalGeneration

        sizes = dict(vocab_size=100, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=2)
        bart = BartForConditionalGeneration(BartConfig(
            encoder_layers=2, decoder_layers=2, d_model=256, encoder_attention_heads=4, decoder_attention_heads=4,
            encoder_ffn_dim=64, decoder_ffn_dim=64, **sizes,
        )).to(torch.bfloat16)  # fmt: skip
        t5 = T5ForConditionalGeneration(T5Config(num_layers=2, d_model=128, d_ff=64, num_heads=4, **sizes)).to(
            torch.bfloat16
        )
        source, target = torch.full((4, 96), 7), torch.full((4, 32), 7)
        attended = torch.ones_like(source)
        attended[1, 60:] = 0

        def program():
            for model in (bart.train(), t5.train()):
                model(source, attention_mask=attended, labels=target).loss.backward()
            with torch.no_grad():
                bart.eval()(source, decoder_input_ids=target)

        golden.check("encoder_decoder.toml", recorded(program, model="encoder-decoder"))

    def test_generation_with_a_static_cache(self):
        from transformers import Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM

        torch.manual_seed(0)
        small = dict(
            hidden_size=64, intermediate_size=64, num_hidden_layers=2, vocab_size=100, max_position_embeddings=512
        )
        heads = dict(num_attention_heads=4, num_key_value_heads=2, head_dim=64)
        quiet = dict(pad_token_id=0, bos_token_id=1, eos_token_id=None)
        llama = LlamaForCausalLM(LlamaConfig(**small, **heads, **quiet)).to(torch.bfloat16).eval()
        gemma = Gemma3ForCausalLM(Gemma3TextConfig(
            **small, **heads, **quiet, sliding_window=16, layer_types=["sliding_attention", "full_attention"],
        )).to(torch.bfloat16).eval()  # fmt: skip
        prompt = torch.randint(2, 100, (2, 24))
        attended = torch.ones_like(prompt)
        attended[0, :5] = 0  # Padding on the left, as generation has it.

        def program():
            for model in (llama, gemma):
                for mask in (None, attended):
                    model.generate(
                        prompt, attention_mask=mask, cache_implementation="static", max_new_tokens=8, do_sample=False,
                        disable_compile=True,
                    )  # fmt: skip

        golden.check("static_cache.toml", recorded(program, model="generation"))

    def test_flex_attention_of_transformers(self):
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            hidden_size=256, intermediate_size=64, num_hidden_layers=2, vocab_size=100, num_attention_heads=4,
            num_key_value_heads=2, attn_implementation="flex_attention",
        )  # fmt: skip
        model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
        ids = torch.randint(2, 100, (2, 128))
        attended = torch.ones_like(ids)
        attended[1, 100:] = 0

        def program():
            with torch.no_grad():
                model(ids)
                model(ids, attention_mask=attended)

        golden.check("flex.toml", recorded(program, model="flex"))


if __name__ == "__main__":
    unittest.main()
