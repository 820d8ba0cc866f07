"""What tests of errors in both doors share: what no sentence has, and sentences for every code and function."""

import pathlib
import re

from qkvault import Reason, Refused
from qkvault._sentences import SENTENCES

#: Words of the library's descriptions and op graphs, and braces that nothing filled.
_GRAPH = re.compile(
    r"\bmask\.|\bdims\[\d|\bseq_len|\bStats\b|\boutputs?:|\boptions\b|\bstorage\b|\bd_[oqkv]\b|\bd[OQKV]\b|\bop graph|"
    r"\bexpressions?\b|\bpredicates?\b|\boperands?\b|@\w|deterministic: |engine: auto|lengths: |\bextents?\b|\bpass\b|"
    r"\bbottom-right\b|\bband\b|per-sequence|\bPhilox\b|\[(rule|quirk|description|not built|library) |; needed: |fix: |"
    r"\b[QKV]\b|[{}]"
)
#: Arguments of any function of the doors.
_ARGUMENTS = re.compile(
    r"(?<![\w.])(q|k|v|query|key|value|scale|softmax_scale|is_causal|causal|window|window_size|local_window_size|"
    r"softcap|sinks|alibi_slopes|bias|attn_mask|mask|score_mod|mask_mod|block_mask|dropout_p|dropout_rate|"
    r"deterministic|copy|q_lengths|kv_lengths|query_seq_lengths|key_value_seq_lengths|cu_seqlens_q|cu_seqlens_k|"
    r"max_seqlen_q|page_table|block_table|query_origin|key_origin|bottom_right|k_pages|k_cache|cache_seqlens)\b(?!\()"
)
#: Plain words that are arguments of some function too.
_PLAIN = re.compile(
    r"\b(a|the|no|each|one|per|every|some|other|last|that) (key|query|value|mask|scale|copy|window)\b|a mask has|"
    r"\bmasks? (that|ends)|\bkey too\b|\bhead, query, (key\))?|\ba copy\b|, query, head dim|\bkey and value\b|"
    r"truth values?"
)


def codes():
    """Every code of the library, from the page that is written from its registry."""
    page = pathlib.Path(__file__).resolve().parents[3] / "docs" / "reasons.md"
    return re.findall(r"^### `(.*)`$", page.read_text(), re.M)


def wrong(words, text):
    """What a text has that is neither plain nor an argument of its function."""
    text = re.sub(r"^ *\[[\w.-]+\]", "", text, flags=re.M)  # Codes.
    found = [match[0] for match in _GRAPH.finditer(text)]
    # What is said of other functions.
    other = r"[\w ]+ of qkvault\.\w+\.\w+|(qkvault|jax|jnp|torch)\.[\w.]+(\(\.{3}[^)]*\))?"
    plain = _PLAIN.sub("", re.sub(other, "", text))
    own = " ".join(words.given.values())
    names = set(_ARGUMENTS.findall(plain)) - words.parameters
    return [*found, *(name for name in sorted(names) if not re.search(rf"\b{name}\b", own))]


def answered(explain, met):
    """The reasons of a call, and what is said of it; the line of each code is noted."""
    try:
        said = explain()
        reasons, text = () if said else said.reasons, str(said)
    except Refused as error:
        reasons, text = error.reasons, str(error)
    for reason in reasons:
        told = next(line for line in text.splitlines() if f"[{reason.code}] " in line)
        met[reason.code] = told.strip()
    return reasons, text


_NEEDED = {"dtype.mixed": "the element type of Q, which is f16", "target.unknown": "one of a100, h200"}


def samples():
    """A reason for each code with a sentence, as the library writes them."""
    given = "numbers 12 and 34 and 5, a tensor of extents [2, 1, 1, 1] in bf16, for 7 queries and 8 keys"
    for code in SENTENCES:
        for field in ("q.dims[3], v.dims[3]", "k.storage", "d_k.strides", "mask.mask_mod: tensor t", "o.strides", None):
            needed = _NEEDED.get(code, "k and q must have the same head dim: q has 64")
            reason = Reason(code, "rule", field, given, needed, "a fix")
            yield reason if code != "library.*" else Reason("library.not-supported", "library", field, given, "", "")
