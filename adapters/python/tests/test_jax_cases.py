"""The table that every door runs, `adapters/cases.json`, through calls of `qkvault.jax`: the same keys and numbers.

    cargo xtask jax-tests                                          # runs it too
    python3 -m unittest adapters/python/tests/test_jax_cases.py    # with JAX, and QKVAULT_LIBRARY or the wheel
"""

import json
import pathlib
import unittest

from test_jax import Case, jax, jnp, keys, np, plain, qj, qkvault  # noqa: I001
from qkvault.oracle import Oracle

TABLE = json.loads((pathlib.Path(__file__).parents[2] / "cases.json").read_text())
SEED = 7
DTYPES = {"bf16": jnp.bfloat16, "f16": jnp.float16, "f32": jnp.float32, "i32": jnp.int32}


def arrays(attention, bhsd):
    """The random inputs of a description, as arrays of its layout, and its numbers."""
    oracle = Oracle(attention).random(SEED)
    found = {}
    for operand in attention.operands:
        if operand.output or operand.role in ("o", "stats"):
            continue
        flat = np.frombuffer(oracle.input(operand.role), DTYPES[operand.dtype])
        name = operand.name or operand.role
        if operand.scalar:
            found[name] = float(flat[0])
            continue
        rows = operand.role in ("q", "k", "v", "d_o") and not bhsd
        found[name] = jnp.asarray(flat.reshape([operand.dims[at] for at in ((0, 2, 1, 3) if rows else (0, 1, 2, 3))]))
    return found


def call(case, given):
    """The call of a case, as a function of q, k and v."""
    options = dict(case["call"], scale=given["scale"])
    if "slopes" in given:
        slopes = given["slopes"].reshape(-1)
    modifications = {
        "alibi": lambda s, b, h, i, j: s + slopes[h] * (j - i),
        "distance": lambda s, b, h, i, j: s - jnp.abs((i - j).astype(jnp.float32)) * 0.125,
        "dilated": lambda b, h, i, j: (i - j) % 2 == 0,
        "prefix": lambda b, h, i, j: (j <= i) | (j < 8),
    }
    for name in ("score_mod", "mask_mod"):
        if name in options:
            options[name] = modifications[options[name]]
    if "softcap" in options:
        options["softcap"] = given["softcap"]
    if options.pop("origins", False):
        options.update({name: int(given[name]) for name in ("query_origin", "key_origin")})
    if options.pop("sinks", False):
        options["sinks"] = given["sink"].reshape(-1)
    return lambda q, k, v, **more: qj.attention(q, k, v, **options, **more)


class Table(Case):
    def summed(self, array, exact):
        # Results are rounded to their element type; the table's sums are not.
        found = float(np.abs(np.asarray(array, np.float64)).sum())
        self.assertAlmostEqual(found, exact, delta=2e-4 * exact)

    def test_every_case_has_the_keys_and_numbers_of_the_table(self):
        self.assertGreater(len(TABLE), 9)
        for case in TABLE:
            with self.subTest(case["name"]):
                described = qkvault.Attention(case["text"])
                training, backward = described.training()
                bhsd = case["call"].get("layout") == "bhsd"
                given = arrays(described, bhsd)
                run, qkv = call(case, given), [given[name] for name in "qkv"]
                self.assertEqual(keys(run, *qkv), [case["forward"]["key"]])
                self.summed(run(*qkv), case["forward"]["sums"]["o"])

                given = arrays(training, bhsd)
                run, qkv = call(case, given), [given[name] for name in "qkv"]
                with_lse = lambda *a: run(*a, return_lse=True)  # noqa: E731
                self.assertEqual(keys(with_lse, *qkv), [case["training"]["key"]])
                for found, exact in zip(with_lse(*qkv), ("o", "stats")):
                    self.summed(found, case["training"]["sums"][exact])

                given = arrays(backward, bhsd)
                if "sinks" in case["call"]:
                    # A launch of a backward reads no sink, which is in Stats, so the table's draw cannot be asked for.
                    given["sink"] = arrays(training, bhsd)["sink"]
                run, qkv = call(case, given), [given[name] for name in "qkv"]
                gradients = lambda q, k, v, d_o: jax.vjp(run, q, k, v)[1](d_o)  # noqa: E731
                both = [case["training"]["key"], case["backward"]["key"]]
                self.assertEqual(keys(gradients, *qkv, given["d_o"]), both)
                if "sink" in given:
                    sinks, mask = given["sink"].reshape(-1), jnp.tril(jnp.ones((40, 40), bool))
                    theirs = jax.vjp(lambda *a: plain(*a, mask=mask, sinks=sinks, scale=given["scale"]), *qkv)[1]
                    self.near(gradients(*qkv, given["d_o"]), theirs(given["d_o"].astype(jnp.float32)))
                    continue
                for found, exact in zip(gradients(*qkv, given["d_o"]), ("d_q", "d_k", "d_v")):
                    self.summed(found, case["backward"]["sums"][exact])


if __name__ == "__main__":
    unittest.main()
