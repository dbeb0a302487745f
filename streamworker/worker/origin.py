"""Where a child process finds the app: the module and the name that it has there."""

from __future__ import annotations

import importlib
import multiprocessing.spawn
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streamworker.app import App
from streamworker.core.errors import ConfigurationError

#: A child is importing the app: what starts a worker now would start another one in each child.
loading = False


@dataclass(frozen=True, slots=True)
class Origin:
    """Module and attribute of an app, and how to load `__main__` where that is the module."""

    module: str
    attribute: str
    #: What `multiprocessing.spawn.prepare` needs to load a script as its children do.
    main: dict[str, str]

    def load(self) -> App:
        """Import the app, in a child. Raises whatever the module raises, and ConfigurationError."""
        global loading  # noqa: PLW0603 - there is one import of one app in the life of a child
        loading = True
        try:
            if self.main:
                multiprocessing.spawn.prepare(dict(self.main))
                module = sys.modules["__main__"]
            else:
                module = importlib.import_module(self.module)
        finally:
            loading = False
        found = getattr(module, self.attribute, None)
        if not isinstance(found, App):
            raise ConfigurationError(
                f"{self.module}:{self.attribute} is no App in a child process; an app is found by its name "
                "at the top of its module"
            )
        return found


def find(app: App) -> Origin | None:
    """Where the app is, or None when no other process could import it, as when a function made it."""
    first = sys.modules.get(app.module)
    others = [module for module in list(sys.modules.values()) if module is not first]
    for module in ([first] if first is not None else []) + others:
        attribute = _name_of(app, module)
        name = getattr(module, "__name__", None)
        if attribute is None or not isinstance(name, str) or sys.modules.get(name) is not module:
            continue
        if name != "__main__":
            return Origin(name, attribute, {})
        main = _main(module)
        return None if main is None else Origin(name, attribute, main)
    return None


def _name_of(app: App, module: Any) -> str | None:
    # A module may stand in sys.modules as any object.
    names = getattr(module, "__dict__", None)
    if not isinstance(names, dict):
        return None
    return next((name for name, value in list(names.items()) if value is app), None)


def _main(module: Any) -> dict[str, str] | None:
    spec = getattr(module, "__spec__", None)
    if spec is not None:
        return {"init_main_from_name": spec.name}
    path = getattr(module, "__file__", None)
    # Interactive use, or a program given with -c: there is nothing to load again.
    return None if path is None else {"init_main_from_path": str(Path(path).resolve())}


def refuse_while_loading() -> None:
    """Raises ConfigurationError when a script starts a worker while a child of another worker loads it."""
    if loading:
        raise ConfigurationError(
            "this script starts a worker whenever it is imported, also by the worker's child processes; "
            'put the start under `if __name__ == "__main__":`'
        )
