from __future__ import annotations

import hashlib
from base64 import urlsafe_b64encode

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from streamworker.core.errors import ConfigurationError, InvalidArgument
from streamworker.core.template import (
    KeyTemplate,
    check_correlation_id,
    check_key,
    check_task_name,
    check_tenant,
    key_id,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
# Few characters, chosen to imitate separators and escapes, so that collisions would be found.
TRICKY = st.text("ab1:%-3A#.", min_size=1, max_size=5)


def test_a_template_makes_the_key_from_the_arguments() -> None:
    template = KeyTemplate.parse(
        "shipment:{shipment_id}:update-status:v{version}", ["shipment_id", "version", "x"]
    )

    assert template.fields == ("shipment_id", "version")
    assert template.render({"shipment_id": 7, "version": "5", "x": None}) == "shipment:7:update-status:v5"


@pytest.mark.parametrize("text", ["{a}:{b}", "{a}-{b}", "x{a}_y{b}z", "{a}%3A:{b}", "{a}3-A{b}", "v{a}.{b}"])
@given(first=st.tuples(TRICKY, TRICKY), second=st.tuples(TRICKY, TRICKY))
def test_different_values_never_make_the_same_key(
    text: str, first: tuple[str, str], second: tuple[str, str]
) -> None:
    assume(first != second)
    template = KeyTemplate.parse(text, ["a", "b"])

    assert template.render(dict(zip("ab", first, strict=True))) != template.render(
        dict(zip("ab", second, strict=True))
    )


def test_values_keep_no_separator() -> None:
    template = KeyTemplate.parse("u:{a}", ["a"])

    assert template.render({"a": "x:y%z"}) == "u:x%3Ay%25z"


def test_braces_can_be_written() -> None:
    assert KeyTemplate.parse("{{x}}:{a}", ["a"]).render({"a": 1}) == "{x}:1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no field"),
        ("nightly", r"every job would get the same key.*\{shipment_id\}"),
        ("{other}", "no argument of the task; it has: shipment_id, version"),
        ("{shipment_id.real}", "plain name"),
        ("{version[0]}", "plain name"),
        ("{version:>5}", "plain name"),
        ("{version!r}", "plain name"),
        ("{}", "plain name"),
        ("{0}", "plain name"),
        ("{version", "write fields as"),
        ("version}", "write fields as"),
        ("{shipment_id}{version}", "nothing keeps two fields apart"),
        ("{shipment_id}v{version}", "nothing keeps two fields apart"),
        ("{shipment_id}%{version}", "nothing keeps two fields apart"),
    ],
)
def test_a_template_that_cannot_be_right_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        KeyTemplate.parse(text, ["shipment_id", "version"])

    assert "key template" in str(caught.value)


def test_a_constant_template_of_a_task_without_arguments_is_refused_too() -> None:
    with pytest.raises(ConfigurationError, match="has no field"):
        KeyTemplate.parse("once", [])


@pytest.mark.parametrize(
    "value", [True, 1.0, None, [1], {"a": 1}, b"x", "", pytest.param(10**5000, id="huge")]
)
def test_a_value_without_a_stable_text_is_refused_with_its_field(value: object) -> None:
    template = KeyTemplate.parse("s:{version}", ["version"], what="entity template")

    with pytest.raises(InvalidArgument, match=r"entity template 's:\{version\}', field 'version'"):
        template.render({"version": value})


def test_a_missing_argument_is_named() -> None:
    template = KeyTemplate.parse("s:{version}", ["version"])

    with pytest.raises(InvalidArgument, match="'version': is missing"):
        template.render({"shipment_id": 7})


def test_a_rendered_key_keeps_the_limits_of_keys() -> None:
    template = KeyTemplate.parse("s:{version}", ["version"])

    with pytest.raises(InvalidArgument, match="512 bytes"):
        template.render({"version": "x" * 600})
    with pytest.raises(InvalidArgument, match="lone surrogate"):
        template.render({"version": "\ud800"})


def test_a_short_key_identity_is_readable() -> None:
    assert key_id("update", "", "shipment:7:v5") == "update::shipment:7:v5"
    assert key_id("update", "shipment:7", "k") == "update:shipment%3A7:k"


@pytest.mark.parametrize("key", ["k" * 65, "é" * 40, "a\nb", "a\x00b", "a\x85b"])
def test_a_long_or_unprintable_key_identity_is_a_digest(key: str) -> None:
    expected = urlsafe_b64encode(hashlib.sha256(f"task:e:{key}".encode()).digest()).decode().rstrip("=")

    assert key_id("task", "e", key) == "#" + expected
    assert len(expected) == 43


@given(first=st.tuples(TRICKY, TRICKY, TRICKY), second=st.tuples(TRICKY, TRICKY, TRICKY))
def test_two_key_identities_never_meet(first: tuple[str, str, str], second: tuple[str, str, str]) -> None:
    assume(first != second)

    assert key_id(*first) != key_id(*second)


@given(TEXT, TEXT, TEXT)
def test_a_key_identity_always_fits_the_listpack(task: str, entity: str, key: str) -> None:
    assert 1 <= len(key_id(task, entity, key).encode()) <= 64


@pytest.mark.parametrize("key", ["a", "shipment:7", "x" * 512, "é" * 256, "a b", "line\nbreak"])
def test_a_key_of_1_to_512_bytes_is_taken(key: str) -> None:
    assert check_key(key) == key


@pytest.mark.parametrize("key", ["", "x" * 513, "é" * 257, "\udfff", 7, None, b"k"])
def test_another_key_is_refused(key: object) -> None:
    with pytest.raises(InvalidArgument, match=r"^key "):
        check_key(key)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["a", "_x", "shop.update_shipment", "send-mail", "A" * 64])
def test_a_task_name_is_taken(name: str) -> None:
    assert check_task_name(name) == name


@pytest.mark.parametrize("name", ["", "1a", "-a", ".a", "a b", "a:b", "é", "a" * 65, "a\n", None])
def test_another_task_name_is_refused(name: object) -> None:
    with pytest.raises(InvalidArgument, match=r"^task name"):
        check_task_name(name)


@pytest.mark.parametrize("text", ["acme", "a-b:c/d", "ü" * 32])
def test_a_tenant_or_correlation_id_is_a_printable_word(text: str) -> None:
    assert check_tenant(text) == text
    assert check_correlation_id(text) == text


@pytest.mark.parametrize(
    "text", ["", "a b", "a\tb", "a\u00a0b", "a\nb", "\x00", "\u200b", "x" * 129, 7, "\ud800"]
)
def test_another_tenant_or_correlation_id_is_refused(text: object) -> None:
    with pytest.raises(InvalidArgument, match=r"^tenant "):
        check_tenant(text)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=r"^correlation id "):
        check_correlation_id(text)  # type: ignore[arg-type]


def test_tenants_are_shorter_than_correlation_ids() -> None:
    with pytest.raises(InvalidArgument, match="1 to 64 bytes"):
        check_tenant("x" * 65)

    assert check_correlation_id("x" * 128)
