"""Builds the wheel of the Python package from a built library. `cargo xtask wheel` builds both.

    python3 adapters/python/wheel.py --library target/release/libqkvault.so --version 0.1.0 --out dist

The wheel holds no CPython extension, so one file serves every Python 3.9 or newer. Its platform tag follows from the
newest symbol of glibc that the library needs. Equal inputs give equal bytes.
"""

import argparse
import base64
import hashlib
import pathlib
import re
import sys
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent

SUMMARY = "Attention, compiled ahead of time: cuDNN, FlashAttention-4, own kernels"

# Versions of glibc that auditwheel has a policy for, without those before 2.17; from 2.34 on it has one for each.
POLICIES = (17, 24, 26, 27, 28, 31, 34)


def platform_tag(library):
    """The tag of the oldest policy that allows every symbol of glibc which the library needs."""
    minor = max((int(n) for n in re.findall(rb"GLIBC_2\.(\d+)", library)), default=17)
    return f"manylinux_2_{next((one for one in POLICIES if one >= minor), minor)}_x86_64"


def files(library):
    """What the wheel contains: path and bytes, in order."""
    package = HERE / "qkvault"
    listed = {f"qkvault/{p.relative_to(package)}": p.read_bytes() for p in package.rglob("*") if wanted(p)}
    recorder = HERE / "qkvault_record.py"
    if recorder.exists():
        listed[recorder.name] = recorder.read_bytes()
    listed["qkvault/libqkvault.so"] = library
    return dict(sorted(listed.items()))


def wanted(path):
    return path.is_file() and path.suffix in (".py", ".pyi", ".typed") or path.name == "py.typed"


def metadata(version, repository):
    """The core metadata."""
    readme = (HERE / "README.md").read_text()
    urls = [f"Project-URL: Repository, {repository}"] if repository else []
    return "\n".join([
        "Metadata-Version: 2.3", "Name: qkvault", f"Version: {version}", f"Summary: {SUMMARY}",
        "License-Expression: MIT OR Apache-2.0", *urls, "Requires-Python: >=3.9", "Provides-Extra: torch",
        "Requires-Dist: torch>=2.10; extra == 'torch'", "Provides-Extra: jax", "Requires-Dist: jax>=0.6; extra == 'jax'",
        "Provides-Extra: oracle", "Requires-Dist: numpy; extra == 'oracle'", "Description-Content-Type: text/markdown", "",
        readme,
    ])


def record(path, data):
    """The line of a file in RECORD."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(data)}"


def build(library, version, out, repository=None):
    """Writes the wheel, and returns its path."""
    tag = f"py3-none-{platform_tag(library)}"
    info = f"qkvault-{version}.dist-info"
    listed = files(library)
    listed[f"{info}/METADATA"] = metadata(version, repository).encode()
    listed[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: qkvault\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    for name in ("LICENSE-APACHE", "LICENSE-MIT", "NOTICE"):
        listed[f"{info}/licenses/{name}"] = (ROOT / name).read_bytes()
    lines = [record(path, data) for path, data in listed.items()] + [f"{info}/RECORD,,", ""]
    listed[f"{info}/RECORD"] = "\n".join(lines).encode()
    out.mkdir(parents=True, exist_ok=True)
    wheel = out / f"qkvault-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, data in listed.items():
            entry = zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED, 9)
    return wheel


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", type=pathlib.Path, required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--repository", help="the address of the project's page")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("dist"))
    words = parser.parse_args()
    if sys.platform != "linux":
        sys.exit(f"wheels are built on Linux; this is {sys.platform}")
    print(build(words.library.read_bytes(), words.version, words.out, words.repository))


if __name__ == "__main__":
    main()
