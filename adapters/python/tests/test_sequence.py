"""How ranks share a sequence: every row has one rank, and is found again.

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


if __name__ == "__main__":
    unittest.main()
