"""One process of several whose devices are the ranks of one attention; `test_jax_parallel.py` starts them.

    python3 jax_ranks.py PORT PROCESSES PROCESS [--end]   # with --end, the last process ends before its second step
"""

import os
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

import qkvault.jax as qj

P = jax.sharding.PartitionSpec


def main(port, processes, process, end):
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", processes, process)
    ranks = len(jax.devices())
    mesh, part = jax.sharding.Mesh(np.array(jax.devices()), ("seq",)), P(None, "seq")
    draw = np.random.default_rng(7)
    whole = [draw.standard_normal((1, 64, 4, 16)).astype(jnp.bfloat16) for _ in range(4)]
    lies = jax.sharding.NamedSharding(mesh, part)

    def dealt(x):
        x = np.asarray(qj.zigzag(x, ranks))
        return jax.make_array_from_callback(x.shape, lies, lambda at: x[at])

    def local(q, k, v):
        return qj.context_parallel_attention(q, k, v, axis_name="seq", is_causal=True, window=40)

    def step(run, q, k, v, d_o):
        o, pull = jax.vjp(run, q, k, v)
        return o, *pull(d_o)

    shared = jax.jit(
        lambda *a: step(jax.shard_map(local, mesh=mesh, in_specs=(part,) * 3, out_specs=part), *a), out_shardings=lies)
    one = step(lambda q, k, v: qj.attention(q, k, v, is_causal=True, window=40), *whole)
    exact = [qj.zigzag(x, ranks) for x in one]
    for number in range(2):
        if end and number and process == processes - 1:
            os._exit(0)
        if end and number:
            time.sleep(1)  # It is gone by now.
        try:
            got = jax.block_until_ready(shared(*map(dealt, whole)))
        except Exception as error:
            print(f"told: {error}", flush=True)
            os._exit(0)
        for a, b in zip(got, exact):
            for piece in a.addressable_shards:
                mine, other = np.asarray(piece.data, np.float32), np.asarray(b, np.float32)[piece.index]
                assert np.abs(mine - other).max() < 3e-2, np.abs(mine - other).max()
    if not end:
        multihost_utils.sync_global_devices("end")  # The store of all ranks ends with the first process.
    print("right", flush=True)
    os._exit(0)  # A service of JAX waits for processes that are gone.


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), "--end" in sys.argv)
