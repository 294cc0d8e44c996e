"""Wheels and sources written by a test, as a package index in a folder."""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

LOUDLY = "def shout(text):\n    return text.upper() + '!'\n"
EXCITED = "from softly import whisper\ndef shout(text):\n    return whisper(text).upper() + '!!'\n"
SOFTLY = "def whisper(text):\n    return text.lower()\n"


def write_wheel(
    folder: Path, name: str, version: str, files: Mapping[str, str], requires: Sequence[str] = (), python: str = ">=3"
) -> Path:
    """A wheel for every machine, with these files; `requires`: the packages that it depends on."""
    info = f"{name}-{version}.dist-info"
    needed = "".join(f"Requires-Dist: {each}\n" for each in requires)
    members = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        f"Requires-Python: {python}\n{needed}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = [f"{path},sha256={_hash(text)},{len(text.encode())}" for path, text in members.items()]
    members[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""])
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as wheel:
        for path, text in members.items():
            wheel.writestr(path, text)
    return file


def write_source(folder: Path, name: str, version: str) -> None:
    """A package that has a source and no wheel."""
    folder.mkdir(parents=True, exist_ok=True)
    text = f"[project]\nname = '{name}'\nversion = '{version}'\n".encode()
    with tarfile.open(folder / f"{name}-{version}.tar.gz", "w:gz") as archive:
        about = tarfile.TarInfo(f"{name}-{version}/pyproject.toml")
        about.size = len(text)
        archive.addfile(about, io.BytesIO(text))


def write_index(folder: Path) -> Path:
    """loudly 1.0; loudly 2.0, which needs softly; clash, which needs loudly 1.0; sourced, which has no wheel."""
    write_wheel(folder, "loudly", "1.0", {"loudly.py": LOUDLY})
    write_wheel(folder, "loudly", "2.0", {"loudly/__init__.py": EXCITED}, ["softly>=1"])
    write_wheel(folder, "softly", "1.0", {"softly.py": SOFTLY})
    write_wheel(folder, "clash", "1.0", {"clash.py": ""}, ["loudly==1.0"])
    write_source(folder, "sourced", "1.0")
    return folder


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")
