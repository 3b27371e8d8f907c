"""Names of leases, and text on its way to the database."""

import re
import unicodedata

import pytest
from django.db import connection
from hypothesis import given
from hypothesis import strategies as st

from django_runlease.models import RunLease
from django_runlease.text import NAME_LENGTH, check_name, did_you_mean, nearest, storable, tail

SURROGATE = "\ud800"


@pytest.mark.parametrize(
    "name", ["x", "charge due invoices", "Zürich/täglich", "x" * NAME_LENGTH, "仕事", "a'b\"%s{}\\"]
)
def test_printable_composed_text_is_a_name_and_comes_back_as_it_was(name):
    assert check_name(name) is name


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "is empty"),
        ("   ", "is empty"),
        ("x" * (NAME_LENGTH + 1), "at most 200 characters; this one has 201"),
        (" x", "no space at either end: write 'x'"),
        ("x ", "no space at either end: write 'x'"),
        ("a\nb", r"contains '\n'"),
        ("a\0b", r"contains '\x00'"),
        ("a\u200bb", r"contains '\u200b'"),
        ("a\N{NO-BREAK SPACE}b", r"contains '\xa0'"),
        (f"a{SURROGATE}b", r"contains '\ud800'"),
        ("Zu\N{COMBINING DIAERESIS}rich", r"NFC: write 'Z\xfcrich'"),
        (b"x", "is a string, not bytes"),
        (None, "is a string, not NoneType"),
        (7, "is a string, not int"),
    ],
)
def test_anything_else_is_refused_with_a_reason(name, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        check_name(name)


@given(st.text(max_size=NAME_LENGTH + 2))
def test_a_name_is_accepted_only_if_it_keeps_every_rule(text):
    fits = (
        0 < len(text) <= NAME_LENGTH
        and text.isprintable()
        and text == text.strip()
        and text == unicodedata.normalize("NFC", text)
    )
    if fits:
        assert check_name(text) == text
        return
    with pytest.raises(ValueError, match="a lease's name") as refusal:
        check_name(text)
    assert len(str(refusal.value).splitlines()) == 1


@pytest.mark.django_db
def test_the_longest_name_fits_its_column():
    RunLease.objects.create(name="仕" * NAME_LENGTH)
    assert RunLease.objects.get().name == "仕" * NAME_LENGTH


def test_what_cannot_be_stored_becomes_the_replacement_character():
    assert storable(f"a\0b{SURROGATE}c") == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}c"


@given(st.text())
def test_what_can_be_stored_stays_as_it_is(text):
    assert storable(text) == text.replace("\0", "\N{REPLACEMENT CHARACTER}")


@pytest.mark.django_db
def test_the_database_stores_every_character_that_storable_lets_pass():
    every = storable("".join(map(chr, range(0x3000))) + SURROGATE + "\U0010ffff")
    with connection.cursor() as cursor:
        cursor.execute("SELECT %s", [every])
        assert cursor.fetchone() == (every,)


@given(st.text(max_size=20), st.integers(min_value=1, max_value=12))
def test_a_tail_is_the_end_of_the_text_and_never_too_long(text, length):
    end = tail(text, length)
    assert len(end) <= length
    if len(text) <= length:
        assert end == storable(text)
    else:
        assert end[0] == "…"
        assert storable(text).endswith(end[1:])


@pytest.mark.parametrize("word", ["TLL", "ttl", "tl"])
def test_a_near_word_is_proposed_in_any_case(word):
    assert did_you_mean(word, ["TTL", "JOBS"]) == 'did you mean "TTL"?'
    assert nearest(word, ["TTL", "JOBS"]) == 'did you mean "TTL"?'


def test_all_words_are_proposed_where_none_is_near():
    assert did_you_mean(42, ["TTL", "JOBS"]) == ""
    assert nearest(42, ["TTL", "JOBS"]) == "write one of TTL, JOBS"
