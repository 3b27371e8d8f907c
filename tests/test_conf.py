"""The setting RUNLEASE: defaults, laziness, and refusals."""

import pytest

from django_runlease.conf import KEYS, conf, configured


def test_without_the_setting_every_key_has_its_default(settings):
    del settings.RUNLEASE
    assert {key: getattr(conf, key) for key in KEYS} == {
        "DATABASE": None,
        "TTL": "5m",
        "JOBS": {},
        "RECORD_DECLINES": True,
        "KEEP_RUNS": "30d",
        "KEEP_DECLINES": "7d",
        "CONFLICT_EXIT_CODE": 0,
        "ALERTS": {},
    }


def test_a_value_is_read_at_the_moment_of_use(settings):
    settings.RUNLEASE = {"TTL": "1m"}
    assert conf.TTL == "1m"
    settings.RUNLEASE["TTL"] = "2m"
    assert conf.TTL == "2m"
    settings.RUNLEASE = {}
    assert conf.TTL == "5m"


@pytest.mark.parametrize("value", [None, [], "TTL", 5, [("TTL", "5m")]])
def test_a_setting_that_is_no_dict_is_refused_in_words(settings, value):
    settings.RUNLEASE = value
    with pytest.raises(ValueError, match="the setting RUNLEASE is a dict, not "):
        conf.TTL  # noqa: B018  reading it raises
    with pytest.raises(ValueError, match="the setting RUNLEASE is a dict, not "):
        configured()


def test_a_wrong_setting_does_not_break_what_looks_at_the_object_itself(settings):
    settings.RUNLEASE = None
    assert not isinstance(conf, dict)
    assert not hasattr(conf, "TLL")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("DATABASE", 5),
        ("DATABASE", ["default"]),
        ("JOBS", None),
        ("JOBS", []),
        ("JOBS", "clearsessions"),
        ("RECORD_DECLINES", None),
        ("RECORD_DECLINES", "no"),
        ("RECORD_DECLINES", 0),
        ("CONFLICT_EXIT_CODE", None),
        ("CONFLICT_EXIT_CODE", "75"),
        ("CONFLICT_EXIT_CODE", True),
        ("CONFLICT_EXIT_CODE", 75.0),
        ("CONFLICT_EXIT_CODE", -1),
        ("CONFLICT_EXIT_CODE", 256),
        ("ALERTS", None),
        ("ALERTS", []),
    ],
)
def test_an_ill_typed_value_is_refused_when_it_is_read(settings, key, value):
    settings.RUNLEASE = {key: value}
    with pytest.raises(ValueError, match=rf'^RUNLEASE\["{key}"\] is ') as refusal:
        getattr(conf, key)
    assert str(refusal.value).endswith(f", not {value!r}")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("DATABASE", None),
        ("DATABASE", "leases"),
        ("JOBS", {"x": {}}),
        ("RECORD_DECLINES", False),
        ("CONFLICT_EXIT_CODE", 0),
        ("CONFLICT_EXIT_CODE", 255),
        ("ALERTS", {"failing": 3}),
    ],
)
def test_a_value_of_the_right_type_is_given_as_it_is(settings, key, value):
    settings.RUNLEASE = {key: value}
    assert getattr(conf, key) is value
