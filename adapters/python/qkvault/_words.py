"""Errors in the words of the function that was called: its arguments, what came, what is needed, what to write.

The library's reasons name parts of a description, which users of PyTorch's and JAX's doors never see. A `Words`
writes the sentence that `_sentences.py` has for a reason's code. Errors that the doors raise themselves name arguments
of their function `attention`; for another function they are named anew.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import re
import threading
from fnmatch import fnmatchcase
from typing import Any, Callable, Iterator, Optional, TypeVar, cast

from ._attention import Explanation
from ._errors import ArgumentError, Error, Reason, Refused
from ._sentences import NEAREST, SENTENCES, UNMET

F = TypeVar("F", bound=Callable[..., Any])

#: What functions may call an argument. The first that a function has is its name there.
_NAMES: dict[str, tuple[str, ...]] = {
    "q": ("q", "query"), "k": ("k_cache", "k_pages", "k", "key"), "v": ("v_cache", "v_pages", "v", "value"),
    "scale": ("scale", "softmax_scale"), "causal": ("is_causal", "causal"),
    "window": ("window", "window_size", "local_window_size"), "softcap": ("softcap",),
    "sinks": ("sinks",), "alibi_slopes": ("alibi_slopes",), "bias": ("bias", "attn_mask"),
    "mask": ("attn_mask", "mask"), "score_mod": ("score_mod",), "mask_mod": ("mask_mod", "block_mask"),
    "dropout": ("dropout_p", "dropout_rate"), "deterministic": ("deterministic",), "invariant": ("invariant",),
    "draft_tree": ("draft_tree",),
    "q_lengths": ("q_lengths", "query_seq_lengths", "cu_seqlens_q"),
    "kv_lengths": ("kv_lengths", "key_value_seq_lengths", "cu_seqlens_k", "cache_seqlens"),
    "pages": ("page_table", "block_table"), "most": ("max_seqlen_q",), "gpu": ("gpu", "target"),
}  # fmt: skip

#: Where the door has an argument that `attention` has not.
_HOMES = {"pages": "paged_attention", "most": "varlen_attention", "draft_tree": "paged_attention"}
_TYPES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "i32": "int32", "i64": "int64", "u8": "uint8"}
_AXES = ("batch", "number of heads", "sequence", "head dim")
#: Words of descriptions in what came, and what is said in their place.
_PLAIN = (
    (r", which an expression reads|, in a deterministic backward", ""), (r"\bextents\b", "shape"),
    (r"\bfloat\b", "number"), (r"\bbool\b", "truth value"),
)  # fmt: skip


class _Here(threading.local):
    words: Optional["Words"] = None


def unmet(code: str) -> Optional[str]:
    """Why no call of a door meets a code; None if one can, or if nothing is known of it."""
    return None if sentence(code) else _of(UNMET, code)


def sentence(code: str) -> Optional[str]:
    """What a reason is, with braces."""
    return _of(SENTENCES, code)


def _of(table: dict[str, str], code: str) -> Optional[str]:
    found = table.get(code)
    return found or next((text for pattern, text in table.items() if fnmatchcase(code, pattern)), None)


class Door:
    """A module with functions, what it says in some places, and the function that runs on this thread."""

    def __init__(self, module: str, phrases: dict[str, str], skip: Callable[[], bool] = lambda: False):
        self.module, self.phrases, self.skip = module, phrases, skip
        self.here = _Here()
        self.base: "Words"

    def worded(self, like: Optional[Callable] = None, **given: str) -> Callable[[F], F]:
        """Lets errors of a function name its arguments, if no function of the door has called it: those of `like`, if
        it takes that function's, and `given` ones that no signature tells."""

        def wrap(function: F) -> F:
            own, here, skip = Words(self, like or function, given), self.here, self.skip

            @functools.wraps(function)
            def call(*args: Any, **kwargs: Any) -> Any:
                if skip() or here.words is not None:
                    return function(*args, **kwargs)
                here.words = own
                try:
                    with own.speaking():
                        return own.reworded(function(*args, **kwargs))
                finally:
                    here.words = None

            call.words = own  # type: ignore[attr-defined]
            return cast(F, call)

        return wrap

    @property
    def current(self) -> "Words":
        """The function that runs on this thread, else `attention`."""
        return self.here.words or self.base


class Words:
    """The words of a function of a door."""

    def __init__(self, door: Door, function: Callable, given: Optional[dict[str, str]] = None):
        self.door, self.given = door, given or {}
        self.parameters = frozenset(inspect.signature(function).parameters)

    def name(self, thing: str) -> str:
        """The argument that a thing is, or one of another function where this one has none."""
        if thing in self.given:
            return self.given[thing]
        for name in _NAMES[thing]:
            if name in self.parameters:
                return name
        base = next((name for name in _NAMES[thing] if name in self.door.base.parameters), _NAMES[thing][0])
        return f"{base} of {self.door.module}.{_HOMES.get(thing, 'attention')}"

    @contextlib.contextmanager
    def speaking(self) -> Iterator[None]:
        """Inside, errors have the words of this function."""
        try:
            yield
        except Error as error:
            self.reword(error)
            raise

    def reword(self, error: Error) -> None:
        """Writes the text of an error anew, in place."""
        if isinstance(error, Refused) and error.reasons:
            error.args = ("\n".join(dict.fromkeys(self.told(reason) for reason in error.reasons)),)
        elif isinstance(error, ArgumentError) and not error.own and error.args:
            error.args = (self.renamed(str(error.args[0])),)

    def reworded(self, found: Any) -> Any:
        """What a function gives; of an explanation, the text in its words."""
        if not isinstance(found, Explanation) or found.supported:
            return found
        lines = [line for line in found.text.splitlines() if not line.startswith("  [")]
        fill = _Fill(self, Reason(""))
        for at, line in enumerate(lines):
            for words, plain in NEAREST.items() if line.startswith("  nearest") else ():
                line = line.replace(words, fill.filled(plain))
            lines[at] = line
        told = dict.fromkeys(f"  {self.told(reason)}" for reason in found.reasons)
        return dataclasses.replace(found, text="\n".join([*lines[:1], *told, *lines[1:]]))

    def renamed(self, text: str) -> str:
        """A text about arguments of `attention`, about those of this function."""
        base = self.door.base
        if self is base:
            return text
        names = {base.name(thing): self.name(thing) for thing in _NAMES if self._has(thing) and base._has(thing)}
        text = re.sub(r"(?<![\w.'\"])attention\(", f"{self.door.module}.attention(", text)
        return re.sub(r"(?<![\w.])[a-z]\w*(?![\w(])", lambda word: names.get(word[0], word[0]), text)

    def _has(self, thing: str) -> bool:
        return thing in self.given or any(name in self.parameters for name in _NAMES[thing])

    def told(self, reason: Reason) -> str:
        """A reason as a line: its code, and the sentence that the code has. What is unknown is told as it came."""
        text = sentence(reason.code)
        if text is None:
            parts = (reason.field and f"{reason.field}: {reason.given}", reason.needed and f"needed: {reason.needed}")
            return f"[{reason.code}] {'; '.join(part for part in (*parts, reason.fix) if part)}"
        return f"[{reason.code}] {_Fill(self, reason).filled(text)}"


class _Fill:
    """What stands in the place of braces for one reason."""

    def __init__(self, function: Words, reason: Reason):
        self.function, self.reason = function, reason
        self.given, self.needed = reason.given or "", reason.needed or ""
        self.numbers, self.wanted = (re.findall(r"-?\d+(?:\.\d+)*", text) for text in (self.given, self.needed))

    def filled(self, text: str) -> str:
        return re.sub(r"{([^{}]+)}", lambda tag: self(tag[1]), text)

    def __call__(self, tag: str) -> str:
        place = re.fullmatch(r"(n?)(\d+)(-1)?", tag)
        if place:
            numbers = self.wanted if place[1] else self.numbers
            found = numbers[int(place[2])] if int(place[2]) < len(numbers) else "other"
            return str(int(found) - 1) if place[3] and found.isdigit() else found
        if tag in _NAMES:
            return self.function.name(tag)
        own = getattr(self, f"_{tag}", None)
        text = self.function.door.phrases[tag] if own is None else own()
        return self.filled(text)

    def _who(self) -> str:
        field, of = (self.reason.field or "").split(",")[0].split(".")[0], re.search(r"\bof (\w+) is\b", self.given)
        part = (field if of is None else of[1]).lower().replace("dq", "d_q").replace("dk", "d_k").replace("dv", "d_v")
        if part in ("o", "d_o", "do"):
            return "the result" if part == "o" else "the gradient of the result"
        name = part.removeprefix("d_")
        if name not in ("q", "k", "v"):
            return f"{self.function.name('q')}, {self.function.name('k')} or {self.function.name('v')}"
        return self.function.name(name) if name == part else f"the gradient of {self.function.name(name)}"

    def _other(self) -> str:
        other = re.search(r" and (\w+) must", self.needed)
        return self.function.name(other[1]) if other and other[1] in ("q", "k", "v") else "the result"

    def _axis(self) -> str:
        at = re.search(r"dims\[(\d)\]", self.reason.field or "")
        return _AXES[int(at[1])] if at else "size"

    def _what(self) -> str:
        return self.function.name("mask_mod" if "mask_mod" in (self.reason.field or "") else "score_mod")

    def _given(self) -> str:
        text = self.given
        for word, plain in _PLAIN:
            text = re.sub(word, plain, text)
        return text

    def _needed(self) -> str:
        return self.needed

    def _list(self) -> str:
        found = re.search(r"\[[^\]]*\]", self.given)
        return found[0] if found else self.given

    def _numbers(self) -> str:
        return " and ".join(self.numbers[:2])

    def _type(self) -> str:
        return self._of_type(self.given)

    def _wanted_type(self) -> str:
        return self._of_type(self.needed)

    @staticmethod
    def _of_type(text: str) -> str:
        return next((_TYPES[word] for word in re.findall(r"\w+", text) if word in _TYPES), text)

    def _table(self) -> str:
        function = self.function
        reads = f" or {function.door.phrases['tensor']} that score_mod reads" if function._has("score_mod") else ""
        return f"{function.name('bias')}{reads}" if function._has("bias") or not reads else reads.removeprefix(" or ")

    def _reads(self) -> str:
        """What a function has for expressions."""
        things = ("softcap", "alibi_slopes", "bias", "mask", "score_mod", "mask_mod")
        names = dict.fromkeys(self.function.name(thing) for thing in things if self.function._has(thing))
        *most, last = names or [self.function.name("score_mod")]
        return f"{', '.join(most)} or {last}" if most else last

    def _bottom_right(self) -> str:
        asked = " (bottom_right=True)" if "bottom_right" in self.function.parameters else ""
        return f"at the bottom right{asked}"

    def _copy(self) -> str:
        asked = "give copy=True, or " if "copy" in self.function.parameters else "give "
        return asked + self.function.door.phrases["copy"]

    def _origins(self) -> str:
        own = "query_origin" in self.function.parameters
        return "query_origin and key_origin" + ("" if own else f" of {self.function.door.module}.attention")

    def _attention(self) -> str:
        return f"{self.function.door.module}.attention"
