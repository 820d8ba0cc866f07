"""How the devices of a mesh axis meet as ranks: those of other processes through `jax.distributed`."""

from __future__ import annotations

import hashlib
import socket
import threading
import time
from typing import Any, Optional

import jax

from .._context import Context
from .._errors import ArgumentError, Error
from .._ranks import Communicator, meeting

#: How long ranks wait for each other: those of other processes may still compile their programs.
DEADLINE = 600.0

_Place = tuple[str, int, str]


class Meetings:
    """The communicators of this process, by where a device stands."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.links: dict[tuple, Communicator] = {}
        #: The last place of a meeting of this process, and the ranks that went there.
        self.places: dict[tuple, tuple[_Place, set[int]]] = {}
        #: The last place where a rank met those of other processes.
        self.met: dict[tuple, _Place] = {}

    def link(
        self, context: Context, key: tuple, rank: int, ranks: int, gpu: Optional[int], deadline: float = DEADLINE
    ) -> Communicator:
        """The communicator of a rank: that of its last call, or a new one, as on all ranks. Without GPUs ranks meet for
        each call."""
        where = (*key, rank, gpu, context)
        found = self.links.get(where)
        if found is not None:
            try:
                found.check()
                return found
            except Error:
                del self.links[where]
        alone = jax.process_count() == 1
        place = self._here(key, rank) if alone else self._between(key, rank, ranks, deadline)
        try:
            made = Communicator(context, rank, ranks, place, device=gpu, deadline=deadline, threads=True)
        except Error:
            with self.lock:
                # Who comes after a failed meeting goes to another place.
                if self.places.get(key, (None,))[0] == place:
                    del self.places[key]
            raise
        self.met[(*key, rank)] = place
        if gpu is not None:
            self.links[where] = made
        return made

    def _here(self, key: tuple, rank: int) -> _Place:
        """The place to which the others go, or a new one for a rank that was there already."""
        with self.lock:
            place, gone = self.places.get(key, (None, set()))
            if place is None or rank in gone:
                place, gone = meeting("127.0.0.1"), set()
            self.places[key] = (place, gone | {rank})
            return place

    def _between(self, key: tuple, rank: int, ranks: int, deadline: float) -> _Place:
        """The place that rank 0 tells to the ranks of other processes, through the coordinator of `jax.distributed`."""
        from jax._src.distributed import global_state  # It has no public name.

        store, end = global_state.client, time.monotonic() + deadline
        if store is None:
            raise ArgumentError(
                "ranks of several processes meet through jax.distributed; call jax.distributed.initialize()")
        name = "qkvault/" + hashlib.sha256(repr(key).encode()).hexdigest()

        def heard(of: str) -> str:
            left = max(1, int((end - time.monotonic()) * 1000))
            return store.blocking_key_value_get(f"{name}/{of}", left)

        host = socket.gethostname()
        store.key_value_set(f"{name}/host/{rank}", host, allow_overwrite=True)
        if rank == 0:
            hosts = {heard(f"host/{one}") for one in range(ranks)}
            own = meeting("127.0.0.1" if hosts == {host} else socket.gethostbyname(host))
            store.key_value_set(f"{name}/place", " ".join(map(str, own)), allow_overwrite=True)
            return own
        while True:
            address, port, secret = heard("place").split(" ")
            place = address, int(port), secret
            # Where this rank has met already, nobody meets again.
            if place != self.met.get((*key, rank)) or time.monotonic() > end:
                return place
            time.sleep(0.2)
