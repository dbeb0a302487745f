"""Finds the app that a command names as `module:app`."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from streamworker.cli import hints
from streamworker.cli.edge import CommandFailed, code_of
from streamworker.cli.options import settings_of

if TYPE_CHECKING:
    from streamworker.app import App
    from streamworker.settings import Settings

_FORM = "name it as MODULE:APP, such as shop.tasks:app"
#: Where this package is.
_OURS = str(Path(__file__).parents[1]) + "/"


def load_app(target: str) -> App:
    """Import the module from the working directory and return its app.

    Raises CommandFailed, which says what was found instead.
    """
    from streamworker.app import App

    module_name, colon, attribute = target.partition(":")
    if not module_name:
        raise CommandFailed(f"{target!r} names no app; {_FORM}", code=2)
    if module_name.endswith(".py") or "/" in module_name:
        guess = module_name.removesuffix(".py").removeprefix("./").strip("/").replace("/", ".")
        raise CommandFailed(
            f"{module_name!r} is a file; name the module: {guess}:{attribute or 'app'}", code=2
        )
    module = _import(module_name)
    apps = {name: value for name, value in vars(module).items() if isinstance(value, App)}
    found = f"it has: {', '.join(f'{module_name}:{name}' for name in sorted(apps))}" if apps else ""
    if not colon or not attribute:
        raise CommandFailed(f"{target!r} does not say which app; {found or _FORM}", code=2)
    value = getattr(module, attribute, None)
    if value is None:
        raise CommandFailed(
            f"module {module_name!r} has no {attribute!r}; {found or 'it has no App at all'}", code=2
        )
    if not isinstance(value, App):
        raise CommandFailed(
            f"{target} is no App but a {type(value).__name__}; {found or 'define one: app = App(...)'}",
            code=2,
        )
    return value


def subject_of(target: str | None, app: str | None, redis_url: str | None) -> tuple[Settings, App | None]:
    """Whose namespace, on which server; with the app that `target` names. Raises as `load_app`."""
    if target is None:
        return settings_of(app, redis_url), None
    known = load_app(target)
    settings = known.settings
    if redis_url:
        settings = replace(settings, redis_url=redis_url)
    if app:
        settings = replace(settings, namespace=app)
    hints.remember(settings.namespace, redis_url)
    return settings, known


def _import(name: str) -> ModuleType:
    here = str(Path.cwd())
    if sys.path[0] != here:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise CommandFailed(f"no module {name!r} in {here}{_near(name)}", code=2) from None
        raise CommandFailed(_broken(name, error)) from error
    except Exception as error:
        raise CommandFailed(_broken(name, error), code=code_of(error)) from error


def _near(name: str) -> str:
    head, _, rest = name.partition(".")
    folder = Path.cwd()
    known = [path.stem for path in folder.glob("*.py")]
    known += [path.parent.name for path in folder.glob("*/*.py")]
    near = difflib.get_close_matches(head, known, n=1)
    if near and near[0] != head:
        return f"; did you mean {near[0]}{'.' + rest if rest else ''}?"
    return "; start the command in the folder that holds it, or set PYTHONPATH"


def _broken(name: str, error: Exception) -> str:
    # What we refuse is said of the line that asked for it, not of ours or generated ones (`<string>`).
    theirs = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(("<", _OURS)) and "importlib" not in frame.filename
    ]
    if isinstance(error, SyntaxError) and error.filename:
        place = f" ({error.filename}, line {error.lineno})"
        said = error.msg
    else:
        place = f" ({theirs[-1].filename}, line {theirs[-1].lineno})" if theirs else ""
        said = str(error)
    return f"module {name!r} cannot be imported: {type(error).__name__}: {said}{place}"
