"""Errors of PyTorch's door in the words of the function that was called.

    python3 -m unittest test_torch_words      # QKVAULT_LIBRARY or the wheel
"""

import os
import unittest
from unittest import mock

import torch
from torch_common import FOLDER, Case
from words_common import answered, samples, wrong

import qkvault
import qkvault.torch as qt
from qkvault.torch import _operators, flash_attn
from qkvault.torch._words import DOOR

FUNCTIONS = (
    qt.scaled_dot_product_attention, qt.varlen_attention, qt.paged_attention, qt.context_parallel_attention, qt.explain,
    flash_attn.flash_attn_func, flash_attn.flash_attn_varlen_func, flash_attn.flash_attn_with_kvcache,
    flash_attn.flash_attn_kvpacked_func, flash_attn.flash_attn_qkvpacked_func,
)  # fmt: skip


def meta(*dims, dtype=torch.bfloat16, grad=False):
    return torch.empty(*dims, dtype=dtype, device="meta", requires_grad=grad)


def call(q=(2, 4, 128, 64), k=None, v=None, grad=False, **options):
    k = q if k is None else k
    made = {name: meta(*given[0], **given[1]) if isinstance(given, tuple) and isinstance(given[0], tuple) else given
            for name, given in options.items()}
    return (meta(*q, grad=grad), meta(*k), meta(*(k if v is None else v))), made


LEARNED, FLOAT = {"grad": True}, {"dtype": torch.float32}
#: Calls that some GPU or some cuDNN refuses.
CALLS = (
    call(), call(q=(1, 4, 128, 12)), call(q=(1, 4, 128, 320)), call(q=(1, 4, 128, 320), grad=True),
    call(q=(1, 4, 128, 160), v=(1, 4, 128, 96), grad=True),
    call(q=(1, 4, 1, 192), k=(1, 4, 128, 192), v=(1, 4, 128, 128), grad=True), call(q=(1, 4, 3, 64), grad=True),
    call(q=(1, 1, 1, 64), k=(1, 1, 128, 64), grad=True), call(q=(2, 4, 1, 64), k=(2, 4, 512, 64)),
    call(q=(2, 4, 1, 64), k=(2, 4, 512, 64), is_causal=True, bottom_right=True),
    call(q=(2, 4, 1, 64), k=(2, 4, 512, 64), sinks=((4,), FLOAT)), call(sinks=((4,), FLOAT)),
    call(sinks=((4,), FLOAT | LEARNED), deterministic=True, grad=True),
    call(sinks=((4,), FLOAT | LEARNED), dropout_p=0.1, grad=True), call(dropout_p=0.1),
    call(dropout_p=0.1, grad=True, deterministic=True),
    call(q=(1, 4, 1, 64), k=(1, 4, 512, 64), dropout_p=0.1, grad=True),
    call(q=(2, 4, 1, 192), k=(2, 4, 128, 192), dropout_p=0.1), call(is_causal=True, window=(4, 0), dropout_p=0.1),
    call(q=(1, 4, 2048, 64), window=(4, None)), call(is_causal=True, window=(4, 0), bottom_right=True),
    call(q=(1, 4, 256, 64), k=(1, 4, 128, 64), is_causal=True, bottom_right=True), call(grad=True, deterministic=True),
    call(grad=True, deterministic=True, softcap=30.0),
    call(q=(1, 4, 1, 64), k=(1, 4, 128, 64), grad=True, deterministic=True),
    call(grad=True, deterministic=True, bias=((1, 4, 128, 128), LEARNED)),
    call(grad=True, deterministic=True, bias=((1, 4, 128, 1), {})), call(grad=True, bias=((1, 4, 1, 128), LEARNED)),
    call(grad=True, softcap=30.0, bias=((1, 4, 128, 128), LEARNED), score_mod=lambda s, b, h, i, j: s * 2),
    call(q=(1, 4, 128, 192), grad=True, bias=((1, 4, 128, 128), LEARNED)), call(grad=True, bias=((2, 4, 128, 1), {})),
    call(grad=True, bias=((1, 4, 128, 128), LEARNED), attn_mask=((1, 1, 128, 1), {"dtype": torch.bool})),
    call(grad=True, score_mod=lambda s, b, h, i, j: torch.where(i > 3, s, -3e38)),
    call(invariant=True), call(q=(1, 4, 128, 320), invariant=True), call(invariant=True, query_origin=7),
    call(q=(70000, 4, 1, 64), k=(70000, 4, 8, 64)), call(q=(1, 4, 8, 64), k=(1, 3, 8, 64)),
    call(q=(1, 1, 9_000_000, 64), query_origin=3, is_causal=True), call(q=(1, 4, 8, 64), k=(1, 4, 8, 32)),
    call(is_causal=True, mask_mod=lambda b, h, i, j: j > i),
    call(grad=True, score_mod=lambda s, b, h, i, j: torch.floor(s)),
    call(q=(2, 4, 1, 64), k=(2, 4, 512, 64), bias=((2, 1, 1, 1), {})),
)
#: The codes that they meet.
MET = """
    backward.deterministic-engine backward.deterministic-expression backward.deterministic-one-query
    backward.deterministic-philox backward.deterministic-query-tensor backward.deterministic-sink
    backward.deterministic-tensor-gradient backward.keys-tail-old backward.lowest-row backward.one-query-philox
    backward.query-tensor backward.query-tensor-gradient backward.single-row backward.sink-philox
    backward.tensor-factor backward.wide-gradient band.rows-without-keys band.window-old
    band.window-wrong cudnn.major cudnn.too-old cudnn.withdrawn dropout.philox-old head-dim.backward
    head-dim.backward-latent head-dim.backward-latent-one-query head-dim.forward-old head-dim.multiple-of-8
    head-dim.philox-one-query heads.group mask.contradiction origins.extent queries.one-old queries.one-sink
    queries.one-wrong score-mod.derivative score-mod.one-query-narrow shape.mismatch sink.old size.grid target.unknown
""".split()  # noqa: SIM905
VERSIONS = ("8.9.0", "9.5.0", "9.8.0", "9.10.0", "9.11.0", "9.14.0", "9.19.0", "9.26.0")


def half(*dims, grad=False):
    return torch.randn(*dims, dtype=torch.float16, requires_grad=grad)


class Told(Case):
    @classmethod
    def setUpClass(cls):
        qt.configure(os.path.join(FOLDER.name, "words"), cpu=True)

    def said(self, error, words, parts, function):
        with self.subTest(parts), self.assertRaises(error) as raised:
            function()
        text = str(raised.exception)
        for part in parts:
            self.assertIn(part, text)
        self.assertEqual(wrong(words, text), [], text)
        return raised.exception


class Words(Told):
    """Refusals of the library."""

    def test_every_sentence_has_only_arguments_of_every_function(self):
        for words in (DOOR.base, *(function.words for function in FUNCTIONS)):
            for reason in samples():
                text = words.told(reason)
                self.assertEqual(wrong(words, text.replace(reason.given, "")), [], (words.parameters, text))

    def test_calls_that_gpus_and_versions_refuse_are_told_in_the_words_of_attention(self):
        met = {}
        for operands, options in CALLS:
            for gpu in ("a100", "h200", "b200", "z80"):
                for cudnn in VERSIONS:
                    reasons, text = answered(
                        lambda: qt.explain(*operands, gpu=gpu, cudnn=cudnn, **options), met
                    )
                    if reasons and text.startswith("refused on"):
                        self.assertEqual(wrong(DOOR.base, text.split("\n", 1)[1]), [], text)
        self.assertEqual(sorted(set(MET) - set(met)), [])
        for code, text in met.items():
            self.assertEqual(wrong(DOOR.base, text), [], text)
            self.assertNotIn("other", text.split("; ")[0].replace("another", ""), code)

    def test_an_engine_that_is_configured_and_takes_no_call_says_so(self):
        met = set()
        try:
            for engine in ("fa4", "kernels"):
                qt.configure(os.path.join(FOLDER.name, engine), engine=engine)
                for operands, options in CALLS[:33]:
                    said = qt.explain(*operands, gpu="h200", cudnn="9.19.0", **options)
                    codes = [reason.code for reason in said.reasons if reason.code.startswith(engine)]
                    met.update(() if said else codes)
                    self.assertEqual([] if said else wrong(DOOR.base, "\n".join(str(said).splitlines()[1:])), [])
                    self.assertEqual(not said and bool(codes), f"engine='{engine}' is configured" in str(said))
        finally:
            self.setUpClass()
        self.assertLessEqual({"fa4.dropout", "fa4.head-dim", "kernels.backward", "kernels.dropout"}, met)

    def test_what_is_needed_for_the_gradient_of_a_bias_behind_a_softcap(self):
        operands, options = call(grad=True, softcap=30.0, bias=((1, 4, 128, 128), LEARNED))
        options["score_mod"] = lambda s, b, h, i, j: s * 2
        self.assertIn("add it before softcap", str(qt.explain(*operands, gpu="h200", cudnn="9.19.0", **options)))

    def test_refusals_name_the_arguments_of_the_function_that_was_called(self):
        q, odd = half(1, 4, 8, 16), half(1, 3, 8, 16)
        code, error = "[heads.group] ", qkvault.Refused
        names = {"gqa": "k has 3 heads and q 4", "sdpa": "key has 3 heads and query 4"}
        self.said(error, DOOR.base, [code + names["gqa"]], lambda: qt.attention(q, odd, odd))
        sdpa = qt.scaled_dot_product_attention
        found = self.said(error, sdpa.words, [code + names["sdpa"], "value has 3 heads and query 4"],
                          lambda: sdpa(q, odd, odd, enable_gqa=True))
        self.assertEqual([reason.code for reason in found.reasons], ["heads.group"] * 2)
        q, odd = half(1, 8, 4, 16), half(1, 8, 3, 16)
        run = flash_attn.flash_attn_with_kvcache
        self.said(error, run.words, ["k_cache has 3 heads and q 4", "v_cache has 3"], lambda: run(q, odd, odd))
        run = flash_attn.flash_attn_kvpacked_func
        self.said(error, run.words, ["kv[:, :, 0] has 3 heads and q 4"], lambda: run(q, half(1, 8, 2, 3, 16)))
        pages = half(2, 8, 3, 16)
        run, table = qt.paged_attention, torch.zeros(1, 1, dtype=torch.int32)
        self.said(error, run.words, ["k_pages has 3 heads and q 4"],
                  lambda: run(half(1, 4, 8, 16), pages, pages, table, torch.tensor([3])))
        q, ends = half(8, 4, 16), torch.tensor([0, 8])
        run = qt.varlen_attention
        self.said(error, run.words, ["k has a head dim of 24 and q 16"],
                  lambda: run(q, half(8, 4, 24), q, ends, ends, 8, 8))
        run = flash_attn.flash_attn_varlen_func
        self.said(qkvault.ArgumentError, run.words, ["v is bfloat16 and q float16"],
                  lambda: run(q, q, q.bfloat16(), ends, ends, 8, 8))

    def test_a_call_inside_of_a_call_and_the_next_one_have_their_own_words(self):
        q, odd = half(1, 4, 8, 16), half(1, 3, 8, 16)
        for _ in range(2):
            with self.assertRaisesRegex(qkvault.Refused, "key has 3 heads and query 4"):
                qt.scaled_dot_product_attention(q, odd, odd, enable_gqa=True)
            with self.assertRaisesRegex(qkvault.Refused, "k has 3 heads and q 4"):
                qt.attention(q, odd, odd)

    def test_compiled_programs_raise_the_same_exceptions(self):
        q, odd = half(1, 4, 8, 16), half(1, 3, 8, 16)
        floor = {"score_mod": lambda s, b, h, i, j: torch.floor(s)}
        for backend in (None, "eager", "aot_eager", "inductor"):
            run = qt.attention if backend is None else torch.compile(qt.attention, backend=backend)
            said = r"^\[heads.group\] k has 3 heads and q 4"
            with self.subTest(backend), self.assertRaisesRegex(qkvault.Refused, said):
                run(q, odd, odd)
            o = run(half(1, 4, 8, 16, grad=True), q, q, **floor)
            with self.subTest(backend), self.assertRaisesRegex(qkvault.Refused, r"^\[score-mod.derivative\]") as raised:
                o.sum().backward()
            self.assertEqual([reason.code for reason in raised.exception.reasons], ["score-mod.derivative"])
            torch.compiler.reset()

    def test_a_gradient_has_the_words_of_the_function_that_it_is_of(self):
        def refused(*_):
            error = qkvault.Refused("in other words")
            error.reasons = (qkvault.Reason("backward.far-rows", "quirk", "q.dims", "dO of 5 elements"),
                             qkvault.Reason("head-dim.backward", "rule", "q.dims[3]", "300 and 320"))
            raise error

        q = half(1, 4, 8, 16, grad=True)
        for run, name in ((qt.attention, "q and v are 300 and 320"),
                          (qt.scaled_dot_product_attention, "query and value are 300 and 320")):
            o = run(q, q, q, scale=0.77)
            with mock.patch.object(_operators, "backward_only", refused), self.assertRaisesRegex(qkvault.Refused, name):
                o.sum().backward()

    def test_use_tells_why_a_call_goes_on_in_its_own_words(self):
        q = torch.randn(1, 4, 8, 16)
        with self.assertLogs("qkvault", "WARNING") as logged, qt.use():
            torch.nn.functional.scaled_dot_product_attention(q, q, q)
        self.assertIn("query is float32", "\n".join(logged.output))


class Arguments(Told):
    """Mistakes that the door finds itself."""

    def test_options_of_wrong_kinds_and_shapes(self):
        q, wrong_kind = half(1, 4, 8, 16), qkvault.ArgumentError
        keep, few = torch.ones(3, 8, dtype=torch.bool), torch.zeros(3, 8)
        for parts, options in (
            (["bias has dims [3, 8]", "[1, 4, 8, 8]"], {"bias": few}),
            (["attn_mask has dims [3, 8]"], {"attn_mask": few}), (["attn_mask has dims [3, 8]"], {"attn_mask": keep}),
            (["bias has dims"], {"bias": few, "attn_mask": q[0, :, :, :8]}),
            (["bias is bool", "attn_mask"], {"bias": keep}), (["bias is int64"], {"bias": torch.ones(8, 8).long()}),
            (["bias is of type list", "torch.tensor(bias"], {"bias": [1.0]}),
            (["attn_mask is of type"], {"attn_mask": [1]}),
            (["window is (1, 2, 3)"], {"window": (1, 2, 3)}), (["window is 2.5"], {"window": 2.5}),
            (["window is 'x'"], {"window": "x"}), (["softcap is 'x'"], {"softcap": "x"}),
            (["scale is 'auto'"], {"scale": "auto"}), (["sinks is of type list"], {"sinks": [1.0]}),
            (["sinks has dims [3]", "4 heads"], {"sinks": torch.zeros(3)}),
            (["alibi_slopes has dims [3]", "4 heads"], {"alibi_slopes": torch.zeros(3)}),
            (["alibi_slopes has dims [2, 4]"], {"alibi_slopes": torch.zeros(2, 4)}),
            (["dropout_p is 'a'"], {"dropout_p": "a"}),
            (["dropout_p", "on the CPU", "0.0"], {"dropout_p": 0.5}), (["q_lengths is of type int"], {"q_lengths": 3}),
            (["kv_lengths has dims [2]"], {"kv_lengths": torch.tensor([1, 2])}),
            (["score_mod is of type int", "(score, b, h, q_idx, kv_idx)"], {"score_mod": 3}),
            (["mask_mod is of type Tensor", "attn_mask"], {"mask_mod": keep}),
        ):
            self.said(wrong_kind, DOOR.base, parts, lambda options=options: qt.attention(q, q, q, **options))
        of_numpy = torch.tensor(2).numpy()[()]
        self.near(qt.attention(q, q, q, window=(of_numpy, -1)), qt.attention(q, q, q, window=(2, -1)))

    def test_tensors_that_are_none_and_ones_of_other_dims(self):
        q, wrong_kind, sdpa = half(1, 4, 8, 16), qkvault.ArgumentError, qt.scaled_dot_product_attention
        for given in ([1.0], q.numpy(), None):
            kind = type(given).__name__
            self.said(wrong_kind, DOOR.base, [f"q is of type {kind}"], lambda: qt.attention(given, q, q))
            self.said(wrong_kind, sdpa.words, [f"value is of type {kind}"], lambda: sdpa(q, q, given))
        self.said(wrong_kind, DOOR.base, ["k has dims [4, 8, 16]", "(batch, head"], lambda: qt.attention(q, q[0], q))
        self.said(wrong_kind, sdpa.words, ["attn_mask has dims [3, 8]"],
                  lambda: sdpa(q, q, q, attn_mask=torch.ones(3, 8)))
        self.said(wrong_kind, sdpa.words, ["query is float32"], lambda: sdpa(q.float(), q.float(), q.float()))
        self.said(wrong_kind, sdpa.words, ["query has dims [4, 8, 16]", "value [2, 8, 16]"],
                  lambda: sdpa(q[0], q[0], q[0, :2]))
        pages, table, run = half(2, 8, 4, 16), torch.zeros(1, 1, dtype=torch.int32), qt.paged_attention
        self.said(wrong_kind, run.words, ["k_pages has dims", "v_pages [2, 6, 4, 16]"],
                  lambda: run(q, pages, pages[:, :6], table, torch.tensor([3])))
        run, rows, ends = qt.varlen_attention, half(8, 4, 16), torch.tensor([0, 8])
        self.said(wrong_kind, run.words, ["max_seqlen_q is 0"], lambda: run(rows, rows, rows, ends, ends, 0, 8))
        self.said(wrong_kind, run.words, ["cu_seqlens_q is of type list"],
                  lambda: run(rows, rows, rows, [0, 8], ends, 8, 8))

    def test_functions_of_flash_attn(self):
        q, wrong_kind, run = half(1, 8, 4, 16), qkvault.ArgumentError, flash_attn.flash_attn_func
        self.said(wrong_kind, run.words, ["q has dims [8, 4, 16]", "(batch, sequence"], lambda: run(q[0], q, q))
        self.said(wrong_kind, run.words, ["window_size is 3", "(left, right)"], lambda: run(q, q, q, window_size=3))
        self.said(wrong_kind, run.words, ["window_size is (-3, 0)"], lambda: run(q, q, q, window_size=(-3, 0)))
        self.said(wrong_kind, run.words, ["softmax_scale is 'a'"], lambda: run(q, q, q, softmax_scale="a"))
        run = flash_attn.flash_attn_with_kvcache
        self.said(wrong_kind, run.words, ["k is given without v"], lambda: run(q, q, q, k=q))
        self.said(wrong_kind, run.words, ["rotary embedding to q and k before"], lambda: run(q, q, q, rotary_cos=q))
        self.said(wrong_kind, run.words, ["cache_seqlens has dims [2]"],
                  lambda: run(q, q, q, cache_seqlens=torch.tensor([1, 2])))
        run = flash_attn.flash_attn_qkvpacked_func
        self.said(wrong_kind, run.words, ["qkv[:, :, 0] is float32"], lambda: run(torch.randn(1, 8, 3, 4, 16)))

    def test_a_modification_that_cannot_be_followed_names_the_line(self):
        def branches(score, b, h, q_idx, kv_idx):
            return score if score > 0 else -score

        q = half(1, 4, 8, 16)
        table = torch.ones(8)
        self.assertEqual(qt.attention(q, q, q, score_mod=lambda s, b, h, i, j: s + table[j]).shape, q.shape)
        with self.assertRaisesRegex(qt.Untraceable, r"index 20 is out of bounds .* clamp .*test_torch_words\.py:\d+"):
            qt.attention(q, q, q, score_mod=lambda s, b, h, i, j: s + table[j + 20])
        with self.assertRaisesRegex(qt.Untraceable, r"called with \(score, b, h, q_idx, kv_idx\)"):
            qt.attention(q, q, q, score_mod=lambda s: s)
        for function in (branches, lambda s: s, lambda s, b, h, i, j: None, lambda s, b, h, i, j: torch.special.i0(s)):
            with self.assertRaisesRegex(qt.Untraceable, r"test_torch_words\.py:\d+\)$"):
                qt.attention(q, q, q, score_mod=function)


if __name__ == "__main__":
    unittest.main()
