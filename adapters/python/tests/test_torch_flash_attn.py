"""flash-attn's functions by their names.

    cargo xtask torch-tests
"""

import math
import os
import unittest

import torch

if not os.environ.get("QKVAULT_LIBRARY"):
    raise unittest.SkipTest("QKVAULT_LIBRARY names no library")

import qkvault
import qkvault.torch as qt
from qkvault.torch.flash_attn import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
)
from torch_common import FOLDER, Case


def setUpModule():
    qt.configure(FOLDER.name, cpu=True)


def made(*shapes):
    return tuple(torch.randn(shape, dtype=torch.bfloat16) for shape in shapes)


def right(q, k, v, causal=False, window=(-1, -1), softcap=0.0, slopes=None):
    """The definition of flash-attn in float64, of one sequence (query, head, head dim); rows without keys are zero."""
    q, k, v = (t.double().transpose(0, 1) for t in (q, k, v))
    k, v = (t.repeat_interleave(q.shape[0] // t.shape[0], 0) for t in (k, v))
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    i, j = torch.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1], torch.arange(k.shape[1])
    if slopes is not None:
        scores = scores - slopes.double()[:, None, None] * (i - j).abs()
    hidden = torch.zeros(scores.shape[1:], dtype=torch.bool)
    hidden |= (j > i) if causal else hidden
    hidden |= (j < i - window[0]) if window[0] >= 0 else hidden
    hidden |= (j > i + window[1]) if window[1] >= 0 else hidden
    scores = scores.masked_fill(hidden, -math.inf)
    return (torch.nan_to_num(scores.softmax(-1)) @ v).transpose(0, 1), scores.logsumexp(-1)


class Functions(Case):
    def test_dense_calls(self):
        q, k, v = made((2, 6, 4, 16), (2, 10, 2, 16), (2, 10, 2, 16))
        slopes = torch.rand(4)
        for given in (
            {}, {"causal": True}, {"causal": True, "window_size": (3, 0)}, {"window_size": (2, 1)}, {"softcap": 2.0},
            {"causal": True, "alibi_slopes": slopes},
        ):  # fmt: skip
            with self.subTest(given):
                words = {"causal": given.get("causal", False), "window": given.get("window_size", (-1, -1)),
                         "softcap": given.get("softcap", 0.0), "slopes": given.get("alibi_slopes")}  # fmt: skip
                o, lse, none = flash_attn_func(q, k, v, return_attn_probs=True, **given)
                wanted = [right(*(t[b] for t in (q, k, v)), **words) for b in range(2)]
                self.near(o, torch.stack([one[0] for one in wanted]))
                self.assertIsNone(none)
                if "alibi_slopes" not in given:
                    self.near(lse, torch.stack([one[1] for one in wanted]))
                self.assertTrue(torch.equal(flash_attn_func(q, k, v, **given), o))
        (qkv,) = made((2, 8, 3, 4, 16))
        o = flash_attn_qkvpacked_func(qkv, causal=True)
        self.assertTrue(torch.equal(o, flash_attn_func(*qkv.unbind(2), causal=True)))
        self.assertTrue(torch.equal(o, flash_attn_kvpacked_func(qkv[:, :, 0], qkv[:, :, 1:], causal=True)))
        with self.assertRaisesRegex(qkvault.ArgumentError, "bottom right"):
            flash_attn_func(q, k, v, alibi_slopes=slopes)

    def test_sequences_behind_each_other(self):
        ends_q, ends_k = [0, 3, 9, 9, 14], [0, 5, 11, 13, 20]
        q, k, v = made((14, 4, 16), (20, 2, 16), (20, 2, 16))
        given = torch.tensor(ends_q, dtype=torch.int32), torch.tensor(ends_k, dtype=torch.int32), 6, 7
        for causal, window in ((False, (-1, -1)), (True, (-1, -1)), (True, (2, 0))):
            o, lse, _ = flash_attn_varlen_func(
                q, k, v, *given, causal=causal, window_size=window, return_attn_probs=True
            )  # fmt: skip
            wanted = [
                right(q[a:b], k[c:d], v[c:d], causal, window)
                for a, b, c, d in zip(ends_q, ends_q[1:], ends_k, ends_k[1:])
            ]
            self.near(o, torch.cat([one[0] for one in wanted]))
            self.near(lse, torch.cat([one[1] for one in wanted], 1))

    def test_a_cache_grows_in_place_dense_and_in_pages(self):
        lengths, new = torch.tensor([3, 9, 0], dtype=torch.int32), 2
        q, k, v = made((3, new, 4, 16), (3, new, 2, 16), (3, new, 2, 16))
        for paged in (False, True):
            with self.subTest(paged=paged):
                shape = (9, 4, 2, 16) if paged else (3, 12, 2, 16)
                k_cache, v_cache = made(shape, shape)
                table = torch.tensor([[7, 2, 0], [1, 8, 3], [4, 6, 5]], dtype=torch.int32) if paged else None
                o = flash_attn_with_kvcache(
                    q, k_cache, v_cache, k, v, cache_seqlens=lengths, block_table=table, causal=True
                )  # fmt: skip
                for b, n in enumerate(lengths.tolist()):
                    keys, values = (
                        (cache[table[b].long()].flatten(0, 1) if paged else cache[b])[: n + new]
                        for cache in (k_cache, v_cache)
                    )  # fmt: skip
                    self.assertTrue(torch.equal(keys[n:], k[b]) and torch.equal(values[n:], v[b]))
                    self.near(o[b], right(q[b], keys, values, causal=True)[0])
        k_cache, v_cache = made((5, 12, 2, 16), (5, 12, 2, 16))
        rows = torch.tensor([4, 0, 2])
        o = flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=6, cache_batch_idx=rows)
        for b, row in enumerate(rows.tolist()):
            self.near(o[b], right(q[b], k_cache[row, :6], v_cache[row, :6])[0])
        for given, said in (
            ({"rotary_cos": k}, "rotary_cos is given"), ({"cache_leftpad": rows}, "cache_leftpad is given"),
            ({"k": k}, "k is given without v"),
        ):  # fmt: skip
            with self.assertRaisesRegex(qkvault.ArgumentError, said):
                flash_attn_with_kvcache(q, k_cache, v_cache, **given)


class Redirected(Case):
    def test_varlen_attn_of_pytorch_is_served_inside_use(self):
        from torch.nn.attention import varlen

        q, k, v = made((14, 4, 16), (20, 4, 16), (20, 4, 16))
        given = torch.tensor([0, 3, 9, 14], dtype=torch.int32), torch.tensor([0, 5, 11, 20], dtype=torch.int32), 6, 9
        before = varlen.varlen_attn
        with qt.use():
            for window in ((-1, -1), (-1, 0), (2, 0)):
                o, lse = varlen.varlen_attn(
                    q, k, v, *given, window_size=window, return_aux=varlen.AuxRequest(lse=True)
                )  # fmt: skip
                wanted = flash_attn_varlen_func(q, k, v, *given, window_size=window, return_attn_probs=True)
                self.assertTrue(torch.equal(o, wanted[0]) and torch.equal(lse, wanted[1]))
                self.assertTrue(torch.equal(varlen.varlen_attn(q, k, v, *given, window_size=window), o))
        self.assertIs(varlen.varlen_attn, before)


if __name__ == "__main__":
    unittest.main()
