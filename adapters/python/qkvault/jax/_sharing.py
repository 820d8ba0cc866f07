"""How the ranks of a mesh axis share an attention: the parts of arrays that each one has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from .._errors import ArgumentError
from .._sequence import chunks_of, parts_of

#: Operands of which a rank has some rows.
_BY_ROWS = ("q", "k", "v", "o", "stats", "d_o", "d_q", "d_k", "d_v")
#: Operands that every rank has whole: numbers by head.
_WHOLE = ("sink", "d_sink")


@dataclass(frozen=True)
class Sharing:
    """An attention over `ranks` times the rows that a device has."""

    #: The name of the mesh axis, or a tuple of several.
    axis: Any
    ranks: int
    strategy: str
    order: str

    @property
    def words(self) -> str:
        """The sharding as an attribute of calls."""
        return f"{self.strategy} {self.order} {self.ranks}"

    def part(self, role: str, dims: tuple) -> tuple:
        """The extents of a rank's part of an operand of the whole attention; of another role, of a tensor over (batch,
        head, query, key)."""
        if role in _WHOLE:
            return dims
        axis = 2 if role in _BY_ROWS or self.strategy != "heads" else 1
        return dims if dims[axis] == 1 else (*dims[:axis], dims[axis] // self.ranks, *dims[axis + 1:])

    def indices(self, heads: int, rows: int, rank: Any) -> dict[str, Any]:
        """Which heads or rows of the whole the tensors of a rank are over, by axis."""
        if self.strategy == "heads":
            return {"h": rank * (heads // self.ranks) + jnp.arange(heads // self.ranks, dtype=jnp.int32)}
        return {"q": positions(rank, self.ranks, self.order, rows)}


def positions(rank: Any, ranks: int, order: str, rows: int) -> Any:
    """The positions of a rank's rows, of so many of all ranks."""
    size = rows // (ranks * parts_of(order))
    own = chunks_of(rank, ranks, order)
    return jnp.concatenate([chunk * size + jnp.arange(size, dtype=jnp.int32) for chunk in own])


def place_of(axis_name: Any) -> Any:
    """What a device tells its call: its rank on the axis, and which of the ranks' groups on the mesh it is in."""
    mesh = jax.sharding.get_abstract_mesh()
    own = axis_name if isinstance(axis_name, (tuple, list)) else (axis_name,)
    manual = set(getattr(mesh, "manual_axes", ()))
    if not manual.issuperset(own):
        raise ArgumentError(
            f"axis_name is {axis_name!r}, whose parts are on no devices of their own; call it inside of jax.shard_map "
            "over a mesh with that axis"
        )
    others = [name for name in mesh.axis_names if name not in own and mesh.shape[name] > 1]
    for name in others:
        if name not in manual:
            raise ArgumentError(
                f"the mesh axis {name!r} is no manual one here, and each device is one rank; call jax.shard_map over "
                "all axes of the mesh, without axis_names"
            )
    group = jax.lax.axis_index(tuple(others)) if others else jnp.int32(0)
    return jnp.stack([jax.lax.axis_index(axis_name), group]).astype(jnp.int32)
