"""Each guard of the scripts is seen to matter: without it, a test of this folder goes red.

A mutation changes one place of the scripts and names the test that must notice. The same tests pass on an
unchanged copy, so it is the mutation that they notice. `make mutants` tells what else notices each.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from streamworker.store.connection import ReplyError
from tests.lua import (
    guards,
    guards_breakers,
    guards_burial,
    guards_crons,
    guards_gates,
    guards_ordinary,
    guards_overload,
    guards_settings,
)
from tests.lua.driver import Shard
from tests.lua.mutating import SCRIPTS, Mutation, noticers_pass

MUTATIONS = [
    *guards.MUTATIONS,
    *guards_gates.MUTATIONS,
    *guards_burial.MUTATIONS,
    *guards_crons.MUTATIONS,
    *guards_breakers.MUTATIONS,
    *guards_overload.MUTATIONS,
    *guards_settings.MUTATIONS,
    *guards_ordinary.MUTATIONS,
]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the scripts that may be changed: links, until one is."""
    folder = tmp_path / "lua"
    for path in SCRIPTS.rglob("*.lua"):
        link = folder / path.relative_to(SCRIPTS)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path)
    return folder


@pytest.mark.parametrize(
    "mutation", [each for each in MUTATIONS if not each.harmless], ids=lambda mutation: mutation.name
)
def test_a_guard_that_is_taken_out_is_missed(valkey_shard: Shard, copy: Path, mutation: Mutation) -> None:
    mutation.apply(copy)
    valkey_shard.folder = copy

    with pytest.raises((AssertionError, ReplyError, LookupError, ValueError)):
        mutation.noticed_by(valkey_shard)


def test_every_noticer_passes_on_an_unchanged_copy(valkey_shard: Shard, tmp_path: Path) -> None:
    """Else the mutations would be noticed by a test that is red anyway.

    All of them run elsewhere, on the scripts themselves: what is asked here is whether copying breaks them.
    """
    shutil.copytree(SCRIPTS, tmp_path / "lua")
    noticers_pass(valkey_shard, tmp_path / "lua", MUTATIONS[::12])
