"""The reference says what the code does: tables made from it, and tables that are compared with it."""

from __future__ import annotations

import re

import pytest

from streamworker.core import states
from streamworker.core.errors import RESERVED_CODES
from streamworker.core.job import Record
from streamworker.core.states import QUIET_CODES, TRANSITIONS, Disposition, Reason, Status
from streamworker.store import lua
from streamworker.store.events import decode
from streamworker.store.keys import CATALOGUE
from tests.unit.documentation import FENCE, REPOSITORY, check_generated, first_column, section, text_of

#: A state token.
TOKEN = ["claimed", "1", "2", "3", "4", "5", "6", "7"]
LUA = REPOSITORY / "lua"


# --- states and codes ------------------------------------------------------------------------------------


def diagram() -> str:
    order = list(Status)
    edges = sorted(TRANSITIONS, key=lambda edge: (order.index(edge[0]), order.index(edge[1])))
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {Status.QUEUED}: enqueue"]
    lines += [f"    {before} --> {after}" for before, after in edges]
    lines += [f"    {Status.SUCCEEDED} --> [*]", "```"]
    return "\n".join(lines)


def test_the_diagram_shows_the_table_of_transitions() -> None:
    check_generated("reference/states.md", "diagram", diagram())


def test_the_table_of_edges_is_the_table_of_transitions() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \|", section(text_of("reference/states.md"), "## Edges"), re.M)

    assert len(rows) == len(set(rows))
    assert set(rows) == {(str(before), str(after)) for before, after in TRANSITIONS}


@pytest.mark.parametrize(("heading", "choices"), [("## Reasons", Reason), ("## Dispositions", Disposition)])
def test_every_closed_choice_is_described(heading: str, choices: type[Reason] | type[Disposition]) -> None:
    assert first_column(section(text_of("reference/states.md"), heading)) == list(choices)


def test_every_state_is_described() -> None:
    head = text_of("reference/states.md").partition("## Edges")[0]

    assert sorted(first_column(head)) == sorted(Status)


def engine_codes() -> set[str]:
    """The codes that scripts and worker write by themselves."""
    found = set(RESERVED_CODES) | set(QUIET_CODES)
    for path in LUA.rglob("*.lua"):
        text = path.read_text(encoding="utf-8")
        found |= set(re.findall(r"fail\(rec, '\w+', '\w+', '(\w+)'", text)) | set(
            re.findall(r"'code', '(\w+)'", text)
        )
    for path in (REPOSITORY / "streamworker" / "worker").glob("*.py"):
        found |= set(re.findall(r"Fail\(\s*ErrorClass\.\w+, \"(\w+)\"", path.read_text(encoding="utf-8")))
    return found


def test_the_engines_error_codes_are_all_described() -> None:
    text = section(text_of("reference/error-codes.md"), "## Codes of the engine")

    assert set(first_column(text)) == engine_codes()
    quiet = set(re.findall(r"^\| `(\w+)` .*\| no \|$", text, re.MULTILINE))
    assert quiet == QUIET_CODES


def test_the_http_statuses_are_those_of_the_code() -> None:
    from streamworker.core import foreign

    text = section(text_of("reference/error-codes.md"), "## Codes of handlers")
    found = {
        kind: {
            int(code) for row in re.findall(rf"^\| (.*) \| {kind} \|", text, re.M) for code in statuses(row)
        }
        for kind in ("transient", "persistent")
    }

    assert found == {
        "transient": set(foreign._TRANSIENT_STATUS),
        "persistent": set(foreign._PERSISTENT_STATUS),
    }


def statuses(row: str) -> list[str]:
    return re.findall(r"`http_(\d+)`", row)


# --- keys, record, scripts -------------------------------------------------------------------------------


def keys_table() -> str:
    lines = ["| key | type | TTL | written by | holds |", "| --- | --- | --- | --- | --- |"]
    lines += [
        f"| `{spec.pattern}` | {spec.type} | {spec.ttl} | {spec.owner} | {spec.holds} |" for spec in CATALOGUE
    ]
    return "\n".join(lines)


def test_the_table_of_keys_is_the_catalogue() -> None:
    check_generated("reference/keys.md", "keys", keys_table())


def lua_text() -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(LUA.rglob("*.lua")))


def test_every_field_of_the_record_is_described() -> None:
    names = re.search(r"local NAMES = \{([^}]*)\}", lua_text())
    assert names
    listed = re.findall(r"'(\w\w)'", names[1])
    written = set(re.findall(r"put\(rec, '(\w+)'", lua_text()))
    written |= set(re.findall(r"\\n(\w\w)=", (LUA / "fragments" / "enqueue_step.lua").read_text()))
    assert {"ow", "ky", "dq"} <= written, "the search for written fields finds too little"

    assert first_column(section(text_of("reference/record.md"), "## The other lines")) == listed
    assert written <= set(listed)


def test_the_first_line_of_the_record_is_described() -> None:
    shown = FENCE.search(section(text_of("reference/record.md"), "## The first line"))
    assert shown
    words = shown[2].split()
    line = dict(zip(words, [*TOKEN, "a:1-0", "normal", "pack", "8"], strict=True))

    record = Record.parse("id", " ".join(line.values()).encode())

    assert {name: str(getattr(record, name)) for name in words[:8]} == dict(list(line.items())[:8])
    assert (record.entry, record.lane, record.task) == (("a", "1-0"), "normal", "pack")
    assert record.number("at") == 8


def test_the_lines_of_the_log_are_described() -> None:
    text = text_of("reference/events.md")
    *full, short = (body.split() for _, body in FENCE.findall(section(text, "## A line")))
    new, moved = (words[:-2] for words in full)
    facts = set(first_column(section(text, "## A line")))
    written = set(re.findall(r" (\w+)=(?:'|%[sd])", lua_text())) - {"task", "lane"}
    assert {"class", "due", "started"} <= written, "the search for written facts finds too little"

    lines = [new, ["id", "queued", *TOKEN, "claimed"], ["id2", short[1], "77"]]
    (enqueued, claimed, again) = decode({b"t": b"9", b"e": "\n".join(map(" ".join, lines)).encode()})
    assert (short, again) == (
        ["id", "=", "fence", "[offset]"],
        claimed._replace(job_id="id2", fence=77, line=3),
    )
    assert (enqueued.facts, enqueued.version) == ({"task": "task", "lane": "lane"}, 1)
    assert (claimed.attempt, claimed.version, claimed.epoch, claimed.fence) == (1, 4, 5, 6)
    first_line = FENCE.search(section(text_of("reference/record.md"), "## The first line"))
    assert first_line
    assert moved == ["id", "from", *first_line[2].split()[:8], "reason"]
    assert facts == written


def test_every_field_of_the_body_is_described() -> None:
    text = lua_text()
    written = set(re.findall(r"HSET', BODY \.\. \w+\.id, '(\w+)'", text))
    written |= set(re.findall(r"rec\.body = \{ '(\w+)'", text))
    assert {"env", "result"} <= written

    described = first_column(section(text_of("reference/record.md"), r"## Fields of body:\<id\>"))

    assert sorted(described) == sorted(written)


def test_every_field_of_a_dead_letter_is_described() -> None:
    letters = re.findall(r"rec\.dead = \{(.*?)\}", (LUA / "fragments" / "finish.lua").read_text(), re.DOTALL)
    written = [set(re.findall(r"(?:^|, |,\n +| )'(\w+)', ", letter)) - {"bad_record"} for letter in letters]
    assert len(written) == 2
    assert written[0] == written[1]

    described = first_column(section(text_of("reference/record.md"), "## A dead letter"))

    assert set(described) == written[0] - {"unknown"}


def script_section(name: str) -> str:
    lines = (LUA / f"{name}.lua").read_text(encoding="utf-8").splitlines()
    first_code = next(index for index, line in enumerate(lines) if line.startswith("local "))
    head = "\n".join(line.removeprefix("--").strip() for line in lines[:first_code])
    what, _, rest = head.partition("Replies")
    replies, _, more = rest.partition("\n")
    kind, replies = re.fullmatch(r"(, one per row:)?\s+(.*)", replies).groups()  # type: ignore[union-attr]
    what = what.removeprefix(f"{name}: ")
    bindings = [
        re.match(r"local (\w+)\s*=\s*((?:KEYS|ARGV)\[\d+\])\s*-- (.*)", line) for line in lines[first_code:]
    ]
    rows = "\n".join(lines).partition("-- rows: ")[2].partition("\nlocal ")[0].partition("\n-- include")[0]
    text = [f"### {name}", "", *prose(f"{what.strip()}\n{more.strip()}".strip()), ""]
    text += [f"Replies{', one per row' if kind else ''}: `{replies}`", ""]
    text += ["| | argument | |", "| --- | --- | --- |"]
    text += [f"| `{one[2]}` | `{one[1]}` | {one[3].replace('|', 'or')} |" for one in bindings if one]
    if rows:
        first, *others = rows.splitlines()
        note = " ".join(line.removeprefix("-- ") for line in others if line.startswith("-- "))
        text += [f"| rows | `{first}` | {note} |"]
    return "\n".join(text)


def prose(text: str) -> list[str]:
    """Comment lines as paragraphs; what Markdown would swallow is escaped."""
    text = text.replace("<", r"\<").replace("_", r"\_")
    text = re.sub(r"\((R\d+|D\d+)\)", rule_link, text)
    return [" ".join(part.splitlines()) + "\n" for part in text.split("\n\n") if part.strip()]


def rule_link(found: re.Match[str]) -> str:
    page = "reliability-rules" if found[1].startswith("R") else "design-rules"
    heading = re.search(rf"^### ({found[1]} .*)$", text_of(f"explanation/{page}.md"), re.MULTILINE)
    assert heading, f"{found[1]} is no rule"
    slug = re.sub(r"[^\w\- ]", "", heading[1].lower()).replace(" ", "-")
    return f"([{found[1]}](../explanation/{page}.md#{slug}))"


def test_the_scripts_are_described_as_their_heads_say() -> None:
    text = "\n\n".join(script_section(name) for name in lua.names())

    check_generated("reference/scripts.md", "scripts", text)


@pytest.mark.parametrize("name", lua.names())
def test_the_description_of_a_script_has_all_its_arguments(name: str) -> None:
    described = section(text_of("reference/scripts.md"), f"### {name}")
    script = lua.load(name)

    arguments = re.findall(r"^\| `(?:KEYS|ARGV)\[\d+\]` \| `(\w+)` \|", described, re.MULTILINE)
    assert arguments == ["tag", *script.bindings]
    assert bool(script.rows) == ("| rows |" in described)


def test_every_word_that_a_script_replies_is_explained() -> None:
    text = text_of("reference/scripts.md")
    explained = {word.split(" ")[0] for word in first_column(text.partition("<!-- generated")[0])}
    enqueue = {str(choice) for choice in states.Disposition}
    told = {"WAIT"}  # watch says it in its own words

    words = {
        word
        for name in lua.names()
        for reply in re.findall(r"^-- Replies(.*)$", (LUA / f"{name}.lua").read_text(), re.MULTILINE)
        for word in re.findall(r"\b[A-Z]{2,}(?:_[A-Z]+)*\b", reply)
    }

    assert words - enqueue - told == explained
