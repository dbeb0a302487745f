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
_ERROR_LINE = re.compile(r"(?:user_script:|(?<=function at )line )(\d+)")


@cache
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
    #: See `Contract`.
    bindings: tuple[str, ...]
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
        if line.startswith("-- include:") and (included := _INCLUDE.match(line)):
            lines.extend(_expand(folder, included.group(1), (*seen, file)))
        else:
            lines.append((line, file, number))
    return lines


@dataclass(frozen=True, slots=True)
class Contract:
    """What a script's binding lines say it takes."""

    #: ARGV names in order; the hash tag is always KEYS[1] and not among them.
    bindings: tuple[str, ...]
    #: What a repeated row holds, as the `-- rows:` line says, or ''.
    rows: str


def read_contract(folder: Path, name: str) -> Contract:
    """The contract of `name`.lua in `folder`, from its first lines alone.

    Raises ValueError when the bindings are not ARGV[1], ARGV[2], ... in order after KEYS[1].
    """
    bindings: list[str] = []
    keys: list[str] = []
    rows = ""
    for number, line in enumerate((folder / f"{name}.lua").read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("local ") and (bound := _BINDING.match(line)):
            variable, source, position = bound.groups()
            target = keys if source == "KEYS" else bindings
            target.append(variable)
            if len(target) != int(position):
                raise ValueError(f"lua/{name}.lua:{number}: {source}[{position}] is bound out of order")
        elif line.startswith("-- rows: ") and not rows:
            rows = line.removeprefix("-- rows: ")
        elif line.startswith("-- include: "):
            break
    if keys != ["tag"]:
        raise ValueError(f"lua/{name}.lua must bind KEYS[1] to `tag` and no other key")
    return Contract(tuple(bindings), rows)


def contract(name: str) -> Contract:
    """The contract of the script of that name; KeyError when there is none."""
    if name not in names():
        raise KeyError(f"no Lua script {name!r}; there are: {', '.join(names())}")
    return read_contract(_folder(), name)


def compose(folder: Path, name: str) -> Script:
    """Read `name`.lua with its fragments from `folder`. Raises ValueError for a broken contract."""
    lines = _expand(folder, f"{name}.lua", ())
    terms = read_contract(folder, name)
    text = "\n".join(line for line, _, _ in lines) + "\n"
    return Script(
        name=name,
        text=text,
        sha=hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest(),
        bindings=terms.bindings,
        rows=terms.rows,
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
    """All scripts, sorted; those of a subfolder as `lock/acquire`."""
    folder = _folder()
    found = (path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.lua"))
    return tuple(sorted(name for name in found if not name.startswith("fragments/")))
