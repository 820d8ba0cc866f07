"""FlexAttention's block masks through `qkvault.torch`, beside the definition that its kernels have.

    cargo xtask torch-tests
"""

import os
import unittest
import unittest.mock

import torch

if not os.environ.get("QKVAULT_LIBRARY"):
    raise unittest.SkipTest("QKVAULT_LIBRARY names no library")

from torch.nn.attention.flex_attention import BlockMask, and_masks, create_block_mask, flex_attention, noop_mask
from torch_common import FOLDER, Case, causal, exact, three

import qkvault
import qkvault.torch as qt
from qkvault.torch import _blocks

qt.configure(FOLDER.name, cpu=True)
S, BLOCK = 40, 16
DEVICE = torch.empty(0).device


def lists(table, mask_mod=None, **more):
    """A block mask of the blocks that a table of truth values names."""
    order = torch.argsort(table.int(), dim=-1, descending=True, stable=True).to(torch.int32)
    return BlockMask.from_kv_blocks(
        table.sum(-1, dtype=torch.int32), order, BLOCK_SIZE=BLOCK, mask_mod=mask_mod, seq_lengths=(S, S), **more
    )


def kernels(block_mask):
    """What FlexAttention's kernels see: blocks of the full list, and the predicate within those of the other."""
    listed = _ordered(block_mask.kv_num_blocks, block_mask.kv_indices)
    full = block_mask.full_kv_num_blocks
    full = torch.zeros_like(listed) if full is None else _ordered(full, block_mask.full_kv_indices)
    rule = block_mask.mask_mod

    def mask(b, h, i, j):
        at = (b % listed.shape[0], h % listed.shape[1], i // BLOCK, j // BLOCK)
        return full[at] | listed[at] & (torch.ones_like(j, dtype=torch.bool) if rule is noop_mask else rule(b, h, i, j))

    return mask


def _ordered(counts, indices):
    table = torch.zeros(*indices.shape[:-1], 3, dtype=torch.bool)
    for b, h, i in torch.cartesian_prod(*(torch.arange(n) for n in counts.shape)).tolist():
        for at in range(int(counts[b, h, i])):
            table[b, h, i, indices[b, h, i, at]] = True
    return table


class Blocks(Case):
    def setUp(self):
        torch.manual_seed(1)
        self.q, self.k, self.v = three(h=(4, 2), s=(S, S), grad=True)

    def checked(self, block_mask, **more):
        q, k, v = self.q, self.k, self.v
        made = lambda: qt.attention(q, k, v, block_mask=block_mask, **more)  # noqa: E731
        self.agree(exact(q, k, v, None, kernels(block_mask)), [q, k, v], made)

    def test_masks_of_create_block_mask_are_their_predicate(self):
        docs = torch.tensor([[0] * 11 + [1] * 20 + [2] * 9, [0] * 3 + [1] * 37])
        rules = {
            "causal": (causal, None, None), "docs": (lambda b, h, i, j: docs[b, i] == docs[b, j], 2, None),
            "heads": (lambda b, h, i, j: j <= i + 5 * h, None, 4),
            "both": (and_masks(causal, lambda b, h, i, j: docs[b, i] == docs[b, j]), 2, 1),
        }  # fmt: skip
        for name, (rule, batch, heads) in rules.items():
            with self.subTest(name):
                blocks = create_block_mask(rule, batch, heads, S, S, device=DEVICE, BLOCK_SIZE=BLOCK)
                self.checked(blocks)
                self.assertIs(_blocks.predicate(blocks, (2, 4, S, S), DEVICE), rule)
                with torch.no_grad():
                    plain = [t.detach().float() for t in (self.q, self.k, self.v)]
                    flex = flex_attention(*plain, block_mask=blocks, enable_gqa=True)
                    self.near(qt.attention(self.q, self.k, self.v, block_mask=blocks), flex)

    def test_lists_hide_what_the_predicate_shows(self):
        table = torch.tensor([[1, 0, 0], [1, 1, 0], [0, 1, 1]], dtype=torch.bool)
        other = torch.tensor([[1, 1, 0], [0, 1, 0], [1, 0, 1]], dtype=torch.bool)
        for name, given in {
            "one": table[None, None], "heads": torch.stack([table, other] * 2)[None],
            "both": torch.stack([table, other])[:, None].expand(2, 4, 3, 3),
        }.items():  # fmt: skip
            for rule in (None, causal):
                with self.subTest(name, rule=rule):
                    self.checked(lists(given, rule))
        with self.subTest("a score_mod beside them"):
            cap = lambda s, b, h, i, j: s + h * 0.1  # noqa: E731
            q, k, v = self.q, self.k, self.v
            blocks = lists(table[None, None], causal)
            wanted = exact(q, k, v, cap, kernels(blocks))
            self.agree(wanted, [q, k, v], lambda: qt.attention(q, k, v, block_mask=blocks, score_mod=cap))

    def test_full_blocks_are_seen_whatever_the_predicate_says(self):
        blocks = create_block_mask(causal, None, None, S, S, device=DEVICE, BLOCK_SIZE=BLOCK)
        blocks.full_kv_num_blocks = torch.full_like(blocks.full_kv_num_blocks, 3)
        blocks.full_kv_indices = torch.arange(3, dtype=torch.int32).expand_as(blocks.full_kv_indices).contiguous()
        self.checked(blocks)

    def test_a_change_in_place_is_seen(self):
        blocks = create_block_mask(lambda b, h, i, j: j < 100, None, None, S, S, device=DEVICE, BLOCK_SIZE=BLOCK)
        self.checked(blocks)
        blocks.full_kv_num_blocks.fill_(1)
        self.checked(blocks)
        blocks.full_kv_num_blocks.fill_(3)
        blocks.mask_mod = causal  # Never asked: all blocks are full.
        self.checked(blocks)

    def test_all_blocks_without_a_predicate_are_no_mask(self):
        blocks = lists(torch.ones(1, 1, 3, 3, dtype=torch.bool))
        self.assertIsNone(_blocks.predicate(blocks, (2, 4, S, S), DEVICE))
        self.checked(blocks)

    def test_adjusted_and_sliced_masks(self):
        whole = create_block_mask(causal, None, None, 64, 64, device=DEVICE, BLOCK_SIZE=BLOCK)
        with self.assertRaisesRegex(qkvault.ArgumentError, r"for 64 queries and 64 keys, and there are 40 and 40; make"):
            qt.attention(self.q, self.k, self.v, block_mask=whole)
        q, k, v = three(h=(2, 2), s=(32, 32), grad=True)
        with self.assertRaisesRegex(qkvault.ArgumentError, r"_adjust\(32, 32\)"):
            qt.attention(q, k, v, block_mask=whole)
        self.agree(exact(q, k, v, None, causal), [q, k, v], lambda: qt.attention(q, k, v, block_mask=whole._adjust(32, 32)))
        row = whole[:, :, 2]
        row.seq_lengths = (16, 64)
        q, k, v = three(h=(2, 2), s=(16, 64), grad=True)
        with self.assertRaisesRegex(qkvault.ArgumentError, "part of another one.*block_mask.mask_mod ="):
            qt.attention(q, k, v, block_mask=row)
        row.mask_mod = lambda b, h, i, j: causal(b, h, i + 32, j)
        self.agree(exact(q, k, v, None, row.mask_mod), [q, k, v], lambda: qt.attention(q, k, v, block_mask=row))

    def test_what_does_not_fit_is_refused(self):
        few = create_block_mask(causal, 3, None, S, S, device=DEVICE, BLOCK_SIZE=BLOCK)
        docs = torch.tensor([[0] * 16 + [1] * 24, [0] * 24 + [1] * 16])
        one = create_block_mask(lambda b, h, i, j: docs[b, i] == docs[b, j], None, None, S, S, device=DEVICE, BLOCK_SIZE=BLOCK)
        rows = create_block_mask(causal, None, None, S, S, device=DEVICE, BLOCK_SIZE=BLOCK)[:, :, 0:2]
        rows.mask_mod = causal
        for name, blocks, words in (
            ("batch", few, "lists of dims .3, 1, 3.*B, H"), ("rows", rows, "lists of dims .*3 blocks of queries|is for 32 queries"),
            ("batch is read", one, r"for 1 sequences and 1 heads, and its mask_mod is another.*mask_mod, 2, 4"),
        ):  # fmt: skip
            with self.subTest(name), self.assertRaisesRegex(qkvault.ArgumentError, words):
                qt.attention(self.q, self.k, self.v, block_mask=blocks)
        plain = create_block_mask(causal, None, None, S, S, device=DEVICE, BLOCK_SIZE=BLOCK)
        with self.assertRaisesRegex(qkvault.ArgumentError, "block_mask with query_origin"):
            qt.attention(self.q, self.k, self.v, block_mask=plain, query_origin=3)

    def test_a_predicate_that_cannot_be_traced_is_told_with_its_line(self):
        blocks = create_block_mask(causal, None, None, S, S, device=DEVICE, BLOCK_SIZE=BLOCK)
        blocks.mask_mod = lambda b, h, i, j: j <= i if i > 3 else j >= 0
        with self.assertRaisesRegex(qt.Untraceable, "test_torch_blocks.py:"):
            qt.attention(self.q, self.k, self.v, block_mask=blocks)

    def test_calls_that_are_asked_about(self):
        blocks = create_block_mask(causal, None, None, S, S, device=DEVICE, BLOCK_SIZE=BLOCK)
        q, k, v = (t.to("meta") for t in (self.q, self.k, self.v))
        self.assertIn("causal", str(qt.explain(q, k, v, block_mask=blocks, gpu="h200").text))

    def test_what_was_found_is_kept_while_nothing_changes(self):
        docs = torch.tensor([[0] * 11 + [1] * 29] * 2)
        rule = lambda b, h, i, j: docs[b, i] == docs[b, j]  # noqa: E731
        blocks = create_block_mask(rule, 2, None, S, S, device=DEVICE, BLOCK_SIZE=BLOCK)
        seen = []
        with unittest.mock.patch.object(_blocks, "_agrees", lambda *given: seen.append(0) or True):
            for change in (lambda: None, lambda: None, lambda: docs.add_(1), lambda: blocks.kv_indices.add_(0)):
                change()
                qt.attention(self.q, self.k, self.v, block_mask=blocks)
            docs = docs.clone()
            qt.attention(self.q, self.k, self.v, block_mask=blocks)
        self.assertEqual(len(seen), 4)

    def test_compiled(self):
        q, k, v = self.q, self.k, self.v
        run = torch.compile(lambda m: qt.attention(q, k, v, block_mask=m), backend="aot_eager", fullgraph=True)
        docs = torch.tensor([[0] * 11 + [1] * 20 + [2] * 9, [0] * 3 + [1] * 37])
        right = {
            "causal": create_block_mask(causal, None, None, S, S, device=DEVICE, BLOCK_SIZE=BLOCK),
            "docs": create_block_mask(
                lambda b, h, i, j: docs[b, i] == docs[b, j], 2, None, S, S, device=DEVICE, BLOCK_SIZE=BLOCK
            ),
            "lists": lists(torch.tensor([[1, 0, 0], [1, 1, 0], [0, 1, 1]], dtype=torch.bool)[None, None]),
        }  # fmt: skip
        for name, blocks in right.items():
            with self.subTest(name):
                torch._dynamo.reset()
                self.agree(exact(q, k, v, None, kernels(blocks)), [q, k, v], lambda: run(blocks))
        if DEVICE.type == "cuda":
            return  # An assertion of a kernel ends the process's use of its GPU.
        with self.assertRaisesRegex(RuntimeError, "lists of a block_mask say something else"):
            run(lists(torch.eye(3, dtype=torch.bool)[None, None], causal))


if __name__ == "__main__":
    unittest.main()
