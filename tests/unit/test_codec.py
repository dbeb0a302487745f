from __future__ import annotations

import base64
import dataclasses
import enum
import json
import math
import struct
import uuid
from collections import OrderedDict, defaultdict, namedtuple
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamworker.core.codec import (
    FAR,
    MAX_DEPTH,
    decode,
    encode_args,
    encode_result,
    fingerprint,
    truncate_text,
)
from streamworker.core.errors import PayloadTooLarge, SerializationError

VALID_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | VALID_TEXT
)
JSON_VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(VALID_TEXT, inner, max_size=6),
    max_leaves=20,
)
LONG: dict[str, st.SearchStrategy[object]] = {
    "int": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(allow_nan=False, allow_infinity=False),
    "safe": st.none() | st.booleans() | VALID_TEXT,
    "mixed": SCALARS,
}
FEW = settings(max_examples=60)


class Text(str):
    __slots__ = ()


class Number(int):
    pass


class Real(float):
    pass


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Word(enum.StrEnum):
    A = "a"


@dataclasses.dataclass
class Parcel:
    weight: int = 1


class Model:
    def model_dump(self) -> dict[str, int]:
        return {}


Point = namedtuple("Point", "x y")


def same(left: object, right: object) -> bool:
    """Equal in type, bits of floats and order of keys too."""
    if isinstance(left, float) and isinstance(right, float):
        return struct.pack("d", left) == struct.pack("d", right)
    if isinstance(left, dict) and isinstance(right, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and left == right


@FEW
@given(st.dictionaries(VALID_TEXT, JSON_VALUES, max_size=5))
def test_arguments_come_back_bit_exact(args: dict[str, Any]) -> None:
    assert same(decode(encode_args(args)), args)


@FEW
@given(
    st.sampled_from(["int", "float", "safe", "mixed"]).flatmap(lambda kind: st.lists(LONG[kind], min_size=17))
)
def test_long_lists_come_back_bit_exact(values: list[object]) -> None:
    assert same(decode(encode_result(values)), values)


@pytest.mark.parametrize(
    "value",
    [
        0.1,
        -0.0,
        1e-400,
        5e-324,
        1.7976931348623157e308,
        2**53 + 1,
        -(2**63),
        2**63 - 1,
        "\x00",
        "é\U0001f600",
        [],
        {},
    ],
)
def test_awkward_values_come_back_bit_exact(value: object) -> None:
    assert same(decode(encode_result(value)), value)


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ((1, (2, 3)), [1, [2, 3]]),
        (Text("a"), "a"),
        (Number(3), 3),
        (OrderedDict(a=1), {"a": 1}),
        (defaultdict(list, a=[1]), {"a": [1]}),
    ],
)
def test_tuples_and_plain_subclasses_become_the_json_type(value: object, plain: object) -> None:
    assert same(decode(encode_result(value)), plain)


NAIVE = datetime(2026, 1, 2)  # noqa: DTZ001 - that it is naive is the point
BAD_VALUES = [
    (math.nan, "is nan"),
    (math.inf, "is inf"),
    (-math.inf, "is -inf"),
    (2**63, r"beyond 64 bits \(signed\)"),
    (-(2**63) - 1, "beyond 64 bits"),
    (10**30, "beyond 64 bits"),
    ({1}, "a set, which has no order: pass sorted"),
    (frozenset({1}), "a frozenset"),
    (b"x", "is a bytes: pass text, or base64"),
    (bytearray(b"x"), "a bytearray"),
    (memoryview(b"x"), "a memoryview"),
    (NAIVE, r"naive datetime .*\.isoformat\(\)"),
    (datetime(2026, 1, 2, tzinfo=UTC), r"a datetime, .*\.isoformat\(\)"),
    (date(2026, 1, 2), r"a date, .*\.isoformat\(\)"),
    (time(1, 2), r"a time, .*\.isoformat\(\)"),
    (timedelta(1), r"total_seconds\(\)"),
    (Decimal("1.5"), r"a Decimal: pass str"),
    (uuid.UUID(int=1), r"an UUID: pass str"),
    (Colour.RED, r"an? Colour, a member of an enum: pass \.value"),
    (Level.LOW, r"a member of an enum: pass \.value"),
    (Word.A, r"a member of an enum: pass \.value"),
    (Parcel(), r"a dataclass: pass dataclasses\.asdict"),
    (Parcel, "is a type"),
    (Model(), "model_dump"),
    (Point(1, 2), "a tuple with names"),
    (Real(1.5), r"a Real: pass float"),
    (orjson.Fragment(b"{}"), "is a Fragment"),
    (object(), "is an object: JSON has"),
    (range(3), "is a range"),
    (1j, "is a complex"),
    ("\ud800", "lone surrogate"),
    ({1: 2}, r"the key 1, an int: keys must be plain str"),
    ({None: 2}, "the key None"),
    ({Text("k"): 2}, "the key 'k', a Text"),
    ({Word.A: 2}, "keys must be plain str"),
    ({"\ud800": 2}, r"the key '\\ud800' with a lone surrogate"),
]


@pytest.mark.parametrize(("value", "problem"), BAD_VALUES)
@pytest.mark.parametrize("padding", [0, 40])
def test_what_json_cannot_hold_is_refused_with_its_path(value: object, problem: str, padding: int) -> None:
    # The padding takes the value through the check of long containers as well.
    args: dict[str, object] = {"items": [0, 1, 2, {"when": value, **{f"k{i}": i for i in range(padding)}}]}

    with pytest.raises(SerializationError, match=problem) as caught:
        encode_args(args)

    assert caught.value.path == "args.items[3].when"
    assert str(caught.value).startswith("args.items[3].when: ")
    assert isinstance(caught.value, ValueError)
    str(caught.value).encode()


@pytest.mark.parametrize(("value", "problem"), BAD_VALUES)
def test_a_bad_result_is_refused_as_a_result(value: object, problem: str) -> None:
    with pytest.raises(SerializationError, match=problem) as caught:
        encode_result(value)

    assert caught.value.path == "result"


@pytest.mark.parametrize("bad", [math.nan, math.inf, 2**63, -(2**63) - 1, b"x", True + 0j])
@pytest.mark.parametrize("filler", [1, 1.5, "x", None])
def test_one_bad_value_in_a_long_list_is_found(bad: object, filler: object) -> None:
    with pytest.raises(SerializationError) as caught:
        encode_result([filler] * 50 + [bad])

    assert caught.value.path == "result[50]"


@given(st.lists(SCALARS, max_size=40), st.sampled_from([math.nan, math.inf, -math.inf]), st.integers(0, 40))
def test_no_float_is_ever_turned_into_null(values: list[object], bad: float, index: int) -> None:
    values.insert(index, bad)

    with pytest.raises(SerializationError, match="JSON has no form for"):
        encode_result(values)


def test_an_odd_key_is_quoted_in_the_path() -> None:
    with pytest.raises(SerializationError) as caught:
        encode_args({"a b": {"é": {"x": b""}}})

    assert caught.value.path == r"args['a b']['\xe9'].x"


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[object] = [1]
    loop.append({"again": loop})

    with pytest.raises(SerializationError, match="contains itself") as caught:
        encode_args({"loop": loop})

    assert caught.value.path == "args.loop[1].again"


def test_a_value_used_twice_is_no_circle() -> None:
    shared = [1]

    assert decode(encode_result([shared, shared, Text("slow path")])) == [[1], [1], "slow path"]


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def test_nesting_is_allowed_up_to_100_levels() -> None:
    assert decode(encode_result(nested(MAX_DEPTH))) == nested(MAX_DEPTH)

    with pytest.raises(SerializationError, match="deeper than 100 levels"):
        encode_result(nested(MAX_DEPTH + 1))


def test_very_deep_nesting_is_refused_and_not_a_crash() -> None:
    with pytest.raises(SerializationError, match="deeper than 100 levels"):
        encode_result(nested(100_000))


def test_arguments_must_be_a_dict() -> None:
    with pytest.raises(SerializationError, match="args: must be a dict of arguments, not a list"):
        encode_args([1])  # type: ignore[arg-type]


def test_a_payload_above_the_limit_is_refused_with_both_sizes() -> None:
    assert len(encode_args({"x": "a" * 92}, limit=100)) == 100

    with pytest.raises(PayloadTooLarge, match=r"args: 101 bytes.*limit is 100") as caught:
        encode_args({"x": "a" * 93}, limit=100)

    assert (caught.value.size, caught.value.limit, caught.value.what) == (101, 100, "args")
    assert isinstance(caught.value, ValueError)


def doubled(value: object, levels: int) -> object:
    """A list that holds a list twice, which holds a list twice, and so on."""
    for _ in range(levels):
        value = [value, value]
    return value


@pytest.mark.timeout(5)
@pytest.mark.parametrize(
    ("value", "size"),
    [
        (doubled(7, 40), "4398046511172 or more bytes"),
        (doubled(7, 90), "more than 2 ** 63 bytes"),
        (doubled(OrderedDict(a=math.nan), 40), "or more bytes"),
        ([doubled(1, 40), math.nan], "or more bytes"),
        (["x" * 100_000] * 1000, "or more bytes"),
        ([None, "x" * 100_000] * 1000, "or more bytes"),
        (doubled({"x" * 50: 1}, 40), "or more bytes"),
    ],
)
def test_what_is_few_in_memory_and_endless_as_json_is_refused_unwritten(value: object, size: str) -> None:
    """The encoder went on until the machine had no memory left."""
    with pytest.raises(PayloadTooLarge) as caught:
        encode_args({"small": "x" * 50, "items": value})

    assert str(caught.value).startswith("args.items: ")
    assert size in str(caught.value)
    assert caught.value.size > FAR * 262_144
    with pytest.raises(PayloadTooLarge):
        encode_result(value)


def test_a_value_that_is_there_often_and_fits_is_written_as_often() -> None:
    assert len(encode_result(doubled(1, 15))) == 4 * 2**15 - 3


def test_the_default_limit_is_256_kib() -> None:
    encode_args({"x": "a" * (262_144 - 8)})

    with pytest.raises(PayloadTooLarge):
        encode_args({"x": "a" * (262_144 - 7)})


@pytest.mark.parametrize("data", [b"", b"{", b"NaN", b"\xff"])
def test_bytes_that_are_no_json_are_refused(data: bytes) -> None:
    with pytest.raises(SerializationError, match="not valid JSON"):
        decode(data)


@FEW
@given(st.dictionaries(VALID_TEXT, JSON_VALUES, max_size=5), st.randoms(use_true_random=False))
def test_the_order_of_names_does_not_change_the_fingerprint(args: dict[str, Any], random: Any) -> None:
    names = list(args)
    random.shuffle(names)

    assert fingerprint({name: args[name] for name in names}) == fingerprint(args)


@FEW
@given(
    st.dictionaries(VALID_TEXT, JSON_VALUES, max_size=2), st.dictionaries(VALID_TEXT, JSON_VALUES, max_size=2)
)
def test_fingerprints_are_equal_just_when_the_json_is(left: dict[str, Any], right: dict[str, Any]) -> None:
    def canonical(args: dict[str, Any]) -> str:
        return json.dumps(args, sort_keys=True)

    assert (fingerprint(left) == fingerprint(right)) == (canonical(left) == canonical(right))


def test_a_fingerprint_is_short_stable_and_url_safe() -> None:
    mark = fingerprint({"shipment_id": 7, "status": "sent"})

    # Written in records of older versions: another value here would turn re-sent calls into conflicts.
    assert mark == fingerprint({"status": "sent", "shipment_id": 7})
    assert len(mark) == 16
    assert len(base64.urlsafe_b64decode(mark)) == 12
    assert mark == "BHQgR_n0qatjxQ_b"


def test_a_fingerprint_tells_what_json_tells() -> None:
    assert fingerprint({"a": 1}) != fingerprint({"a": 1.0})
    assert fingerprint({"a": None}) != fingerprint({})
    assert fingerprint({"a": (1, 2)}) == fingerprint({"a": [1, 2]})


def test_a_fingerprint_of_what_json_cannot_hold_is_refused() -> None:
    with pytest.raises(SerializationError, match=r"args\.a: is nan"):
        fingerprint({"a": math.nan})


def test_short_text_is_kept_as_it_is() -> None:
    assert truncate_text("é" * 32, 64) == "é" * 32


@given(st.text(st.characters(), max_size=300), st.integers(64, 200))
def test_truncated_text_is_bounded_valid_and_says_that_it_was_cut(text: str, limit: int) -> None:
    short = truncate_text(text, limit)

    assert len(short.encode()) <= limit
    assert "\x00" not in short
    if len(text.replace("\x00", "\ufffd").encode("utf-8", "surrogatepass")) > limit:
        assert short.endswith(f"[cut, {len(text)} characters in all]")
    else:
        assert len(short) == len(text)


def test_nul_and_lone_surrogates_are_replaced() -> None:
    assert truncate_text("a\x00b\ud800c") == "a\ufffdb\ufffdc"


def test_a_limit_without_room_for_the_mark_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 64"):
        truncate_text("x", 63)
