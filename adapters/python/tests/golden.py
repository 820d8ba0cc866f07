"""Files of expected output, in `crates/models/tests/recorded`, where a Rust test reads them.

`UPDATE_GOLDENS=1` writes them anew.
"""

import difflib
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.join(HERE, "..", "..", "..", "crates", "models", "tests", "recorded")
sys.path.insert(0, os.path.join(HERE, ".."))


def _rounded(text):
    """The text with six digits of each number: libraries of mathematics differ in the last ones."""
    return re.sub(r"-?\d+\.\d+(e-?\d+)?", lambda number: f"{float(number[0]):.6g}", text)


def check(name, text):
    """Compares a text with the file of this name."""
    path = os.path.join(FOLDER, name)
    if os.environ.get("UPDATE_GOLDENS"):
        os.makedirs(FOLDER, exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return
    with open(path, encoding="utf-8") as file:
        wanted = file.read()
    if _rounded(text) != _rounded(wanted):
        lines = difflib.unified_diff(wanted.splitlines(), text.splitlines(), name, "now", lineterm="", n=0)
        raise AssertionError("\n".join(list(lines)[:60]))
