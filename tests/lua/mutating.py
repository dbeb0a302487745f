"""Scripts with one guard taken out, and the test that must notice."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.lua.driver import Shard

SCRIPTS = Path(__file__).parents[2] / "lua"
Noticer = Callable[[Shard], None]


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change: where, what, instead of it; and who must notice."""

    file: str
    text: str
    replacement: str
    noticed_by: Noticer
    #: Why nothing needs to notice it, if nothing does.
    harmless: str = ""

    @property
    def name(self) -> str:
        return f"{Path(self.file).stem}: {' '.join(self.text.split())[:60]}"

    def apply(self, folder: Path) -> None:
        """Change the copy of the scripts in this folder. Raises ValueError when the guard is not there."""
        path = folder / self.file
        text = path.read_text(encoding="utf-8")
        if text.count(self.text) != 1:
            raise ValueError(f"{self.name}: the guard moved: change the mutation with it")
        path.unlink()  # it may be a link to the script itself
        path.write_text(text.replace(self.text, self.replacement), encoding="utf-8")


def of(test: Callable[..., None], *arguments: object) -> Noticer:
    """A parametrized test with its arguments."""

    def run(shard: Shard) -> None:
        test(shard, *arguments)

    run.__name__ = f"{test.__name__}{arguments or ''}"
    return run


def noticers_pass(shard: Shard, folder: Path, mutations: Iterable[Mutation]) -> None:
    """Every noticer is green on unchanged scripts; else it would notice nothing but itself."""
    noticers = {one.noticed_by.__name__: one.noticed_by for one in mutations}
    for number, (name, noticer) in enumerate(noticers.items()):
        own = Shard(shard.link, f"{shard.keys.namespace}-{number}", folder=folder)
        try:
            noticer(own)
        except BaseException as error:
            raise AssertionError(f"{name} fails without any mutation") from error
        finally:
            own.clear()
