"""The model of dev/server in PyTorch: the same weights, matrix products by cuBLAS, attention by PyTorch's
FlashAttention-2.

That attention takes no pages, so each sequence has a slot of contiguous rows, which is easier. The functions between
products and attention are fused by torch.compile where it works. Without a GPU everything is float32 in plain loops,
for a test of the rest.
"""
import torch
import torch.nn.functional as F

MASK = 0xFFFFFFFF


def mix(x):
    """The hash of weights.rs, over int64 tensors whose numbers have 32 bits."""
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D & MASK
    x = x ^ (x >> 15)
    x = x * 0x846CA68B & MASK
    return x ^ (x >> 16)


def filled(of, device):
    """The numbers of a tensor, as weights.rs and kernels.cu make them."""
    out = torch.empty(of["count"], dtype=torch.bfloat16, device=device)
    for first in range(0, of["count"], 1 << 24):
        places = torch.arange(first, min(first + (1 << 24), of["count"]), device=device)
        unit = (mix(of["seed"] ^ mix(places)) >> 8).float() * (1.0 / 8388608.0) - 1.0
        out[first : first + len(places)] = of["middle"] + of["scale"] * unit
    return out


def rotated(qkv, cos, sin, positions, write, keys, values, heads, kv_heads, dim):
    """Rotary embedding of queries and keys; keys and values go to their rows of the cache."""
    q, k, v = qkv.view(-1, heads + 2 * kv_heads, dim).split((heads, kv_heads, kv_heads), 1)
    cos, sin = cos[positions].unsqueeze(1), sin[positions].unsqueeze(1)

    def turn(x):
        a, b = x.float().chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)

    keys[write] = turn(k)
    values[write] = v
    return turn(q)


def gated(both):
    gate, up = both.float().chunk(2, -1)
    return (gate / (1.0 + torch.exp(-gate)) * up).to(both.dtype)


def normed(x, factors):
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5) * factors.float()).to(x.dtype)


class Part:
    """Rows of a step that one attention computes: `rows` of them, with the first row of each sequence among them, its
    first row in the cache, and its keys. Decodes have one row in each sequence."""

    def __init__(self, rows, cum, start, keys, longest):
        self.rows, self.cum, self.start, self.keys, self.longest = rows, cum, start, keys, longest


class Model:
    def __init__(self, task, slots, room):
        self.gpu = not task["cpu"]
        self.device = torch.device("cuda" if self.gpu else "cpu")
        self.dtype = torch.bfloat16 if self.gpu else torch.float32
        shape = task["shape"]
        self.heads, self.kv_heads, self.dim = shape["heads"], shape["kv_heads"], shape["head_dim"]
        self.hidden, self.room = shape["hidden"], room

        def matrix(of, inputs):
            return filled(of, self.device).to(self.dtype).view(-1, inputs)

        weights, hidden = task["weights"], self.hidden
        self.embedding, self.head = matrix(weights["embedding"], hidden), matrix(weights["head"], hidden)
        self.last_norm = matrix(weights["last_norm"], hidden)[0]
        inputs = {"out": self.heads * self.dim, "down": shape["inner"]}
        self.layers = [
            {name: matrix(of, inputs.get(name, hidden)) for name, of in layer.items()} for layer in weights["layers"]
        ]
        # The last slot is for rows of padding.
        cache = lambda: torch.zeros(
            (slots + 1) * room, self.kv_heads, self.dim, dtype=self.dtype, device=self.device
        )
        self.caches = [(cache(), cache()) for _ in self.layers]
        half = self.dim // 2
        powers = torch.pow(500000.0, -torch.arange(half, dtype=torch.float32, device=self.device) / half)
        angles = torch.arange(room, dtype=torch.float32, device=self.device)[:, None] * powers
        self.cos, self.sin = angles.cos(), angles.sin()
        self.functions, self.fused = (rotated, gated, normed), False
        if self.gpu:
            self.fuse()

    def fuse(self):
        """Fuses the small functions, if torch.compile works here."""
        torch._dynamo.config.recompile_limit = 64
        torch._dynamo.config.specialize_int = True
        plain = self.functions
        try:
            self.functions = tuple(torch.compile(f) for f in plain)
            # The second number of rows makes rows a variable; one row is compiled by itself.
            for rows in (48, 40, 1):
                zeros = torch.zeros(rows, dtype=torch.long, device=self.device)
                self.logits(zeros, zeros, zeros + len(self.caches[0][0]) - 1, [], zeros[:1])
            torch.cuda.synchronize()
            self.fused = True
        except Exception as error:  # no compiler of C here, say
            print(f"peer: without torch.compile: {str(error)[:200]}", flush=True)
            self.functions = plain

    def attend(self, q, keys, values, part):
        causal = part.longest > 1
        if self.gpu:
            op = torch.ops.aten._flash_attention_forward
            return op(
                q, keys, values, part.cum, part.start, part.longest, self.room, 0.0, causal, False, seqused_k=part.keys
            )[0]
        out = torch.zeros_like(q)
        for at, count in enumerate(part.keys.tolist()):
            rows = slice(int(part.cum[at]), int(part.cum[at + 1]))
            first, new = int(part.start[at]), rows.stop - rows.start
            if new == 0:
                continue
            own = (q[rows], keys[first : first + count], values[first : first + count])
            queries, k, v = (x.transpose(0, 1).unsqueeze(0) for x in own)
            mask = torch.ones(new, count, dtype=torch.bool).tril(count - new)
            found = F.scaled_dot_product_attention(queries, k, v, attn_mask=mask, enable_gqa=True)
            out[rows] = found[0].transpose(0, 1)
        return out

    def logits(self, tokens, positions, write, parts, picks):
        """The logits of the picked rows."""
        rotate, gate, norm = self.functions
        sizes = (self.heads, self.kv_heads, self.dim)
        x = self.embedding[tokens]
        for layer, (keys, values) in zip(self.layers, self.caches):
            qkv = F.linear(norm(x, layer["attention_norm"][0]), layer["qkv"])
            q = rotate(qkv, self.cos, self.sin, positions, write, keys, values, *sizes)
            row, outs = 0, []
            for part in parts:
                outs.append(self.attend(q[row : row + part.rows], keys, values, part))
                row += part.rows
            o = outs[0] if len(outs) == 1 else torch.cat(outs) if outs else q
            x = torch.addmm(x, o.reshape(len(x), -1), layer["out"].t())
            inner = gate(F.linear(norm(x, layer["feed_norm"][0]), layer["gate_up"]))
            x = torch.addmm(x, inner, layer["down"].t())
        chosen = norm(x[picks], self.last_norm)
        if self.gpu:
            return torch.mm(chosen, self.head.t(), out_dtype=torch.float32)
        return F.linear(chosen, self.head)

    def gaps(self, prompt, answer):
        """How far the logit of each token of an answer is below the largest, for its prompt alone."""
        tokens = torch.tensor(prompt + answer[:-1], device=self.device)
        count = len(tokens)
        words = lambda *numbers: torch.tensor(numbers, dtype=torch.int32, device=self.device)
        part = Part(count, words(0, count), words(0, self.room), words(count), count)
        rows = torch.arange(count, device=self.device)
        logits = self.logits(tokens, rows, rows, [part], rows[len(prompt) - 1 :])
        given = logits.gather(1, torch.tensor(answer, device=self.device)[:, None])[:, 0]
        return (logits.amax(1) - given).tolist()
