"""The page of one lease in the admin: its holder, what happened, and how long it took."""

import os
import re
import subprocess
from datetime import timedelta
from html import unescape

import pytest
from django.contrib.admin import site
from django.contrib.auth import get_user_model
from django.test import RequestFactory
from django.urls import reverse

from django_runlease.admin import charts, pictures, words
from django_runlease.admin.figures import Bar, Window
from django_runlease.admin.steps import steps
from django_runlease.holder import group_led_by, this_process
from django_runlease.models import AlertKind, Run, RunLease

from .factories import AlertFactory, EffectFactory, RunLeaseFactory, ran
from .pages import HOSTILE, Page, address
from .plans import count_queries
from .support import ago

pytestmark = pytest.mark.django_db


def page(client, lease, **query):
    return Page(client.get(address(lease), query))


def test_the_card_tells_who_holds_it_where_since_when_and_what_it_does(ops):
    lease = RunLeaseFactory(
        name="job",
        held=True,
        host=this_process().host,
        holder="here:1",
        holder_process={**this_process().process, "group": 77, "runs": "/usr/bin/pg_dump"},
        claimed_at=ago(75),
        every=timedelta(hours=1),
        progress={"done": 1, "total": 4, "message": "invoice 9"},
    )
    text = page(ops, lease).text
    for said in (
        *("Holder here:1", f"Host {this_process().host}"),
        *(
            "Runs /usr/bin/pg_dump , process group 77",
            "25%, 1 of 4 done",
            "invoice 9",
            "Interval 1h",
            "Generation 1",
        ),
        f"Process {this_process().process['pid']}, started",
    ):
        assert said in text
    assert re.search(r"1m [1-5]\ds ago", text)
    assert re.search(r"expires in 4m [1-5]\ds", text)


def test_a_process_that_is_seen_to_be_gone_is_told(ops):
    process = {**this_process().process, "start": 1}
    lease = RunLeaseFactory(name="job", held=True, host=this_process().host, holder_process=process)
    assert f"Process {process['pid']}, which is gone" in page(ops, lease).text


def test_a_function_is_told_from_a_program_and_a_renewal_by_hand_from_a_heartbeat(ops):
    text = page(ops, RunLeaseFactory(name="job", held=True, heartbeat=False)).text
    assert "Runs a function or command, in that process" in text
    assert "by the job itself: it has no heartbeat" in text


def test_a_free_lease_has_no_holder_and_says_when_it_was_last_started_and_may_be_next(ops):
    lease = RunLeaseFactory(
        name="job",
        claimed_at=ago(3600),
        not_before=ago(-90.5),
        last_tick=ago(3600),
        paused=True,
        paused_by="ada",
        paused_reason="no paper",
    )
    said = page(ops, lease)
    assert not said.all("section", **{"aria-labelledby": "runlease-holder"})
    for words_ in ("Paused by ada", "no paper", "Last start", "Last tick"):
        assert words_ in said.text
    assert re.search(r"in 1m \d+s", said.text)


def test_a_timeline_draws_runs_by_outcome_declined_ticks_takeovers_and_breaks(ops):
    lease = RunLeaseFactory(name="job")
    ran(3600, age=6 * 3600)
    ran(600, age=4 * 3600, outcome="lost", reason="broken by ada")
    ran(600, age=2 * 3600, took_over_from="web1:7", outcome="terminated")
    ran(age=3600, declined=True)
    ran(age=3600, trigger="bypass")
    ran(age=86_400 + 3600)
    said = page(ops, lease)
    assert (
        "3 runs, 1 succeeded, 1 lost, 1 terminated, 1 declined tick, 1 takeover, 1 break"
        in said.text
    )
    (green,) = (
        bar
        for bar in said.all("rect", **{"class": "runlease-fill runlease-good"})
        if bar["height"] == str(charts.LANE_HEIGHT)
    )
    assert float(green["x"].rstrip("%")) == pytest.approx(75, abs=0.1)
    assert float(green["width"].rstrip("%")) == pytest.approx(100 / 24, abs=0.1)


def test_a_run_that_goes_on_is_drawn_however_long_ago_it_began(ops):
    lease = RunLeaseFactory(name="job", held=True)
    ran(age=3 * 86_400, outcome="running", finished_at=None)
    assert "1 run, 1 running" in page(ops, lease, within="1h").text


def test_two_runs_at_once_stand_out():
    def bar(start, end):
        return Bar(start=start, end=end, outcome="succeeded")

    window = Window(runs=(bar(0, 10), bar(4, 6), bar(10, 12), bar(11, 15)))
    assert window.overlaps == [(4, 6), (11, 12)]
    assert not Window(runs=(bar(0, 10), bar(10, 20))).overlaps


def test_a_picture_has_a_title_a_description_and_a_table(ops):
    lease = RunLeaseFactory(name="job", every=timedelta(seconds=40))
    for n in range(1, 4):
        ran(10 * n, age=3600 * n, waited=timedelta(seconds=n), reason="because")
    said = page(ops, lease)
    pictures = [found for found in said.all("svg", role="img") if "aria-labelledby" in found]
    assert len(pictures) == 2
    for found in pictures:
        for key in ("aria-labelledby", "aria-describedby"):
            assert f'id="{found[key]}"' in said.html
    assert "Duration 10s 20s 29s 30s" in said.text
    assert "Wait for the lease 1s 2s 2.9s 3s" in said.text
    assert "Share of the interval 25% 50% 72% 75%" in said.text
    assert said.text.count("because") >= 3


@pytest.mark.parametrize(
    ("within", "expected"), [("1h", 1), ("24h", 2), ("7d", 3), ("30d", 4), ("x", 2), (None, 2)]
)
def test_the_period_can_be_chosen(ops, within, expected):
    lease = RunLeaseFactory(name="job")
    for hours in (0.5, 20, 6 * 24, 29 * 24, 31 * 24):
        ran(age=hours * 3600)
    query = {} if within is None else {"within": within}
    assert f"{expected} run" in page(ops, lease, **query).text


def test_alerts_say_what_to_do_and_effects_what_to_look_at(ops):
    lease = RunLeaseFactory(name="job")
    AlertFactory(lease_name="job", kind="uncertain", silenced_until=ago(-90), silenced_by="bob")
    EffectFactory(lease_name="job", key='["order", 7]')
    text = page(ops, lease).text
    for said in (
        *("1 external action begun", "See manage.py runlease effects", "silenced until"),
        *("by bob", "1 action outside", "order, 7"),
    ):
        assert said in text


def test_of_many_uncertain_effects_the_newest_are_listed_and_all_are_counted(ops, monkeypatch):
    monkeypatch.setattr("django_runlease.admin.lease.EFFECTS", 3)
    lease = RunLeaseFactory(name="job")
    EffectFactory(lease_name="other", key='["order", 99]')
    for number in range(3):
        EffectFactory(lease_name="job", key=f'["order", {number}]')
    assert "3 actions outside" in page(ops, lease).text
    EffectFactory(lease_name="job", key='["order", 3]')
    said = page(ops, lease)
    assert "4 actions outside" in said.text
    assert re.findall(r"order, \d+", said.text) == ["order, 3", "order, 2", "order, 1"]
    assert "Only the 3 newest are listed" in said.text


def test_many_runs_take_as_many_queries_as_few_and_are_cut(ops, monkeypatch):
    monkeypatch.setattr("django_runlease.admin.lease.DRAWN", 5)
    lease = RunLeaseFactory(name="job")
    ran()
    ran(declined=True, age=3000)

    def queries():
        return count_queries(lambda: page(ops, lease))

    def is_cut():
        return "Only the 5 newest are drawn" in page(ops, lease).text

    few = queries()
    assert not is_cut()
    for n in range(20):
        ran(age=3600 - n)
        ran(age=3600 - n, declined=True)
    assert queries() == few
    assert is_cut()


def test_hostile_text_stays_text_and_nothing_is_inline(ops):
    name = HOSTILE[:150].strip()
    lease = RunLeaseFactory(
        name=name,
        held=True,
        holder=HOSTILE,
        host=HOSTILE,
        paused=True,
        paused_by=HOSTILE,
        paused_reason=HOSTILE,
        progress={"message": HOSTILE},
    )
    fields = dict.fromkeys(("reason", "holder", "took_over_from"), HOSTILE)
    ran(lease_name=name, **fields)
    AlertFactory(lease_name=name, kind="ghost", message=HOSTILE, remedy=HOSTILE)
    said = page(ops, lease)
    assert "<script>alert" not in said.html
    assert HOSTILE in said.text
    assert not said.refused
    assert re.search(r"<bdi>.*script", said.html)


def test_an_unknown_lease_is_not_found(ops):
    for key in ("4711", "x", "_"):
        assert ops.get(reverse("admin:runlease_runlease_change", args=[key])).status_code == 404


def test_runs_that_nobody_could_tell_apart_are_drawn_as_one_and_others_are_not():
    def bar(start, end, **more):
        return Bar(start=start, end=end, **{"outcome": "succeeded", **more})

    def drawn(*bars):
        scale = charts.Scale(since=0, until=100_000)
        html = pictures.timeline(Window(runs=bars), scale, key="x", title="x")
        return html.count('height="26"') - 1, html

    count, html = drawn(bar(0, 50), bar(60, 90), bar(100, 150))
    assert count == 1
    assert "3 runs from" in html
    assert drawn(bar(0, 50), bar(200, 250))[0] == 2
    assert drawn(bar(0, 50), bar(60, 90, outcome="failed"))[0] == 2
    assert drawn(bar(0, 50), bar(60, 90, took_over_from="a"))[0] == 2
    assert drawn(bar(0, 50), bar(40, 90))[0] == 2, "they overlap"
    failed = drawn(bar(0, 50, outcome="failed"), bar(60, 90, outcome="failed"))
    assert (failed[0], failed[1].count(charts.SIGNS["wrong"])) == (1, 1)


def first_lines(client, lease):
    """What stands above all else on its page."""
    html = page(client, lease).html
    start = html.index('class="runlease-state"')
    shown = re.sub(r"<svg.*?</svg>|<[^>]*>", " ", html[start : html.index("</p>", start)])
    return unescape(" ".join(shown.split(">", 1)[1].split()))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"held": True, "claimed_at": ago(130)}, r"held by elsewhere:4711 for 2m \d+s"),
        (
            {"held": True, "renewed_at": ago(250)},
            r"not renewed for 4m \d+s, held by elsewhere:4711",
        ),
        ({"expired": True, "expires_at": ago(90)}, r"expired 1m \d+s ago , held by elsewhere:4711"),
        ({"paused": True}, r"paused"),
        ({"paused": True, "paused_by": "bob"}, r"paused by bob"),
        ({"paused": True, "paused_by": "bob", "paused_reason": "x"}, r"paused by bob : x"),
        (
            {"held": True, "paused": True, "paused_by": "bob", "claimed_at": ago(130)},
            r"paused by bob Still held by elsewhere:4711 for 2m \d+s",
        ),
        ({}, r"free"),
    ],
)
def test_the_state_with_who_and_why_stands_on_top_and_then_how_it_went_last(ops, fields, said):
    lease = RunLeaseFactory(name="job", **fields)
    ran(outcome="failed", age=130)
    ran(outcome="running", finished_at=None, age=5)
    assert re.fullmatch(rf"{said} Last run: failed 2m( \d+s)? ago", first_lines(ops, lease))


def test_a_job_that_never_ran_says_how_to_start_it(ops):
    lease = RunLeaseFactory(name="Bob's job")
    command = "manage.py runjob 'Bob'\"'\"'s job'"
    said = f"free The history has no run of it. To start one: {command}"
    assert first_lines(ops, lease) == said
    assert "None yet" in page(ops, lease).text
    assert "No run started in this period" in page(ops, lease).text


def in_sight(said):
    """The page without what is folded."""
    html = re.sub(r"<details>.*?</details>", "", said.html, flags=re.S)
    return " ".join(re.sub(r"<svg.*?</svg>|<[^>]*>", " ", html, flags=re.S).split())


def test_the_ten_newest_runs_are_in_sight_each_with_a_link_however_old_they_are(ops):
    lease = RunLeaseFactory(name="job")
    kept = [
        ran(90, age=40 * 86_400 - n, waited=timedelta(seconds=7), lag=timedelta(seconds=8))
        for n in range(12)
    ]
    ran(age=60, declined=True)
    ran(age=50, trigger="bypass")
    Run.objects.filter(pk=kept[-1].pk).update(outcome="lost", reason="broken by ada", host="web9")
    said = page(ops, lease)
    links = [link["href"] for link in said.all("a") if "/runlease/run/" in str(link["href"])]
    runs = [reverse("admin:runlease_run_change", args=[run.pk]) for run in reversed(kept)]
    assert [link for link in links if link in runs] == runs[:10]
    assert "1m 30s 7s 8s web9 broken by ada" in in_sight(said)
    assert f"{reverse('admin:runlease_run_changelist')}?lease=job" in links


def test_takeovers_are_told_among_the_reasons(ops):
    lease = RunLeaseFactory(name="job")
    ran(took_over_from="web1:7")
    assert "took over from web1:7" in in_sight(page(ops, lease))


def test_declined_ticks_are_counted_by_reason_and_runs_by_outcome_in_sight(ops):
    lease = RunLeaseFactory(name="job")
    for n, reason in enumerate(("held", "held", "paused", "busy", "not_due", "same_tick")):
        ran(age=60 + n, declined=True, reason=reason)
    for n in range(3):
        ran(age=600 * n + 700, outcome="failed" if n else "succeeded")
    said = in_sight(page(ops, lease))
    for words_ in (
        *("succeeded 1 33%", "failed 2 66%", "Declined: the lease was held 2"),
        *("Declined: the lease was paused 1", "Declined: the lease's row was locked 1"),
        "Declined: too early: its minimum hold lasted, or the wait after a break 1",
        "Declined: the tick had had its run 1",
    ):
        assert words_ in said.replace("&#x27;", "'")


def test_all_runs_of_the_period_are_counted_though_not_all_are_drawn(ops, monkeypatch):
    monkeypatch.setattr("django_runlease.admin.lease.DRAWN", 3)
    lease = RunLeaseFactory(name="job")
    for n in range(7):
        ran(age=600 * n + 700, took_over_from="web1:7")
    said = page(ops, lease)
    assert "succeeded 7 100% What else happened Takeovers 3 or more" in in_sight(said)
    assert said.all("line", **{"class": "runlease-undrawn"})


def test_a_lane_is_broken_before_the_time_from_which_all_is_drawn():
    def drawn(**more):
        return pictures.timeline(
            Window(**more), charts.Scale(since=0, until=100), key="x", title="x"
        )

    assert 'x="0%" y="16" width="100%"' in drawn()
    assert "runlease-undrawn" not in drawn()
    assert 'x="75%" y="16" width="25%"' in drawn(drawn_since=75.0)
    assert 'x2="75%" y1="29.0"' in drawn(drawn_since=75.0)


def test_an_alert_that_is_silenced_has_a_link_to_change_that(ops):
    lease = RunLeaseFactory(name="job")
    AlertFactory(lease_name="job", kind="lost", silenced_until=ago(-600), silenced_by="ann")
    ran(outcome="lost")
    said = page(ops, lease)
    assert re.search(
        r"Noticed .{,9} ago \. See .* by ann Its lost runs Change the silence", said.text
    )
    assert said.all("a", href=address(lease, "silence", "lost"))


STEPS = {
    "overrun": [],
    "contention": ["{runs}&outcome=declined"],
    "starved": ["{lease}break/"],
    "overdue": [],
    "failing": ["{runs}"],
    "stuck": ["{lease}break/"],
    "ghost": ["{lease}break/"],
    "lost": ["{runs}&outcome=lost"],
    "uncertain": ["#runlease-effects"],
}


@pytest.mark.parametrize("kind", AlertKind.values)
def test_an_alert_leads_to_where_something_can_be_done_about_it(ops, client, kind):
    lease = RunLeaseFactory(name="job", held=True)
    runs = f"{reverse('admin:runlease_run_changelist')}?lease=job"
    wanted = [step.format(runs=runs, lease=address(lease, "break")[:-6]) for step in STEPS[kind]]
    alert = {"kind": kind, "silenced": False}

    def led(user):
        request = RequestFactory().get("/")
        request.user = user
        site_admin = site.get_model_admin(RunLease)
        row = site_admin.get_queryset(request).get()
        return [place for place, _ in steps(site_admin, request, row, alert)]

    assert led(get_user_model().objects.get()) == [*wanted, address(lease, "silence", kind)]
    only_looks = get_user_model().objects.create_user("eve", is_staff=True)
    assert led(only_looks) == [place for place in wanted if place.startswith("#")]


@pytest.mark.parametrize("kind", ["starved", "stuck", "ghost"])
def test_an_alert_leads_to_no_break_of_what_nobody_holds(ops, kind):
    lease = RunLeaseFactory(name="job")
    request = RequestFactory().get("/")
    request.user = get_user_model().objects.get()
    site_admin = site.get_model_admin(RunLease)
    row = site_admin.get_queryset(request).get()
    led = [place for place, _ in steps(site_admin, request, row, {"kind": kind, "silenced": True})]
    assert led == [address(lease, "silence", kind)]


def test_commands_are_set_as_code_whatever_is_in_them(ops):
    name = "a`b <i>"
    lease = RunLeaseFactory(name=name)
    AlertFactory(lease_name=name, kind="failing")
    for outcome in ("failed",) * 3:
        ran(lease_name=name, outcome=outcome)
    assert "See `manage.py runlease history &#x27;a`b &lt;i&gt;&#x27;` for" in page(ops, lease).html
    assert words.prose("see `a <b>`, `c`") == (
        "see <code><bdi>a &lt;b&gt;</bdi></code>, <code><bdi>c</bdi></code>"
    )


def test_an_interval_far_above_all_runs_is_told_and_does_not_press_them_to_the_ground(ops):
    lease = RunLeaseFactory(name="job", every=timedelta(hours=1))
    ran(age=500, length=10)
    said = page(ops, lease)
    assert "every 1h: far above all that is drawn 95% within 10s half within 10s" in said.text
    assert [line["class"] for line in said.all("line") if "runlease-level" in line["class"]] == [
        "runlease-level runlease-p95",
        "runlease-level runlease-median",
        # and once more in the legend
        "runlease-level runlease-p95",
        "runlease-level runlease-median",
    ]


def test_an_interval_that_the_runs_come_near_is_a_line_among_them(ops):
    lease = RunLeaseFactory(name="job", every=timedelta(seconds=30))
    ran(age=500, length=10)
    said = page(ops, lease)
    assert "every 30s 95% within 10s half within 10s" in said.text
    assert len(said.all("line", **{"class": "runlease-level runlease-every"})) == 2


def test_the_generation_is_on_the_holders_card(ops):
    said = page(ops, RunLeaseFactory(name="job", held=True, generation=42)).text
    assert said.count("Generation 42") == 1
    assert said.index("Generation 42") < said.index("Job Interval")
    assert "Generation 5" in page(ops, RunLeaseFactory(name="free", generation=5)).text


def test_a_process_that_is_gone_while_its_program_goes_on_is_called_gone(ops):
    program = subprocess.Popen(["sleep", "600"], process_group=0)
    me = this_process()
    process = {**me.process, "start": 1, **group_led_by(program.pid)}
    try:
        lease = RunLeaseFactory(name="job", held=True, host=me.host, holder_process=process)
        assert f"{os.getpid()}, which is gone; its program goes on" in page(ops, lease).text
    finally:
        program.kill()
        program.wait()


def test_every_part_that_may_appear_has_its_place_for_the_refresh(ops):
    def parts(lease):
        return {found.get("data-runlease-refresh") for found in page(ops, lease).all("div")}

    busy = RunLeaseFactory(name="job", held=True)
    ran()
    AlertFactory(lease_name="job")
    assert parts(busy) == parts(RunLeaseFactory(name="idle")) > {"headline", "actions", "trend"}


def test_a_pause_without_a_reason_has_no_empty_line_for_one(ops):
    said = page(ops, RunLeaseFactory(name="job", paused=True, paused_by="bob"))
    assert "Paused by bob Generation" in said.text
