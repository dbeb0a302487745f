"""What a handler takes: the names of its parameters, and arguments bound to them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from streamworker.core.errors import ConfigurationError

#: What no context is: a first parameter that is said to be of these types was meant for an argument.
_DATA = {kind.__name__: kind for kind in (bool, bytes, dict, float, int, list, str)}


class BadArguments(TypeError):
    """The arguments do not fit the handler's signature; the message names what is wrong."""


@dataclass(frozen=True, slots=True)
class Signature:
    """A handler's parameters after the context, for binding without `inspect` on the hot path."""

    names: tuple[str, ...]
    required: frozenset[str]
    allowed: frozenset[str]
    #: The handler takes **kwargs, so that any further name is allowed.
    open: bool
    #: How many of `names` may be given by position.
    positional: int
    #: Name of the context parameter, which no argument may have; '' if it is positional-only.
    context: str

    @classmethod
    def of(cls, name: str, handler: Callable[..., Any]) -> Signature:
        """Raises ConfigurationError for a handler that cannot be called by names."""
        if isinstance(handler, type) or not callable(handler):
            raise ConfigurationError(f"task {name}: a handler is a function, not {handler!r}")
        if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
            raise ConfigurationError(f"task {name}: a handler returns its result, it does not yield")
        parameters = list(inspect.signature(handler).parameters.values())
        kinds = inspect.Parameter
        if not parameters or parameters[0].kind not in (
            kinds.POSITIONAL_OR_KEYWORD,
            kinds.POSITIONAL_ONLY,
        ):
            raise ConfigurationError(
                f"task {name}: the first parameter of a handler is its context: "
                f"def {getattr(handler, '__name__', name)}(ctx: Context, ...)"
            )
        first = parameters[0]
        if first.name in ("self", "cls"):
            raise ConfigurationError(
                f"task {name}: a handler is a function, no method: nobody would give it its {first.name}"
            )
        for kind in _DATA.items():
            if first.annotation in kind:
                raise ConfigurationError(
                    f"task {name}: the first parameter of a handler is its context, {first.name!r} is a "
                    f"{kind[0]}: def {getattr(handler, '__name__', name)}(ctx: Context, {first.name}, ...)"
                )
        names: list[str] = []
        required: set[str] = set()
        is_open = False
        positional = 0
        for parameter in parameters[1:]:
            if parameter.kind is kinds.VAR_KEYWORD:
                is_open = True
                continue
            if parameter.kind in (kinds.VAR_POSITIONAL, kinds.POSITIONAL_ONLY):
                raise ConfigurationError(
                    f"task {name}: parameter {parameter.name!r} cannot be passed by name; arguments travel "
                    "as JSON with their names, so use plain or keyword-only parameters"
                )
            names.append(parameter.name)
            positional += parameter.kind is kinds.POSITIONAL_OR_KEYWORD
            if parameter.default is kinds.empty:
                required.add(parameter.name)
        context = "" if parameters[0].kind is kinds.POSITIONAL_ONLY else parameters[0].name
        return cls(tuple(names), frozenset(required), frozenset(names), is_open, positional, context)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by name, defaults not applied. Raises BadArguments."""
        if len(args) > self.positional:
            raise BadArguments(f"takes {self.positional} arguments by position, {len(args)} were given")
        bound = dict(zip(self.names, args, strict=False))
        for name, value in kwargs.items():
            if name in bound:
                raise BadArguments(f"argument {name!r} was given twice")
            bound[name] = value
        self.check(bound)
        return bound

    def check(self, args: Mapping[str, Any]) -> None:
        """Raises BadArguments when a name is missing or not known."""
        names = args.keys()
        if names == self.allowed and not self.open:
            return
        said = []
        if missing := self.required - names:
            said.append(f"missing: {', '.join(sorted(missing))}")
        if not self.open and (unknown := names - self.allowed):  # a name typed wrongly is both
            said.append(f"unknown: {', '.join(sorted(unknown))}; it takes {', '.join(self.names) or 'none'}")
        if said:
            raise BadArguments("; ".join(said))
        if self.open and self.context and self.context in names:
            raise BadArguments(f"{self.context!r} is the name of the handler's context")
