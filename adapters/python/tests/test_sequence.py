"""How ranks share a sequence, by its definition: every key that a query sees is where its attention looks for it.

    python3 -m unittest adapters/python/tests/test_sequence.py    # needs QKVAULT_LIBRARY or the wheel, no framework
"""

import itertools
import unittest

from qkvault import _sequence as sequence

ORDERS = ("zigzag", "contiguous")


class Sequence(unittest.TestCase):
    def test_every_row_has_one_rank_and_is_found_again(self):
        for ranks, order in itertools.product(range(1, 6), ORDERS):
            given = sequence.dealt(ranks, order)
            self.assertEqual(sorted(given), list(range(len(given))))
            self.assertEqual([given[at] for at in sequence.places(ranks, order)], sorted(given))
        self.assertEqual(sequence.dealt(2, "zigzag"), [0, 3, 1, 2])

    def test_bands_are_read_as_both_frameworks_write_them(self):
        for text, around in (
            ("none", (None, None)), ("causal", (None, 0)), ("causal window 9", (8, 0)), ("band left 9 right 0", (8, 0)),
            ("band left 7 right 3", (6, 3)), ("band left 7", (6, None)), ("band right 3", (None, 3)),
        ):
            self.assertEqual(sequence.sides(text), around, text)

    def test_keys_of_a_chunk_hold_what_it_sees_and_few_lengths_serve_all(self):
        for ranks, left, right, prefixes in itertools.product(
                (1, 2, 3, 4, 8), (None, 0, 3, 50), (None, 0, 2), (1, 2, 4, 100)):
            count, size = 2 * ranks, 6
            keys, lengths = count * size, set()
            for chunk in range(count):
                first = chunk * size
                given = sequence.seen((left, right), size, keys, [chunk], prefixes)
                start = given.start(first)
                self.assertLessEqual(0, start)
                self.assertLessEqual(start + given.count, keys)
                self.assertLessEqual(start, max(0, first - (keys if left is None else left)))
                end = keys if right is None else min(keys, first + size + right)
                self.assertGreaterEqual(start + given.count, end)
                lengths.add(given.count)
            self.assertLessEqual(len(lengths), max(1, prefixes), (ranks, left, right, prefixes))
        # A causal mask over four parts: no more than what is seen, and all of it.
        counts = [sequence.seen((None, 0), 4, 32, [chunk], 4).count for chunk in range(8)]
        self.assertEqual(counts, [8, 8, 16, 16, 24, 24, 32, 32])
        self.assertEqual(sequence.seen((None, 0), 4, 32, [0, 1, 2, 3], 4).count, 16)

    def test_a_halo_is_what_windows_see_and_no_more(self):
        used = 0
        for ranks, order, left, right in itertools.product((1, 2, 3, 4, 8), ORDERS, range(0, 14, 3), range(0, 9, 4)):
            size = 5
            pieces = sequence.halo((left, right), size, ranks, order)
            if pieces is None:
                continue
            used += 1
            keys = size * sequence.parts_of(order) * ranks
            given = sequence.seen((left, right), size, keys, [0], 1)
            rows: dict = {}
            for piece in pieces:
                begin = sequence.chunks_of(piece.source, ranks, order)[piece.slot] * size
                for row in range(piece.begin, piece.end):
                    place = (piece.to, piece.launch, piece.at + row - piece.begin)
                    self.assertNotIn(place, rows)
                    rows[place] = begin + row
            wanted = {}
            for rank in range(ranks):
                for launch, chunk in enumerate(sequence.chunks_of(rank, ranks, order)):
                    first, start = chunk * size, given.start(chunk * size)
                    for key in range(max(0, first - left), min(keys, first + size + right)):
                        self.assertLess(key - start, given.count)
                        wanted[rank, launch, key - start] = key
            self.assertEqual(rows, wanted)
        self.assertGreater(used, 40)

    def test_rows_that_move_are_counted_and_all_keys_are_gathered_where_that_is_less(self):
        # Three of four ranks need two rows of the chunk before theirs.
        self.assertEqual(sequence.moved(sequence.halo((2, 0), 8, 4, "contiguous")), 3 * 2)
        # Of eight chunks in zig-zag, the fifth lies with the fourth.
        self.assertEqual(sequence.moved(sequence.halo((2, 0), 4, 4, "zigzag")), 6 * 2)
        self.assertIsNone(sequence.halo((100, 0), 8, 2, "zigzag"))
        self.assertIsNone(sequence.halo((2, None), 8, 2, "contiguous"))
        self.assertIsNone(sequence.halo((0, 0), 8, 1, "contiguous"))


if __name__ == "__main__":
    unittest.main()
