"""Loads the Lua scripts, composes their fragments, and keeps the way back from a line to its file.

A script's binding lines (`local fence = ARGV[1] -- ...`) are its contract: `Script.bindings` lists them in
order, and `store/scripts.py` checks each typed wrapper against them at import.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_INCLUDE = re.compile(r"^-- include: (\S+)\s*$")
_BINDING = re.compile(r"^local (\w+)\s*=\s*(KEYS|ARGV)\[(\d+)\]")
_ROWS = re.compile(r"^-- rows: (.+)$")
_ERROR_LINE = re.compile(r"user_script:(\d+)")


def _folder() -> Path:
    """`lua/` beside this package in the wheel, or at the top of a checkout."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "lua", package.parent / "lua"):
        if (folder / "fragments").is_dir():
            return folder
    raise FileNotFoundError("the Lua scripts are missing from this installation: install streamworker again")


@dataclass(frozen=True, slots=True)
class Script:
    """One composed script as it is sent to Redis."""

    name: str
    text: str
    sha: str
    #: ARGV names in order; the hash tag is always KEYS[1] and not among them.
    bindings: tuple[str, ...]
    #: What a repeated row holds, as its `-- rows:` line says, or ''.
    rows: str
    #: For each line of `text`: (file, line).
    origin: tuple[tuple[str, int], ...]

    def locate(self, message: str) -> str:
        """The error message with the Lua file and line that it came from."""

        def replace(found: re.Match[str]) -> str:
            number = int(found.group(1))
            if 1 <= number <= len(self.origin):
                file, line = self.origin[number - 1]
                return f"lua/{file}:{line}"
            return found.group(0)

        return _ERROR_LINE.sub(replace, message)


def _expand(folder: Path, file: str, seen: tuple[str, ...]) -> list[tuple[str, str, int]]:
    if file in seen:
        raise ValueError(f"lua/{file} includes itself by way of {' -> '.join(seen)}")
    lines: list[tuple[str, str, int]] = []
    for number, line in enumerate((folder / file).read_text(encoding="utf-8").splitlines(), 1):
        included = _INCLUDE.match(line)
        if included:
            lines.extend(_expand(folder, included.group(1), (*seen, file)))
        else:
            lines.append((line, file, number))
    return lines


def compose(folder: Path, name: str) -> Script:
    """Read `name`.lua with its fragments from `folder`.

    Raises ValueError when the bindings are not ARGV[1], ARGV[2], ... in order after KEYS[1].
    """
    lines = _expand(folder, f"{name}.lua", ())
    bindings: list[str] = []
    keys: list[str] = []
    rows = ""
    for line, file, number in lines:
        if file != f"{name}.lua":
            continue
        bound = _BINDING.match(line)
        if bound:
            variable, source, position = bound.groups()
            target = keys if source == "KEYS" else bindings
            target.append(variable)
            if len(target) != int(position):
                raise ValueError(f"lua/{file}:{number}: {source}[{position}] is bound out of order")
        elif (found := _ROWS.match(line)) and not rows:
            rows = found.group(1)
    if keys != ["tag"]:
        raise ValueError(f"lua/{name}.lua must bind KEYS[1] to `tag` and no other key")
    text = "\n".join(line for line, _, _ in lines) + "\n"
    return Script(
        name=name,
        text=text,
        sha=hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest(),
        bindings=tuple(bindings),
        rows=rows,
        origin=tuple((file, number) for _, file, number in lines),
    )


@cache
def load(name: str) -> Script:
    """The composed script of that name; KeyError when there is none."""
    if name not in names():
        raise KeyError(f"no Lua script {name!r}; there are: {', '.join(names())}")
    return compose(_folder(), name)


@cache
def names() -> tuple[str, ...]:
    """All scripts, sorted."""
    return tuple(sorted(path.stem for path in _folder().glob("*.lua")))
