"""What ``manage.py runlease`` draws on terminals, with rich and without it."""

import re
from datetime import timedelta
from pathlib import Path

import pytest

from django_runlease.clock import Now, Seconds
from django_runlease.display import width

from .factories import RunFactory, RunLeaseFactory
from .support import ROOT, manage
from .terminal import Start, terminal

__all__ = ["terminal"]

pytestmark = pytest.mark.django_db(transaction=True)

SGR = re.compile(r"\x1b\[[0-9;]*m")
RULE = "─" * 20
NAME = "a-rather-long-name-of-a-job-that-does-not-fit-into-eighty-columns"
HOSTILE = "a\x1b[2Jb[red]c\u202e日本\x9bd :smile: \x1b]8;;http://e.org\x07"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A terminal that can do all, however these tests are run."""
    return {"TERM": "xterm", "NO_COLOR": "", "COLUMNS": "", "DJANGO_COLORS": ""}


@pytest.fixture
def without_rich(tmp_path: Path, environment: dict[str, str]) -> dict[str, str]:
    """As if rich was not installed: the finder of a module that Python imports at its start."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Blocker:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'rich':\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Blocker())\n"
        "try:\n"
        "    import rich\n"
        "except ModuleNotFoundError:\n"
        "    del sys.meta_path[0]\n"
        "    sys.modules['rich'] = None\n"
    )
    return environment | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}


def shown(terminal: Start, *words: str, columns: int = 80, **env: str) -> str:
    process = terminal(*words, also=("stdout",), columns=columns, **env)
    code, _ = process.end()
    assert code == 0, process.shown
    return process.shown


@pytest.fixture
def billing() -> None:
    RunLeaseFactory(
        name="billing",
        held=True,
        claimed_at=Now() - Seconds(timedelta(seconds=100)),
        progress={"done": 1, "total": 4, "message": "invoices"},
    )
    RunFactory(lease_name="billing", outcome="failed", reason="no money")
    RunFactory(lease_name="billing", declined=True)


LIST, SHOW, HISTORY = ["list"], ["show", "billing"], ["history"]
PAGES = pytest.mark.parametrize(
    ("words", "columns", "has_table"),
    [
        *((LIST, 40, False), (LIST, 80, True), (LIST, 160, True)),
        *((SHOW, 40, True), (SHOW, 80, True), (HISTORY, 40, False), (HISTORY, 80, True)),
    ],
)


def words_of(page: str) -> list[str]:
    """But for the ages, which move on."""
    return re.findall("[A-Za-z]{3,}", SGR.sub("", page))


@PAGES
def test_pages_are_drawn_by_rich_and_fit_the_terminal(
    terminal, environment, billing, words, columns, has_table
):
    page = shown(terminal, *words, columns=columns, **environment)
    assert "\x1b[1" in page
    assert (RULE in page) == has_table
    assert max(width(line) for line in SGR.sub("", page).splitlines()) <= columns
    told = {"billing", "elsewhere", *((), ("failed", "money"))[words != LIST]}
    assert told <= set(words_of(page))


@PAGES
def test_without_rich_pages_are_plain_coloured_text_and_fit_the_terminal(
    terminal, without_rich, billing, words, columns, has_table
):
    page = shown(terminal, *words, columns=columns, **without_rich)
    assert "\x1b[3" in page
    assert "─" not in page
    assert max(width(line) for line in SGR.sub("", page).splitlines()) <= columns


def test_a_page_says_the_same_with_and_without_rich(terminal, environment, without_rich, billing):
    drawn = shown(terminal, *SHOW, columns=100, **environment)
    assert words_of(drawn) == words_of(shown(terminal, *SHOW, columns=100, **without_rich))


def test_the_progress_of_a_holder_is_a_bar(terminal, environment, without_rich, billing):
    drawn = SGR.sub("", shown(terminal, *SHOW, **environment))
    assert re.search(r"[━╸╺]{20} 25%, 1 of 4, about (5m|4m)", drawn)
    plain = shown(terminal, *SHOW, **without_rich)
    assert re.search(r"\[####-{14}\] 25%, 1 of 4, about (5m|4m)", plain)


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        (["--no-color"], {}),
        ([], {"NO_COLOR": "1"}),
        ([], {"TERM": "dumb"}),
        ([], {"TERM": "unknown"}),
        ([], {"DJANGO_COLORS": "nocolor"}),
    ],
)
def test_a_terminal_that_takes_no_colours_gets_plain_text(
    terminal, environment, billing, words, changed
):
    page = shown(terminal, *SHOW, *words, **environment | changed)
    assert page.replace("\n", "").isprintable()
    assert "─" not in page
    assert "[####" in page


def test_a_terminal_with_another_encoding_gets_plain_text(terminal, environment, billing):
    page = shown(terminal, "show", "billing", **environment, PYTHONIOENCODING="latin-1")
    assert "[####" in page


def test_a_pipe_gets_plain_text_with_or_without_rich(environment, without_rich, billing):
    for env in (environment, without_rich, environment | {"FORCE_COLOR": "1"}):
        done = manage("runlease", "show", "billing", env=env)
        assert done.stdout.replace("\n", "").isprintable()
        assert "[####" in done.stdout


def test_colours_can_be_forced_into_a_pipe_and_against_the_environment(environment, billing):
    for changed in ({}, {"NO_COLOR": "1"}):
        done = manage("runlease", "list", "--force-color", env=environment | changed)
        assert "\x1b[32;1mheld" in done.stdout


def test_a_wide_terminal_shows_long_names_in_full(terminal, environment, without_rich):
    RunLeaseFactory(name=NAME, held=True)
    for env in (environment, without_rich):
        assert NAME in shown(terminal, "list", columns=160, **env)
        assert NAME not in shown(terminal, "list", columns=80, **env)


@pytest.mark.parametrize("words", [LIST, SHOW, HISTORY])
def test_what_somebody_else_wrote_does_not_steer_the_terminal(
    terminal, environment, without_rich, words
):
    RunLeaseFactory(
        name="billing",
        held=True,
        holder=HOSTILE,
        host=HOSTILE * 10,
        paused=True,
        paused_reason=HOSTILE,
        progress={"done": HOSTILE, "total": 1, "message": HOSTILE},
    )
    RunFactory(lease_name="billing", holder=HOSTILE, host=HOSTILE, reason=HOSTILE)
    for env in (environment, without_rich):
        page = SGR.sub("", shown(terminal, *words, columns=40, **env))
        assert page.replace("\n", "").isprintable()
        assert max(width(line) for line in page.splitlines()) <= 40
        assert "b[red]c" in re.sub(r"\s", "", page)
