"""One attention of `bench engines` as a request describes it: its operands on a device, and its answer in float32 for a
part of it."""
import functools

import torch

DTYPE = torch.bfloat16
# Scores that a part of the answer may have at a time.
MOST = 1 << 25
# Rows and columns of a tile of a block mask.
TILE = 128


class Refused(Exception):
    """What a library does not compute, in words."""


class Case:
    """Sizes and features, as `request.rs` writes them. Rows of all sequences lie one after another: (rows, heads, head
    dim); keys and values of pages are (pages, rows of a page, heads, head dim) too."""

    def __init__(self, w, device="cuda"):
        self.w, self.device = w, device
        for name in ("b", "h", "hk", "d", "dv", "queries", "keys", "left", "right", "bottom_right", "softcap", "alibi",
                     "sink", "d_sink", "lengths", "mask", "document", "page", "pages", "packed_q", "packed_k", "latent",
                     "deterministic"):
            setattr(self, name, w[name])
        self.backward = w["direction"] == "backward"
        self.group, self.scale = self.h // self.hk, self.d**-0.5
        self.sq, self.sk = max(self.queries), max(self.keys)
        self.even = len(set(self.queries)) == 1 and len(set(self.keys)) == 1
        self.causal = self.right == 0
        self.expression = self.softcap is not None or self.alibi
        # A launch gets lengths of sequences that are not packed and not in pages.
        self.padded = self.lengths and not (self.packed_q or self.packed_k or self.page)
        self._made = {}

    def shift(self, b):
        return self.keys[b] - self.queries[b] if self.bottom_right else 0

    def corner(self):
        """Refuses a diagonal that does not end in the bottom right corner: most libraries have that one alone."""
        if (self.left, self.right) != (None, None) and any(self.shift(b) != k - q for b, (q, k) in self.each()):
            raise Refused("its band ends in the bottom right corner")
        if self.right not in (None, 0):
            raise Refused("a band with keys behind the diagonal")

    def each(self):
        return enumerate(zip(self.queries, self.keys))

    def make(self, name, how):
        if name not in self._made:
            self._made[name] = how()
        return self._made[name]

    def random(self, *shape):
        return torch.randn(*shape, device=self.device, dtype=DTYPE)

    @property
    def q(self):
        return self.make("q", lambda: self.random(sum(self.queries), self.h, self.d))

    @property
    def d_o(self):
        return self.make("d_o", lambda: self.random(sum(self.queries), self.h, self.dv))

    @property
    def sinks(self):
        return self.make("sinks", lambda: torch.randn(self.h, device=self.device).requires_grad_(self.d_sink))

    def pool(self, name):
        """Keys or values in pages. Pages of a sequence lie apart, as in `bench engines`."""
        if name == "v" and self.latent:
            return self.pool("k")[..., : self.dv]
        d = self.d if name == "k" else self.dv
        return self.make(f"{name} pool", lambda: self.random(self.pages, self.page, self.hk, d))

    def table(self):
        """The pages of each sequence, which share those of a pool that is too small."""
        at = lambda n: torch.arange(n, device=self.device, dtype=torch.int32)
        return (at(-(-self.sk // self.page))[None] * self.b + at(self.b)[:, None]) % self.pages

    def rows_of(self, name):
        def make():
            if not self.page:
                return self.random(sum(self.keys), self.hk, self.d if name == "k" else self.dv)
            rows = self.pool(name)[self.table().long()]
            rows = rows.view(self.b, -1, *rows.shape[3:])[:, : self.sk]
            return rows.reshape(-1, *rows.shape[2:])

        if name == "v" and self.latent:
            return self.k[..., : self.dv]
        return self.make(name, make)

    @property
    def k(self):
        return self.rows_of("k")

    @property
    def v(self):
        return self.rows_of("v")

    def starts(self, lengths):
        """Cumulative lengths."""
        ends = torch.tensor([0, *lengths]).cumsum(0)
        return ends.to(device=self.device, dtype=torch.int32)

    def ints(self, numbers):
        return torch.tensor(numbers, device=self.device, dtype=torch.int32)

    def batched(self, t):
        """(sequences, rows, heads, head dim), for sequences of one length."""
        if not self.even:
            raise Refused("sequences of different lengths are no batch for it")
        return t.view(self.b, -1, *t.shape[1:])

    def slopes(self):
        return 2.0 ** (-8.0 * torch.arange(1, self.h + 1, device=self.device) / self.h)

    def seen(self, b, i, j):
        """Whether queries `i` of a sequence see keys `j`, which are broadcast."""
        at = i + self.shift(b)
        seen = (i >= 0) & (j >= 0)
        if self.right is not None:
            seen = seen & (j <= at + self.right)
        if self.left is not None:
            seen = seen & (j > at - self.left)
        return seen & self.operand_mask(i, j)

    @functools.cached_property
    def tree(self):
        """Bits of the drafts that each sees, itself and those it follows; each has two children, as in `turns.rs`."""
        bits = []
        for draft in range(self.sq):
            bit = (1 << draft) - (1 << 64 if draft == 63 else 0)
            bits.append(bit | (bits[(draft - 1) // 2] if draft else 0))
        return torch.tensor(bits, device=self.device, dtype=torch.int64)

    def operand_mask(self, i, j):
        """What the operands of `turns.rs` say: documents of so many tokens, a causal mask within them, every fourth
        diagonal of tiles, or a tree of drafts."""
        if self.mask == "documents":
            return i // self.document == j // self.document
        if self.mask == "tensor":
            return (j <= i) & (i // self.document == j // self.document)
        if self.mask == "tree":
            draft = j - (self.sk - self.sq)
            return (draft < 0) | ((self.tree[i] >> draft.clamp(min=0)) & 1).bool()
        if self.mask == "blocks":
            return (i // TILE - j // TILE) % 4 == 0
        return (i >= 0) & (j >= 0)
