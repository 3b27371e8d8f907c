"""Rules and thresholds: merged rule by rule and key by key, and every mistake named."""

from datetime import timedelta

import pytest

from django_runlease import thresholds as module
from django_runlease.models import AlertKind
from django_runlease.thresholds import RULES, problems, thresholds

DEFAULTS = {
    "overrun": {"share": 0.8},
    "contention": {"count": 1, "window": 3600.0},
    "starved": {"count": 3},
    "overdue": {"grace": None},
    "failing": {"count": 3},
    "stuck": {},
    "ghost": {},
    "lost": {},
    "uncertain": {},
}


def test_without_any_layer_all_rules_are_on_with_their_defaults():
    assert thresholds() == thresholds(("a", {}), ("b", None)) == DEFAULTS


def test_there_is_an_entry_for_each_kind_of_alert():
    assert list(RULES) == AlertKind.values


def test_a_stronger_layer_replaces_single_keys():
    merged = thresholds(
        ("weak", {"contention": {"count": 5, "window": "2h"}, "failing": {"count": 9}}),
        ("strong", {"contention": {"window": timedelta(minutes=1)}}),
    )
    assert merged == {
        **DEFAULTS,
        "contention": {"count": 5, "window": 60.0},
        "failing": {"count": 9},
    }


@pytest.mark.parametrize(
    ("weak", "strong", "result"),
    [
        (False, None, None),
        (False, True, {"count": 3}),
        (False, {}, {"count": 3}),
        (False, {"count": 1}, {"count": 1}),
        ({"count": 1}, False, None),
        ({"count": 1}, True, {"count": 1}),
    ],
)
def test_a_rule_is_turned_off_and_on_again(weak, strong, result):
    merged = thresholds(("weak", {"failing": weak}), ("strong", {"failing": strong}))
    assert merged.get("failing") == result


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3, "here is a dict of rules, not 3"),
        ({"overun": {}}, """here: unknown rule 'overun': did you mean "overrun"?"""),
        ({7: {}}, "here: unknown rule 7: write one of overrun, contention"),
        (
            {"failing": 3},
            """here["failing"] is a dict such as {'count': 3}, True or False, not 3""",
        ),
        (
            {"failing": {"counts": 3}},
            """here["failing"]: unknown key 'counts': did you mean "cou""",
        ),
        ({"ghost": {"count": 3}}, "here[\"ghost\"]: unknown key 'count': this rule has no keys"),
        ({"failing": {"count": 0}}, 'here["failing"]["count"]: 0 is not a whole number'),
        ({"failing": {"count": True}}, "True is not a whole number"),
        ({"failing": {"count": "3"}}, "'3' is not a whole number"),
        ({"overrun": {"share": 0}}, 'here["overrun"]["share"]: 0 is not a share'),
        ({"overrun": {"share": float("nan")}}, "nan is not a share"),
        ({"overrun": {"share": float("inf")}}, "inf is not a share"),
        ({"overrun": {"share": True}}, "True is not a share"),
        ({"contention": {"window": "soon"}}, 'here["contention"]["window"]: \'soon\' is not'),
        ({"contention": {"window": None}}, "None is not a duration"),
        ({"overdue": {"grace": "-1s"}}, 'here["overdue"]["grace"]: \'-1s\' is not'),
    ],
)
def test_a_mistake_is_named_with_its_place_and_the_remedy(given, message):
    (problem,) = problems(("here", given))
    assert message in problem
    with pytest.raises(ValueError, match="here"):
        thresholds(("before", {}), ("here", given))


def test_all_mistakes_of_a_layer_are_found():
    given = {"overun": {}, "failing": {"count": 0, "counts": 1}, "ghost": 1}
    assert len(list(problems(("here", given)))) == 4


def test_the_documented_defaults_are_those_of_the_rules():
    lines = module.__doc__.split("=\n")[2].splitlines()
    documented, rule = {}, ""
    for line in lines[:-1]:
        rule, key, default = line[:10].strip() or rule, line[12:18].strip(), line[20:27].strip()
        documented[rule, key] = eval(default, {})
    assert documented == {
        (rule, key): known.default for rule, keys in RULES.items() for key, known in keys.items()
    }
