"""The admin in any language: all it says is translated, all that is kept stays English."""

import ast
import json
import re
from datetime import timedelta

import pytest
from django.apps import apps
from django.contrib.admin.models import LogEntry
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.db import connection
from django.urls import reverse
from django.utils import timezone

from django_runlease import clock, endings, incidents, store
from django_runlease.admin.reasons import DECLINED, FORMS, reason
from django_runlease.alerts import RULES, judge
from django_runlease.exceptions import DeclineReason
from django_runlease.holder import this_process
from django_runlease.models import ActionKind, Alert, OperatorAction, Outcome, Run, RunLease
from django_runlease.phrases import translated
from django_runlease.situation import MOST_FAILURES, Situation
from django_runlease.store import Closing
from django_runlease.terms import short, spoken
from django_runlease.thresholds import thresholds

from . import factories
from .factories import AlertFactory, EffectFactory, RunFactory, RunLeaseFactory
from .language import brackets, untranslated, wrong
from .pages import address, send
from .support import ADMINS, MAILERS, ROOT, ago, expire, granted, open_transaction

pytestmark = pytest.mark.django_db

LEASES = reverse("admin:runlease_runlease_changelist")
OVERVIEW = reverse("admin:runlease_runlease_overview")
RUNS = reverse("admin:runlease_run_changelist")
PACKAGE = ROOT / "django_runlease"


@pytest.fixture
def ops(client):
    client.force_login(get_user_model().objects.create_superuser("DATA-ops"))
    return client


def said(response):
    assert response.status_code == 200
    html = response.content.decode()
    assert "⟦" in html
    return untranslated(html)


DATA = {"holder": "DATA-web1:4711", "host": "DATA-web1"}


def ran(name="DATA-a", *, age=3000, length=90, **fields):
    fields = {**DATA, **fields}
    return factories.ran(length, age=age, lease_name=name, **fields)


@pytest.fixture
def everything(db):
    """A lease of each state, and one that has had all that can happen."""
    process = {"pid": 4711, "start": 1, "boot_id": "b", "pid_namespace": "n", "group": 77}
    first = RunLeaseFactory(
        name="DATA-a",
        held=True,
        holder="DATA-shift",
        host="DATA-web1",
        holder_process=process,
        claimed_at=ago(4000),
        renewed_at=ago(280),
        every=timedelta(hours=1),
        last_tick=ago(4000),
        progress={"done": 1, "total": 4, "message": "DATA-invoice"},
    )
    held = {"held": True, **DATA}
    RunLeaseFactory(name="DATA-b", paused=True, paused_by="DATA-bob", paused_reason="DATA-why")
    once = {**held, "ttl": timedelta(minutes=1), "holder_process": process}
    RunLeaseFactory(name="DATA-c", expires_at=ago(61), **once)
    RunLeaseFactory(name="DATA-d", not_before=ago(-90_000))
    RunLeaseFactory(name="DATA-e", heartbeat=False, progress={"done": 5}, **held)
    here = {"host": this_process().host, "holder": "DATA-here"}
    RunLeaseFactory(
        name="DATA-f", held=True, **here, holder_process={**this_process().process, "start": 1}
    )
    for n, outcome in enumerate(Outcome):
        more = {"finished_at": None} if outcome == Outcome.RUNNING else {}
        ran(age=3000 - 200 * n, outcome=outcome, reason="", error="DATA-error", **more)
    ran(age=500, length=80, took_over_from="DATA-web2:7", output="DATA-1\nDATA-2")
    ran(age=520, length=80, lag=timedelta(seconds=70), waited=timedelta(seconds=61), tick=ago(600))
    ran(age=300, outcome="lost", reason="broken by DATA-bob: DATA-fire")
    every_action_of_operators()
    for why in DeclineReason.__args__:
        ran(age=200, length=0, declined=True, reason=why)
    for n, trigger in enumerate(("api", "runjob", "bypass", "testing", "DATA-task")):
        ran(age=190 - n, length=0.1, trigger=trigger, reason="DATA-why")
    for n in range(30):
        ran("DATA-e", age=100 - n, length=0.2, outcome="failed", reason="DATA-oops")
    AlertFactory(lease_name="DATA-a", kind="lost", silenced_until=ago(-90), silenced_by="DATA-bob")
    AlertFactory(lease_name="DATA-a", kind="ghost", opened_at=ago(900), resolved_at=ago(70))
    AlertFactory(lease_name="DATA-removed", kind="failing", severity="critical")
    for n in (1, 2):
        key = f'["DATA-order", {n}]'
        EffectFactory(lease_name="DATA-a", kind="DATA-charge", key=key, generation=n - 1)
    return first


def every_action_of_operators():
    broken = {"was_held": True, "holder": "DATA-web1:4711", "generation": 1}
    broken |= {"free_at": "2030-01-01T00:00:00Z", "connections_ended": 1, "tick_forgotten": True}
    details = {
        ActionKind.BROKEN: broken,
        ActionKind.SILENCED: {"alert": "failing", "until": "2026-01-01T00:00:00Z"},
        ActionKind.UNSILENCED: {"alert": "failing"},
        ActionKind.REMOVED: {"generation": 1},
    }
    told = {"lease_name": "DATA-a", "by": "DATA-bob", "reason": "DATA-why"}
    for n, kind in enumerate(ActionKind):
        detail = details.get(kind, {})
        OperatorAction.objects.create(**told, kind=kind, at=ago(2000 - n), detail=detail)
    broken = {**broken, "connections_ended": 2, "free_at": None}
    more = [ActionKind.BROKEN, broken], [ActionKind.BROKEN, {}], [ActionKind.PAUSED, {}]
    for n, (kind, detail) in enumerate(more):
        OperatorAction.objects.create(**told, kind=kind, at=ago(1000 - n), detail=detail)


@pytest.mark.parametrize(
    "query",
    [
        "",
        "?state=held&outcome=failed",
        "?alerts=open",
        "?q=DATA-a",
        "?q=DATA-none",
        "?host=DATA-web1",
    ],
)
def test_the_list_of_leases_says_nothing_untranslated(ops, everything, query):
    with brackets():
        assert said(ops.get(LEASES + query)) == []


@pytest.mark.parametrize("query", ["", "?within=1h", "?within=30d"])
def test_the_page_of_a_lease_says_nothing_untranslated(ops, everything, query):
    for lease in RunLease.objects.all():
        with brackets():
            assert said(ops.get(address(lease) + query)) == []


@pytest.mark.parametrize("lanes", [2, 50])
def test_the_overview_says_nothing_untranslated(ops, everything, monkeypatch, lanes):
    monkeypatch.setattr("django_runlease.admin.overview.LANES", lanes)
    monkeypatch.setattr("django_runlease.admin.overview.BARS", lanes)
    monkeypatch.setattr("django_runlease.admin.overview.ALERTS", lanes)
    with brackets():
        assert said(ops.get(OVERVIEW)) == []


@pytest.mark.parametrize("place", [LEASES, OVERVIEW, RUNS])
def test_what_is_said_of_nothing_is_translated(ops, place):
    with brackets():
        assert said(ops.get(place)) == []


def test_what_is_said_of_an_empty_log_is_translated(ops, everything):
    with brackets():
        assert said(ops.get(address(everything, "history"))) == []


@pytest.mark.parametrize("query", ["", "?outcome=lost&within=24h", "?lease=DATA-a", "?q=DATA-none"])
def test_the_list_of_runs_says_nothing_untranslated(ops, everything, query, monkeypatch):
    monkeypatch.setattr("django_runlease.admin.base.MOST", 3)
    monkeypatch.setattr("django_runlease.admin.runs.MOST", 3)
    with brackets():
        assert said(ops.get(RUNS + query)) == []


def test_each_run_says_nothing_untranslated(ops, everything):
    for run in Run.objects.filter(lease_name="DATA-a"):
        with brackets():
            assert said(ops.get(reverse("admin:runlease_run_change", args=[run.pk]))) == []


@pytest.fixture
def endings_of_runs(db):
    """How the runs of a lease end that the store closes, or a holder that has lost it."""

    def lost(loss):
        store.close_run(claimed, Closing(outcome=Outcome.LOST, reason=str(loss)))

    done = Closing(outcome=Outcome.FAILED, reason="DATA-boom")
    claimed = granted("DATA-a")
    expire("DATA-a")
    later = granted("DATA-a")
    store.release(claimed, done)
    claimed = later
    lost(store.renew(claimed, timedelta(seconds=60), None) or endings.untrusted(1, beating=True))
    expire("DATA-a")
    claimed = granted("DATA-a")
    expire("DATA-a")
    store.close_dead_runs("default")
    lost(store.renew(claimed, timedelta(seconds=60), None))
    for loss in (
        endings.untrusted(clock.local() - 90, beating=False),
        endings.stalled(clock.local() - 4000, timedelta(hours=1)),
    ):
        claimed = granted("DATA-a")
        lost(loss)
        expire("DATA-a")
    claimed = granted("DATA-a")
    store.break_lease("DATA-a", "default", by="DATA-ann", reason="DATA-fire", at_once=True)
    store.release(claimed, done)
    granted("DATA-a")
    expire("DATA-a")
    store.close_dead_runs("default")
    granted("DATA-a")
    expire("DATA-a")
    granted("DATA-a")
    RunLease.objects.update(holder_process={**this_process().process, "start": 1})
    store.close_dead_runs("default")
    return RunLease.objects.get()


@pytest.mark.django_db(transaction=True)
def test_why_runs_ended_is_translated_as_the_store_has_written_it_down(ops, endings_of_runs):
    runs = list(Run.objects.all())
    written, holder = "\n".join(run.reason for run in runs), endings_of_runs.holder
    for part in (
        f"never released; {holder} took over",
        "never released; its lease had expired",
        "never released; its process is gone",
        f"it expired and {holder} took it over; DATA-boom",
        "it expired before it was renewed",
        "the database has renewed nothing for",
        "it was not renewed for 1m 30s, since",
        "for longer than its stall_after of 1h",
        "broken by DATA-ann: DATA-fire; DATA-boom",
    ):
        assert part in written
    pages = [reverse("admin:runlease_run_change", args=[run.pk]) for run in runs]
    for place in (*pages, RUNS, address(endings_of_runs), OVERVIEW):
        with brackets():
            assert said(ops.get(place)) == []


def test_a_mistake_in_the_settings_is_the_only_thing_that_is_said_in_english(
    ops, everything, settings
):
    settings.RUNLEASE = {"ALERTS": {"failing": 3}}
    for place in (LEASES, OVERVIEW, address(everything)):
        with brackets():
            assert said(ops.get(place)) == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("name", "abcdef")
@pytest.mark.parametrize("action", ["pause", "resume", "break", "silence"])
def test_each_confirmation_says_nothing_untranslated(ops, everything, action, name):
    lease = RunLease.objects.get(name=f"DATA-{name}")
    more = ["lost"] if action == "silence" else []
    given = {"reason": "DATA-why", "length": "24"}
    stale = {"generation": 99, "pause": "[]", "reason": "DATA-why"}
    with brackets():
        assert said(ops.get(address(lease, action, *more), follow=True)) == []
        assert said(ops.post(address(lease, action, *more), {}, follow=True)) == []
        if action in ("break", "resume"):
            changed = send(ops, address(lease, action), **stale)
            assert changed.status_code == 302 or said(changed) == []
        done = send(ops, address(lease, action, *more), **given)
        assert said(ops.get(done.url) if done.status_code == 302 else done) == []
        history = ops.get(address(lease, "history"))
        # The admin's own log is kept in English.
        assert set(said(history)) <= {entry.change_message for entry in LogEntry.objects.all()}
        assert said(ops.get(address(lease))) == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("more", [{"wait": "now"}, {"wait": "now", "force": "on"}])
def test_a_refusal_of_a_break_is_translated(ops, everything, more):
    given = {"reason": "DATA-why", **more}
    lock = "SELECT 1 FROM runlease_runlease WHERE name = 'DATA-a' FOR UPDATE"
    with brackets():
        assert said(send(ops, address(everything, "break"), **given, generation=99)) == []
        assert said(send(ops, address(everything, "break"), **given, generation="")) == []
        if "force" not in more:
            with open_transaction(lock):
                assert said(send(ops, address(everything, "break"), **given)) == []
                assert said(send(ops, address(everything, "pause"), **given)) == []


@pytest.mark.django_db(transaction=True)
def test_a_refusal_of_a_silence_is_translated(ops, everything, settings):
    place = address(everything, "silence", "starved")
    with brackets():
        assert said(ops.post(place, {"length": "4"})) == []
        settings.RUNLEASE = {"ALERTS": {"failing": 3}}
        assert said(ops.post(place, {"length": "4"})) == []


def test_the_names_of_models_and_permissions_are_translated(db):
    with brackets():
        for model in apps.get_app_config("runlease").get_models():
            assert wrong(str(model._meta.verbose_name)) == ""
            assert wrong(str(model._meta.verbose_name_plural)) == ""
            for field in model._meta.concrete_fields:
                assert field.primary_key or wrong(str(field.verbose_name)) == ""
                assert wrong(str(field.help_text)) == ""
            for _, text in model._meta.permissions:
                assert wrong(str(text)) == ""
    assert Permission.objects.get(codename="silence_alert").name == "Can silence an alert"


SITUATION = {
    "name": "DATA-a",
    "every": 100.0,
    "ttl": 60.0,
    "holder": "DATA-web1:7",
    "started_ago": 5000.0,
    "contended": 1,
    "starved": 3,
    "failures": 3,
    "lost_ago": 12.5,
    "uncertain": 2,
}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"expires_in": 30.0, "renewed_ago": 50.0},
        {"expires_in": 90_000.0, "succeeded_ago": 4.0, "contended": 2, "uncertain": 1},
        {"expires_in": 30.0, "is_dead": True, "started_ago": None},
        {"expires_in": -30.0, "left_group": 77, "failures": MOST_FAILURES},
        {"last_duration": float("inf"), "paused_tick_ago": 400.0, "expires_in": -1.0},
        {"name": "clearsessions", "using": "DATA"},
    ],
)
def test_each_alert_has_a_message_and_a_remedy_in_each_language(more):
    findings = judge(Situation(**{**SITUATION, **more}), thresholds())
    assert findings
    for finding in findings:
        with brackets():
            for text in (finding.message, finding.remedy):
                assert wrong(translated(text)) == ""
                assert "⟦" in translated(text)
                assert "⟦" not in text


def test_each_rule_is_in_these_situations():
    seen = set()
    for more in ({"expires_in": 30.0, "renewed_ago": 50.0}, {"expires_in": -1.0}, {}):
        seen |= {each.kind for each in judge(Situation(**{**SITUATION, **more}), thresholds())}
    assert seen == set(RULES)


@pytest.mark.parametrize("seconds", [0, 0.0004, 0.45, 1, 9.5, 12, 130, 5400, 90_000, 86_400, -130])
def test_a_length_of_time_is_the_same_in_english_and_can_be_said_in_other_languages(seconds):
    assert spoken(seconds) == short(seconds)
    with brackets():
        assert spoken(seconds) == short(seconds)
        told = spoken(seconds).translated()
    assert wrong(told) == ""
    assert re.sub("[⟦⟧]", "", told) == short(seconds)


@pytest.mark.django_db(transaction=True)
def test_what_is_recorded_is_english_whatever_language_is_active(caplog, mailoutbox, settings):
    settings.ADMINS, settings.MAILERS = ADMINS, MAILERS
    RunLeaseFactory(name="job", every=timedelta(minutes=1), claimed_at=ago(600))
    RunLeaseFactory(name="other", expired=True)
    RunLeaseFactory(name="third")
    RunFactory.create_batch(3, lease_name="third", outcome="failed")
    caplog.set_level("INFO", "django_runlease")
    with brackets():
        report = incidents.check("default", notify=True)
        assert "⟦" not in json.dumps(report.as_row(), ensure_ascii=False)
    told = [f"{row.message} {row.remedy}" for row in Alert.objects.all()]
    assert len(told) == 3
    told += caplog.messages
    told += [mailoutbox[0].subject, mailoutbox[0].body]
    assert not [text for text in told if "⟦" in text]


def versions_of_alerts():
    with connection.cursor() as cursor:
        cursor.execute("SELECT kind, xmin::text FROM runlease_alert")
        return dict(cursor.fetchall())


@pytest.mark.django_db(transaction=True)
def test_two_checks_in_two_languages_do_not_write_the_same_row_again_and_again():
    RunLeaseFactory(name="job")
    RunFactory.create_batch(3, lease_name="job", outcome="failed")
    incidents.check("default")
    before = versions_of_alerts()
    with brackets():
        incidents.check("default")
    assert versions_of_alerts() == before


@pytest.mark.django_db(transaction=True)
def test_what_an_operator_does_in_another_language_is_kept_in_english(ops, everything):
    given = {"reason": "DATA-why", "wait": "now", "length": "4"}
    with brackets():
        for action, *more in (["pause"], ["resume"], ["break"], ["silence", "lost"]):
            assert send(ops, address(everything, action, *more), **given).status_code == 302
    assert LogEntry.objects.count() == 4
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names():
            if table != "django_session":
                cursor.execute(f'SELECT count(*) FROM "{table}" t WHERE t::text LIKE %s', ["%⟦%"])
                assert cursor.fetchone() == (0,), table


def test_styles_name_no_side_where_they_could_name_the_start_or_the_end():
    css = (ROOT / "django_runlease/static/runlease/admin.css").read_text()
    css = re.sub(r"/\*.*?\*/", "", css, flags=re.S)
    # Where each text finds its own direction, its start is not that of the page.
    css = re.sub(r'\[dir="rtl"\][^{}]*\{[^{}]*\}', "", css)
    assert re.findall(r"[^;{}]*\b(?:left|right)\b[^;{}]*", css) == []
    # Shorthands of four that give the two sides different lengths.
    shorthands = re.findall(
        r"(?:margin|padding|inset):\s*([^\s;]+) ([^\s;]+) ([^\s;]+) ([^\s;]+);", css
    )
    assert [sides for sides in shorthands if sides[1] != sides[3]] == []


def test_time_goes_from_left_to_right_and_shares_from_the_start(ops):
    css = (ROOT / "django_runlease/static/runlease/admin.css").read_text()
    for rule in (
        r"\.runlease-timeline,\s*\.runlease-trend,\s*\.runlease-spark \{ direction: ltr; \}",
        r'\[dir="rtl"\] \.runlease-bar \{ transform: scaleX\(-1\); \}',
    ):
        assert re.search(rule, css), rule


@pytest.mark.parametrize("use_tz", [True, False])
def test_all_instants_are_told_in_the_zone_of_the_reader(ops, everything, settings, use_tz):
    settings.USE_TZ = use_tz
    run = Run.objects.filter(lease_name="DATA-a").exclude(tick=None).get()
    places = [LEASES, OVERVIEW, RUNS, address(everything), address(everything, "break")]
    places.append(reverse("admin:runlease_run_change", args=[run.pk]))
    for zone, name, other in (("Asia/Tokyo", "JST", "MST"), ("America/Phoenix", "MST", "JST")):
        for place in places:
            with timezone.override(zone):
                html = ops.get(place).content.decode()
            assert name in html, place
            assert f" {other}" not in html, place
            assert " UTC" not in html, place


TEXTS = {"_": 1, "gettext": 1, "gettext_lazy": 1, "ngettext": 2, "pgettext": 2, "pgettext_lazy": 2}
"""The functions that makemessages knows, and how many texts they are given."""


def test_makemessages_finds_every_text():
    seen = 0
    for module in (ROOT / "django_runlease").rglob("*.py"):
        if module.name == "phrases.py":
            continue
        for call in ast.walk(ast.parse(module.read_text())):
            if not isinstance(call, ast.Call):
                continue
            name = getattr(call.func, "id", getattr(call.func, "attr", ""))
            for text in call.args[: TEXTS.get(name, 0)]:
                place = f"{module}:{call.lineno}"
                assert isinstance(text, ast.Constant), f"{place}: not a literal"
                assert text.value.count("{}") <= 1, f"{place}: name the facts"
                assert "%s" not in text.value, f"{place}: name the facts"
                seen += 1
    assert seen > 200


def test_every_reason_of_a_declined_tick_has_words():
    assert set(DeclineReason.__args__) == set(DECLINED)


WRITERS = ("store/*", "endings", "held", "interrupts", "runner", "supervisor", "watch", "fencing")
"""The modules that say why a run ended."""

SAID = {"reason", "detail"}


def sentences():
    """The texts that these write: what they call a reason or a detail, and what errors say."""
    for module in (path for name in WRITERS for path in PACKAGE.glob(f"{name}.py")):
        for node in ast.walk(ast.parse(module.read_text())):
            match node:
                case ast.Call(keywords=keywords):
                    called = getattr(node.func, "id", "")
                    found = [each.value for each in keywords if each.arg in SAID]
                    found += node.args[1:2] if called in ("LeaseLost", "JobTimeout") else []
                case ast.Assign(targets=[target], value=value):
                    name = getattr(target, "id", getattr(target, "attr", ""))
                    found = [value] if name in SAID else []
                case ast.FunctionDef(name="_reason"):
                    found = [
                        part
                        for each in ast.walk(node)
                        if isinstance(each, ast.Return) and each.value
                        for part in ast.walk(each.value)
                    ]
                case _:
                    found = []
            yield from filter(None, map(filled, found))


FACTS = {
    "silent": "5m 3s",
    "since": "2026-01-01 00:00:00 UTC",
    "short": "90s",
    "_moment": "2026-01-01 00:00:00 UTC",
    "_signal_name": "SIGHUP",
    "returncode": "3",
    "Signals": "SIGTERM",
    "loss": "its row was deleted",
    "otherwise": "it was not a moment ago",
    "BROKEN": "broken by ",
}


def filled(node):
    """A text of several words, with facts of its kinds."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
        return node.value
    if not isinstance(node, ast.JoinedStr):
        return ""
    parts = []
    for part in node.values:
        names = {getattr(each, "id", getattr(each, "attr", "")) for each in ast.walk(part)}
        facts = [fact for name, fact in FACTS.items() if name in names]
        parts.append(part.value if isinstance(part, ast.Constant) else (*facts, "DATA-x")[0])
    text = "".join(parts)
    return "" if set(text) <= {*"DATA-x; "} else text


def test_every_reason_that_is_written_down_has_words():
    found = set(sentences())
    assert len(found) >= 20
    with brackets():
        assert [text for text in sorted(found) if wrong(reason(text, "lost"))] == []


def test_every_form_of_a_reason_is_one_that_is_written_down():
    # Some signals have no name.
    written = "\n".join([*sentences(), "killed by signal 37"])
    for form in FORMS:
        head = form.partition("%(")[0]
        assert head in written, form


def test_the_script_that_counts_down_has_its_words_from_the_page(ops, everything):
    with brackets():
        html = ops.get(LEASES).content.decode()
    forms = json.loads(re.search(r'data-runlease-units="([^"]*)"', html)[1].replace("&quot;", '"'))
    assert forms == ["⟦⟧{}⟦ ⟧{}⟦⟧", *(f"⟦⟧{{}}⟦{unit}⟧" for unit in "dhms")]
