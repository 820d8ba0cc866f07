#!/usr/bin/env python3
"""A peer of dev/server in PyTorch: `load bench --peer server_peer.py` starts it.

    python3 server_peer.py TASK SAID

The same users with the same prompts and lengths, the same model and weights (server_peer_model.py), the same limits and
the same order: each step has every decode, then chunks of prompts. What differs is in its favour: requests come without
HTTP, and a sequence has contiguous rows instead of pages. Steps are CUDA graphs where chunks have few rows, and larger
ones run kernel by kernel, while the GPU has much to do. TASK has sizes, weights and answers to score; SAID gets rows,
scores and some answers.
"""
import json, sys, time
from collections import deque

import numpy as np
import torch

from server_peer_model import Model, Part

# Rows that steps are padded to: decodes, and rows of chunks that are captured. Sequences with chunks in a step at most.
DECODES = (0, 1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256)
CHUNKS = (0, 64, 128, 256, 384, 512, 768, 1024)
CHUNKED = 32
KEPT = 50


def next_hash(x):
    """The hash of weights.rs, over numpy's uint32."""
    x = x ^ (x >> np.uint32(16))
    x = x * np.uint32(0x7FEB352D)
    x = x ^ (x >> np.uint32(15))
    x = x * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


class Users:
    """Requests of users, as users.rs draws them: made before the measurement, because Python takes long for it."""

    def __init__(self, count, task):
        self.task, self.at = task, [0] * count
        state = next_hash(np.uint32(task["seed"] + count) ^ next_hash(np.arange(1, count + 1, dtype=np.uint32)))
        drawn = np.empty((int(6000 + 8000 * task["seconds"]), count), dtype=np.uint32)
        for line in drawn:
            state = next_hash(state + np.uint32(0x9E3779B9))
            line[:] = state
        self.drawn = np.ascontiguousarray(drawn.T)

    def ask(self, user):
        """The next prompt of a user, and the tokens of its answer; None when no more are drawn."""
        drawn, at = self.drawn[user], self.at[user]
        within = lambda number, pair: pair[0] + int(number) % (pair[1] - pair[0] + 1)
        if at + 2 + self.task["prompt"][1] > len(drawn):
            return None
        length = within(drawn[at], self.task["prompt"])
        prompt = (drawn[at + 1 : at + 1 + length] % self.task["shape"]["vocab"]).astype(np.int32)
        self.at[user] = at + length + 2
        return prompt, within(drawn[at + 1 + length], self.task["answer"])


class Step:
    """A step of some padded sizes: its inputs come by one copy, and its tokens go by one."""

    def __init__(self, model, decodes, chunk, picks):
        self.model, self.decodes, self.chunk, self.picks, self.graph = model, decodes, chunk, picks, None
        rows = decodes + chunk
        self.sizes = [rows, rows, rows, picks, decodes + 1, decodes, CHUNKED + 1, CHUNKED + 1, CHUNKED]
        words = torch.zeros(sum(self.sizes), dtype=torch.int32)
        self.host = words.pin_memory() if model.gpu else words
        self.words = words.to(model.device)
        self.host_parts = [part.numpy() for part in self.host.split(self.sizes)]
        out = torch.zeros(picks, dtype=torch.int64)
        self.host_out = out.pin_memory() if model.gpu else out
        self.cum = torch.arange(decodes + 1, dtype=torch.int32, device=model.device)

    def compute(self):
        tokens, positions, write, picks, start, keys, cum, chunk_start, chunk_keys = self.words.split(self.sizes)
        parts = []
        if self.decodes:
            parts.append(Part(self.decodes, self.cum, start, keys, 1))
        if self.chunk:
            longest = min(self.chunk, self.model.longest)
            parts.append(Part(self.chunk, cum, chunk_start, chunk_keys, longest))
        logits = self.model.logits(tokens.long(), positions.long(), write.long(), parts, picks.long())
        return logits.argmax(1)

    def capture(self):
        self.fill_empty()
        self.words.copy_(self.host)
        self.compute()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=self.model.pool):
            self.out = self.compute()
        self.model.pool = self.graph.pool()

    def fill_empty(self):
        """Rows of token 0 in the spare slot, and chunks without rows."""
        spare = len(self.model.caches[0][0]) - self.model.room
        for part, number in zip(self.host_parts, (0, 0, spare, 0, spare, 1, 0, 0, 0)):
            part[:] = number

    def run(self):
        self.words.copy_(self.host, non_blocking=True)
        if self.graph:
            self.graph.replay()
        else:
            self.out = self.compute()
        self.host_out.copy_(self.out, non_blocking=True)
        if self.model.gpu:
            torch.cuda.synchronize()
        return self.host_out.numpy()


class Server:
    def __init__(self, model, task):
        self.model, self.limits, self.steps = model, task["limits"], {}
        model.longest, model.pool = self.limits["chunk"], None
        self.decodes = [n for n in DECODES if n < self.limits["batch"]] + [self.limits["batch"]]
        if model.gpu:
            for chunk in CHUNKS:
                for decodes in self.decodes:
                    if 0 < decodes + chunk <= self.limits["tokens"]:
                        self.step(decodes, chunk).capture()

    def step(self, decodes, chunk):
        if (decodes, chunk) not in self.steps:
            picks = decodes + (CHUNKED if chunk else 0)
            self.steps[decodes, chunk] = Step(self.model, decodes, chunk, picks)
        return self.steps[decodes, chunk]

    def serve(self, users, seconds):
        """Users for a third of the time and then the whole, of which the second is measured."""
        room, limits, count = self.model.room, self.limits, len(users.at)
        slots = min(limits["batch"], count)
        texts = np.zeros((slots, room), dtype=np.int32)
        known, written, prompt, end = (np.zeros(slots, dtype=np.int64) for _ in range(4))
        owner, asked_at, order = [0] * slots, [0.0] * slots, np.zeros(slots, dtype=np.int64)
        free, waiting, arrivals = list(range(slots)), deque(), 0
        tokens, first_ms, answers, steps, graphs = 0, [], [], 0, 0
        begun = time.perf_counter()
        begin, stop = begun + seconds / 3, begun + seconds / 3 + seconds
        for user in range(count):
            waiting.append((user, users.ask(user), begun))
        while (now := time.perf_counter()) < stop:
            while free and waiting:
                user, request, asked = waiting.popleft()
                if request is None:
                    raise SystemExit("peer: too few requests were drawn")
                slot, (text, more) = free.pop(), request
                texts[slot, : len(text)] = text
                known[slot] = prompt[slot] = len(text)
                written[slot], end[slot], owner[slot], asked_at[slot] = 0, len(text) + more, user, asked
                order[slot], arrivals = arrivals, arrivals + 1
            left = known - written
            decodes = np.flatnonzero(left == 1)
            decodes = decodes[np.argsort(order[decodes])]
            chunks, spare = [], limits["tokens"] - len(decodes)
            for slot in sorted(np.flatnonzero(left > 1), key=lambda slot: order[slot]):
                rows = int(min(left[slot], limits["chunk"], spare))
                if rows == 0 or len(chunks) == CHUNKED:
                    break
                chunks.append((slot, rows))
                spare -= rows
            picked, graph = self.compute(texts, known, written, decodes, chunks)
            steps, graphs = steps + 1, graphs + graph
            written[decodes] += 1
            for slot, rows in chunks:
                written[slot] += rows
            done = [slot for slot, _ in chunks if written[slot] == known[slot]]
            told = np.concatenate((decodes, np.array(done, dtype=np.int64)))
            texts[told, known[told]] = picked
            firsts = told[known[told] == prompt[told]]
            known[told] += 1
            now = time.perf_counter()
            if begin <= now < stop:
                tokens += len(told)
            first_ms += [1e3 * (now - asked_at[slot]) for slot in firsts if begin <= asked_at[slot] < stop]
            for slot in told[known[told] == end[told]]:
                answers.append((texts[slot, : prompt[slot]].tolist(), texts[slot, prompt[slot] : end[slot]].tolist()))
                known[slot] = written[slot] = 0
                free.append(int(slot))
                waiting.append((owner[slot], users.ask(owner[slot]), now))
        first_ms.sort()
        at = lambda share: round(first_ms[min(int(len(first_ms) * share), len(first_ms) - 1)], 2) if first_ms else None
        row = {
            "server": "PyTorch", "users": count, "tokens_per_s": round(tokens / seconds),
            "first_token_ms": {"median": at(0.5), "p99": at(0.99)}, "requests": len(first_ms), "steps": steps,
            "replays": graphs, "ms_of_a_step": round(1e3 * (now - begun) / max(steps, 1), 2),
        }
        return row, answers

    def compute(self, texts, known, written, decodes, chunks):
        """The next tokens of decodes, then of the chunks that end their prompt."""
        room, rows = self.model.room, sum(rows for _, rows in chunks)
        padded = next(n for n in self.decodes if n >= len(decodes))
        sizes = [n for n in CHUNKS if n >= rows]
        step = self.step(padded, sizes[0] if sizes else -(-rows // 128) * 128)
        step.fill_empty()
        tokens, positions, write, picks, start, keys, cum, chunk_start, chunk_keys = step.host_parts
        n, at = len(decodes), written[decodes]
        tokens[:n], positions[:n], write[:n] = texts[decodes, at], at, decodes * room + at
        picks[:n], start[:n], keys[:n] = np.arange(n), decodes * room, at + 1
        row, ends = padded, 0
        for place, (slot, count) in enumerate(chunks):
            at, span = int(written[slot]), slice(row, row + count)
            tokens[span], positions[span] = texts[slot, at : at + count], np.arange(at, at + count)
            write[span] = slot * room + np.arange(at, at + count)
            cum[place + 1 :], chunk_start[place], chunk_keys[place] = row + count - padded, slot * room, at + count
            row += count
            if at + count == known[slot]:
                picks[padded + ends] = row - 1
                ends += 1
        picked = step.run()
        return np.concatenate((picked[:n], picked[padded : padded + ends])), step.graph is not None


def main():
    task = json.load(open(sys.argv[1]))
    begun = time.perf_counter()
    with torch.inference_mode():
        room = -(-(task["prompt"][1] + task["answer"][1]) // 64) * 64
        model = Model(task, task["limits"]["batch"], room)
        server = Server(model, task)
        ready = round(time.perf_counter() - begun, 1)
        rows, kept = [], []
        for users in task["users"]:
            row, answers = server.serve(Users(users, task), task["seconds"])
            print(json.dumps(row), flush=True)
            rows.append(row)
            kept += answers[:: max(len(answers) // KEPT, 1)][:KEPT]
        gaps = [model.gaps(each["prompt"], each["answer"]) for each in task["score"]]
    about = {
        "library": f"PyTorch {torch.__version__}", "attention": "its FlashAttention-2, contiguous rows, no pages",
        "fused_by_torch_compile": model.fused, "graphs": sum(step.graph is not None for step in server.steps.values()),
        "ready_after_s": ready,
    }
    with open(sys.argv[2], "w") as file:
        json.dump({"rows": rows, "about": about, "answers": kept, "gaps": gaps}, file)


if __name__ == "__main__":
    main()
