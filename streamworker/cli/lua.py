"""`streamworker lua`: the scripts as they are sent to Redis."""

from __future__ import annotations

import difflib
from typing import Annotated

import typer

from streamworker.cli.edge import CommandFailed
from streamworker.cli.options import Json
from streamworker.cli.output import emit_json, print_table

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Read the Lua scripts as they are sent to Redis."
)


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of a script, such as claim.")],
    as_json: Json = False,
) -> None:
    """Print one script, with its fragments in place.

    Example: streamworker lua show claim
    """
    from streamworker.store import lua

    name = name.removesuffix(".lua")
    if name not in lua.names():
        near = difflib.get_close_matches(name, lua.names(), n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(lua.names())}"
        raise CommandFailed(f"no script is called {name!r}; {hint}", code=2)
    script = lua.load(name)
    if as_json:
        emit_json(
            {
                "name": script.name,
                "sha": script.sha,
                "bindings": list(script.bindings),
                "rows": script.rows or None,
                "text": script.text,
            }
        )
    else:
        print(script.text, end="")


@app.command("list")
def list_scripts(as_json: Json = False) -> None:
    """List the scripts with what each takes.

    Example: streamworker lua list
    """
    from streamworker.store import lua

    scripts = [lua.load(name) for name in lua.names()]
    if as_json:
        emit_json(
            [
                {
                    "name": script.name,
                    "sha": script.sha,
                    "bindings": list(script.bindings),
                    "rows": script.rows or None,
                }
                for script in scripts
            ]
        )
        return
    print_table(
        ["name", "#lines", "sha", "arguments", "rows"],
        [
            (script.name, len(script.origin), script.sha, " ".join(script.bindings), script.rows)
            for script in scripts
        ],
    )
