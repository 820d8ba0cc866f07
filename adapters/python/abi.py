"""Writes `qkvault/_abi.py`, the C interface for ctypes, from the header `../c/include/qkvault.h`.

    python3 adapters/python/abi.py           # writes the file
    python3 adapters/python/abi.py --check   # fails if the file is not what it would write

The header is generated as well, so its shape is known: one field and one parameter per comma or semicolon.
"""

import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
HEADER = HERE.parent / "c" / "include" / "qkvault.h"
MODULE = HERE / "qkvault" / "_abi.py"

TYPES = {
    "size_t": "c_size_t", "int32_t": "c_int32", "int64_t": "c_int64", "uint8_t": "c_uint8", "uint32_t": "c_uint32",
    "uint64_t": "c_uint64", "float": "c_float", "double": "c_double", "char": "c_char",
}


def ctype(words, known):
    """The ctypes name of a C type; every handle is an address, and so is text that the library gives away."""
    if words.strip() == "char *":
        return "c_void_p"
    words = words.replace("const", " ").replace("struct", " ").replace("union", " ")
    stars = words.count("*")
    name = words.replace("*", " ").strip()
    if stars and name == "void":
        return "c_void_p" if stars == 1 else "POINTER(c_void_p)"
    if stars and name == "char":
        return "c_char_p" if stars == 1 else "POINTER(c_void_p)"
    if name in TYPES:
        base = TYPES[name]
    elif name in known:
        base = name
    elif stars:
        # A handle.
        base, stars = "c_void_p", stars - 1
    else:
        raise ValueError(f"the header has the type '{words}', which is unknown")
    for _ in range(stars):
        base = f"POINTER({base})"
    return base


def declared(text, known):
    """The name and type of a field or parameter, such as `const int32_t *lengths` or `uint8_t key[32]`."""
    array = re.search(r"\[(\d+)\]$", text)
    text = re.sub(r"\[\d+\]$", "", text)
    words, name = re.fullmatch(r"(.*?[\s*])(\w+)", text).groups()
    kind = ctype(words, known)
    return name, f"{kind} * {array[1]}" if array else kind


def module(header):
    """The text of the module."""
    code = re.sub(r"/\*.*?\*/", "", header, flags=re.S)
    lines = [
        '"""The C interface of libqkvault.so. Written by `python3 adapters/python/abi.py`; edits are lost."""', "",
        "# ruff: noqa: F403, F405", "from ctypes import *", "",
    ]
    for name, value in re.findall(r"^#define (QKV_\w+) (-?\d+)$", code, flags=re.M):
        lines.append(f"{name[4:]} = {value}")
    known = set()
    pattern = r"typedef (struct|union) (\w+) \{(.*?)\} \2;"
    for kind, name, body in re.findall(pattern, code, flags=re.S):
        fields = [declared(" ".join(f.split()), known) for f in body.split(";") if f.strip()]
        lines += ["", "", f"class {name}({'Structure' if kind == 'struct' else 'Union'}):", "    _fields_ = ["]
        lines += [f'        ("{field}", {kind}),' for field, kind in fields]
        lines += ["    ]"]
        known.add(name)
    lines += ["", "", "FUNCTIONS = {"]
    for name, parameters in re.findall(r"^int32_t (qkv_\w+)\((.*?)\);", code, flags=re.S | re.M):
        parts = [] if parameters.strip() == "void" else [" ".join(p.split()) for p in parameters.split(",")]
        kinds = ", ".join(declared(part, known)[1] for part in parts)
        lines.append(f'    "{name}": [{kinds}],')
    lines += ["}", ""]
    return "\n".join(lines)


def main():
    written = module(HEADER.read_text())
    if "--check" in sys.argv[1:]:
        if MODULE.read_text() != written:
            sys.exit(f"{MODULE} does not match the header; run python3 {__file__}")
        return
    MODULE.write_text(written)


if __name__ == "__main__":
    main()
