"""Errors of JAX's door in the words of the function that was called.

    cargo xtask jax-tests                       # runs these too
    python3 -m unittest test_jax_words          # with JAX, and QKVAULT_LIBRARY or the wheel
"""

import unittest

from test_jax import Case, jax, jnp, make, qj, qkvault  # noqa: I001
from words_common import answered, samples, wrong

from qkvault.jax._words import DOOR

FUNCTIONS = (
    qj.dot_product_attention, qj.varlen_attention, qj.paged_attention, qj.context_parallel_attention, qj.explain,
)


def shape(*dims, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct(dims, dtype)


def call(q=(2, 128, 4, 64), k=None, v=None, backward=False, **options):
    k = q if k is None else k
    return (shape(*q), shape(*k), shape(*(k if v is None else v))), {"backward": backward, **options}


#: Calls that some GPU or some cuDNN refuses.
CALLS = (
    call(), call(q=(1, 128, 4, 12)), call(q=(1, 128, 4, 320)), call(q=(1, 128, 4, 320), backward=True),
    call(q=(1, 3, 4, 64), backward=True), call(q=(1, 1, 1, 64), k=(1, 128, 1, 64), backward=True),
    call(q=(2, 1, 4, 64), k=(2, 512, 4, 64)), call(q=(2, 1, 4, 64), k=(2, 512, 4, 64), sinks=jnp.zeros(4)),
    call(q=(2, 1, 4, 256), k=(2, 128, 4, 256)), call(sinks=jnp.zeros(4)), call(window=(4, None)),
    call(dropout_rate=0.1, dropout_rng=jax.random.key(0)),
    call(q=(1, 2048, 4, 64), window=(4, None)), call(backward=True, deterministic=True),
    call(backward=True, deterministic=True, softcap=30.0), call(backward=True, bias=jnp.zeros((2, 4, 128, 1))),
    call(q=(70000, 1, 4, 64), k=(70000, 8, 4, 64)), call(q=(1, 8, 4, 64), k=(1, 8, 3, 64)),
    call(q=(1, 9_000_000, 1, 64), query_origin=3, is_causal=True),
    call(is_causal=True, mask_mod=lambda b, h, i, j: j > i), call(mask_mod=lambda b, h, i, j: jnp.bool_(False)),
    call(score_mod=lambda s, b, h, i, j: 1.0 * (i - j)),
)
#: The codes that they meet.
MET = """
    backward.deterministic-engine backward.deterministic-expression backward.keys-tail-old backward.query-tensor
    backward.single-row band.window-old band.window-wrong cudnn.major cudnn.too-old cudnn.withdrawn dropout.philox-old
    head-dim.backward head-dim.forward-old head-dim.multiple-of-8 heads.group mask-mod.nothing mask.contradiction
    origins.extent queries.one-old queries.one-sink queries.one-wrong score-mod.unread sink.old size.grid target.unknown
""".split()  # noqa: SIM905
VERSIONS = ("8.9.0", "9.5.0", "9.8.0", "9.10.0", "9.11.0", "9.14.0", "9.19.0", "9.26.0")
Q = make(1, 8, 4, 16)


class Words(Case):
    def told(self, error, function, parts, run):
        words = getattr(function, "words", DOOR.base)
        with self.subTest(parts), self.assertRaises(error) as raised:
            jax.block_until_ready(run())
        self.said(raised, *parts)
        self.assertEqual(wrong(words, str(raised.exception)), [], str(raised.exception))

    def test_every_sentence_has_only_arguments_of_every_function(self):
        for words in (DOOR.base, *(function.words for function in FUNCTIONS)):
            for reason in samples():
                text = words.told(reason)
                self.assertEqual(wrong(words, text.replace(reason.given, "")), [], text)

    def test_calls_that_gpus_and_versions_refuse_are_told_in_the_words_of_attention(self):
        met = {}
        for arrays, options in CALLS:
            for gpu in ("a100", "h200", "b200", "z80"):
                for cudnn in VERSIONS if gpu != "z80" else ("9.19.0",):
                    answered(lambda: qj.explain(*arrays, gpu=gpu, cudnn=cudnn, **options), met)
        self.assertEqual(sorted(set(MET) - set(met)), [])
        for text in met.values():
            self.assertEqual(wrong(DOOR.base, text), [], text)

    def test_refusals_name_the_arguments_of_the_function_that_was_called(self):
        odd, dpa = make(1, 8, 3, 16), qj.dot_product_attention
        refused = qkvault.Refused
        for run in (lambda f: f, jax.jit):
            self.told(refused, None, ["[heads.group] k has 3 heads and q 4"], lambda: run(qj.attention)(Q, odd, odd))
            self.told(refused, dpa, ["key has 3 heads and query 4", "value has 3"], lambda: run(dpa)(Q, odd, odd))
        table, lengths = jnp.zeros((1, 1), jnp.int32), jnp.asarray([3])
        paged = qj.paged_attention
        self.told(refused, paged, ["k_pages has 3 heads and q 4"], lambda: paged(Q, odd, odd, table, lengths))
        gradient = jax.grad(lambda q: paged(q, Q, Q, table, lengths).astype(jnp.float32).sum())
        self.told(refused, paged, ["[storage.paged-backward]", "k_pages[page_table]"], lambda: gradient(Q))

    def test_a_gradient_has_the_words_of_the_function_that_it_is_of(self):
        try:
            qj.configure(target="z80")
            for function in (qj.attention, qj.dot_product_attention, qj.varlen_attention):
                given = (Q[0], Q[0], Q[0], jnp.asarray([0, 8])) if function is qj.varlen_attention else (Q, Q, Q)
                run = jax.grad(lambda q, f=function, given=given: f(q, *given[1:]).astype(jnp.float32).sum())
                parts = ["[target.unknown]", "h200"]
                self.told(qkvault.Refused, function, parts, lambda run=run, given=given: run(given[0]))
        finally:
            qj.configure()

    def test_mistakes_are_named_with_the_arguments_of_the_function(self):
        error, dpa = qkvault.ArgumentError, qj.dot_product_attention
        for parts, options in (
            (["bias is bool", "mask"], {"bias": jnp.ones((8, 8), bool)}), (["bias is of type str"], {"bias": "x"}),
            (["scale is of type str"], {"scale": "auto"}), (["softcap is of type str"], {"softcap": "a"}),
            (["score_mod is of type int", "(score, b, h, q_idx, kv_idx)"], {"score_mod": 3}),
            (["mask_mod is of type", "as mask"], {"mask_mod": jnp.ones((8, 8), bool)}),
            (["sinks have the shape (3,)", "4 heads"], {"sinks": jnp.ones(3)}),
            (["key_value_seq_lengths", "give one for each of 1"], {"key_value_seq_lengths": jnp.asarray([1, 2])}),
        ):
            self.told(error, None, parts, lambda options=options: qj.attention(Q, Q, Q, **options))
        self.told(error, dpa, ["key has 4 heads and value 2"], lambda: dpa(Q, Q, Q[:, :, :2]))
        self.told(error, dpa, ["local_window_size is (1, 2, 3)"], lambda: dpa(Q, Q, Q, local_window_size=(1, 2, 3)))
        self.told(error, dpa, ["local_window_size is (-1, 2)"], lambda: dpa(Q, Q, Q, local_window_size=(-1, 2)))
        self.told(error, dpa, ["query is of type list"], lambda: dpa([1.0], Q, Q))
        self.told(error, dpa, ["value is float32", "value.astype"], lambda: dpa(Q, Q, Q.astype(jnp.float32)))
        self.told(error, dpa, ["query is int8", "query.astype"], lambda: dpa(*[Q.astype(jnp.int8)] * 3))
        self.told(qkvault.Refused, dpa, ["[dtype.input] query is float32"], lambda: dpa(*[Q.astype(jnp.float32)] * 3))
        varlen, paged = qj.varlen_attention, qj.paged_attention
        self.told(error, varlen, ["q is of type list"], lambda: varlen([1.0], Q, Q, jnp.asarray([0, 8])))
        self.told(error, paged, ["k_pages is of type list"], lambda: paged(Q, [1.0], Q, Q, Q))

    def test_a_modification_that_takes_other_arguments_names_the_line(self):
        said = r"score_mod takes \(s\).*score, b, h, q_idx, kv_idx.*test_jax_words.py"
        with self.assertRaisesRegex(qj.TraceError, said):
            qj.attention(Q, Q, Q, score_mod=lambda s: s)
        with self.assertRaisesRegex(qj.TraceError, r"line \d+ of .*test_jax_words.py"):
            qj.attention(Q, Q, Q, score_mod=lambda s, b, h, i, j: jnp.round(s))


if __name__ == "__main__":
    unittest.main()
