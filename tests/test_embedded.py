"""The embedded PostgreSQL of the example project, used by real processes."""

import json
import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import environ
import psutil
import psycopg
import pytest

from example_project import embedded

ROOT = Path(__file__).parents[1]
AS_ROOT = os.geteuid() == 0
DEADLINE = 60.0

# Says that it is there, waits for a word, uses the server, and ends at the end of its input.
USER = """
import json, sys
from pathlib import Path
import environ, psycopg
from example_project import embedded

print(flush=True)
sys.stdin.readline()
try:
    url = embedded.database_url(Path(sys.argv[1]))
except RuntimeError as error:
    answer = {"error": str(error)}
else:
    db = environ.Env.db_url_config(url)
    address = {"host": db["HOST"], "port": db["PORT"], "user": db["USER"], "dbname": db["NAME"]}
    with psycopg.connect(**address) as connection:
        started = connection.execute("SELECT pg_postmaster_start_time()").fetchone()[0]
    answer = {"url": url, "started": str(started)}
print(json.dumps(answer), flush=True)
sys.stdin.read()
"""


class User:
    """A process that uses the server in a folder."""

    def __init__(self, folder: Path, temporary: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", USER, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ
            | {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(temporary), "PGPORT": "1"},
        )

        self.is_ready = False

    def ready(self) -> "User":
        """Wait until the process has done all but using the server."""
        assert self.process.stdout is not None
        self.is_ready = self.is_ready or self.process.stdout.readline() == "\n"
        assert self.is_ready
        return self

    def go(self) -> "User":
        self.ready()
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self

    def answer(self) -> dict[str, str]:
        assert self.process.stdout is not None
        answer: dict[str, str] = json.loads(self.process.stdout.readline())
        return answer

    def end(self) -> None:
        self.process.communicate(timeout=DEADLINE)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=DEADLINE)


NewUser = Callable[[Path], User]


def until(condition: Callable[[], Any]) -> Any:
    """Wait for `condition` and return what it returned."""
    deadline = time.monotonic() + DEADLINE
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.002)
    return found


def processes(place: Path, word: str) -> list[psutil.Process]:
    """The living processes below `place` whose command line contains `word`, without those that
    one of them has just forked."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter(["cmdline", "status"]):
        line = " ".join(process.info["cmdline"] or ())
        if process.info["status"] != psutil.STATUS_ZOMBIE and str(place) in line and word in line:
            found.append(process)
    return [process for process in found if process.ppid() not in [other.pid for other in found]]


def left(place: Path) -> list[psutil.Process]:
    return [*processes(place, "bin/postgres"), *processes(place, "embedded.py")]


def started(url: str) -> str:
    """The start time of the server at `url`."""
    db = environ.Env.db_url_config(url)
    with psycopg.connect(
        host=db["HOST"], port=db["PORT"], user=db["USER"], dbname=db["NAME"]
    ) as connection:
        row = connection.execute("SELECT pg_postmaster_start_time()").fetchone()
    assert row is not None
    return str(row[0])


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A directory that every user can traverse, unlike tmp_path, with one for temporary files."""
    place = Path(tempfile.mkdtemp(prefix="embedded-")).resolve()
    place.chmod(0o755)
    (place / "tmp").mkdir()
    yield place
    for process in left(place):
        process.kill()
    shutil.rmtree(place)


@pytest.fixture
def new_user(place: Path) -> Iterator[NewUser]:
    users: list[User] = []

    def new_user(folder: Path) -> User:
        users.append(User(folder, place / "tmp"))
        return users[-1]

    yield new_user
    for user in users:
        if user.process.returncode is None:
            user.kill()
    try:
        until(lambda: not left(place))
    finally:
        for process in left(place):
            process.kill()


@pytest.fixture(scope="module")
def folder(place: Path) -> Path:
    """The folder of a server that has run and ended."""
    folder = place / "pg"
    user = User(folder, place / "tmp").go()
    assert "url" in user.answer()
    user.end()
    until(lambda: not left(place))
    return folder


def test_first_users_at_once_share_one_server(place: Path, new_user: NewUser) -> None:
    """Eight processes that start at once on a new folder all work with the same server."""
    users = [new_user(place / "new" / "pg") for _ in range(8)]
    for user in users:
        user.ready()
    for user in users:
        user.go()
    answers = [user.answer() for user in users]
    assert "started" in answers[0]
    assert answers == answers[:1] * 8
    assert len(processes(place, "embedded.py")) == 1


def test_server_ends_with_its_last_user(folder: Path, new_user: NewUser, place: Path) -> None:
    """The server outlives the user that started it, and ends when no user is left."""
    first = new_user(folder).go()
    answer = first.answer()
    second = new_user(folder).go()
    assert second.answer() == answer
    first.end()
    assert started(answer["url"]) == answer["started"]
    second.end()
    until(lambda: not left(place))


def test_server_ends_with_killed_users(folder: Path, new_user: NewUser, place: Path) -> None:
    """SIGKILL of all users leaves nothing behind."""
    users = [new_user(folder).go() for _ in range(2)]
    assert users[0].answer() == users[1].answer()
    for user in users:
        user.kill()
    until(lambda: not left(place))


def test_user_during_the_stop(folder: Path, new_user: NewUser, place: Path) -> None:
    """A user that comes just when the last one goes has a server, with a reaper, all its life."""
    user = new_user(folder).go()
    answer = user.answer()
    for turn in range(6):
        following = new_user(folder).ready()
        # In even turns before the reaper notices, in odd ones most likely while it stops the server
        user.kill() if turn % 2 else user.process.kill()
        answer = following.go().answer()
        assert started(answer["url"]) == answer["started"]
        user = following
    user.kill()
    until(lambda: not left(place))


def test_stale_pid_file(folder: Path, new_user: NewUser, place: Path) -> None:
    """The files of a dead server that name a living stranger's process do not matter to either."""
    identity: dict[str, Any] = {}
    if AS_ROOT:  # PostgreSQL takes note only of processes that it may signal
        nobody = pwd.getpwnam("nobody")
        identity = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    stranger = subprocess.Popen(["sleep", "300"], cwd="/", **identity)
    user = new_user(folder).go()
    assert "url" in user.answer()
    data = (folder / "data").resolve()
    names = ("postmaster.pid", ".s.PGSQL.5432.lock")
    texts = {name: (data / name).read_text() for name in names}
    user.end()
    until(lambda: not left(place))
    for name, text in texts.items():
        (data / name).write_text(f"{stranger.pid}\n" + text.partition("\n")[2])
        (data / name).chmod(0o644)
    user = new_user(folder).go()
    assert "url" in user.answer()
    user.end()
    until(lambda: not left(place))
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


@pytest.mark.parametrize("killed", ["user", "user and initdb"])
def test_interrupted_initdb(place: Path, new_user: NewUser, killed: str) -> None:
    """Where the first user was killed in the middle of initdb, the next one repairs the data."""
    for turn in range(20):
        folder = place / f"killed {killed} {turn}"
        first = new_user(folder).go()
        until((folder / "data" / "PG_VERSION").exists)
        initdb = processes(place, "bin/initdb")
        first.kill()
        if killed == "user and initdb":
            for process in [*initdb, *processes(place, "bin/postgres")]:
                process.kill()
        # On a slow machine it may have ended before it was found.
        if initdb:
            break
    else:
        pytest.fail("initdb was never found at work")
    assert "url" in new_user(folder).go().answer()


def test_killed_server(folder: Path, new_user: NewUser, place: Path) -> None:
    """The next user starts a killed server anew, but not before its last process has ended."""
    first = new_user(folder).go()
    before = first.answer()
    (server,) = processes(place, "bin/postgres")
    remains = server.children()[0]
    remains.suspend()
    server.kill()
    second = new_user(folder).go()
    seen = psutil.Process(second.process.pid)
    try:
        until(lambda: any(file.path.endswith("server.lock") for file in seen.open_files()))
    finally:
        remains.resume()
    after = second.answer()
    assert after["url"] == before["url"]
    assert after["started"] != before["started"]
    second.end()
    assert started(after["url"]) == after["started"]
    first.end()
    until(lambda: not left(place))


def test_killed_reaper(folder: Path, new_user: NewUser, place: Path) -> None:
    """The next user puts another reaper in the place of a killed one."""
    first = new_user(folder).go()
    answer = first.answer()
    (reaper,) = processes(place, "embedded.py")
    reaper.kill()
    second = new_user(folder).go()
    assert second.answer() == answer
    first.end()
    second.end()
    until(lambda: not left(place))


@pytest.mark.parametrize("path", [f"{'a' * 120}/{'b' * 120}", "a,b"], ids=["long", "comma"])
def test_path_unfit_for_a_socket(place: Path, new_user: NewUser, path: str) -> None:
    """The folder's path may be too long for a socket, or look like a list of hosts."""
    folder = place / path
    answer = new_user(folder).go().answer()
    assert new_user(folder).go().answer() == answer
    assert (folder / "data" / "PG_VERSION").exists()


def test_special_path(place: Path, new_user: NewUser) -> None:
    """django-environ takes the URL of a folder with any characters for a unix socket."""
    folder = place / 'a b+c%20d?e#f:g@h"é'
    answer = new_user(folder).go().answer()
    assert environ.Env.db_url_config(answer["url"]) == {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "postgres",
        "USER": "postgres",
        "PASSWORD": "",
        "HOST": str((folder / "data").resolve()),
        "PORT": 5432,
    }


def test_no_mode_is_changed(place: Path, new_user: NewUser) -> None:
    """The server runs below a directory that is closed to others, and this stays closed."""
    closed = place / "closed"
    closed.mkdir(mode=0o700)
    binaries = embedded._binaries(None)
    paths = [closed, *closed.parents, binaries, *binaries.parents]
    modes = [path.stat().st_mode for path in paths]
    answer = new_user(closed / "pg").go().answer()
    assert "url" in answer
    assert [path.stat().st_mode for path in paths] == modes
    assert stat.S_IMODE((closed / "pg" / "data").stat().st_mode) == 0o700


def test_foreign_temporary_directory(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory below the temporary one that others could write is not used."""
    monkeypatch.setattr(tempfile, "tempdir", str(place / "tmp"))
    private = embedded._private("key", None)
    assert embedded._private("key", None) == private
    private.chmod(0o777)
    with pytest.raises(RuntimeError, match="belongs to somebody else"):
        embedded._private("key", None)


def test_failure_to_start(folder: Path, new_user: NewUser) -> None:
    """A server that does not start shows the end of its log, and what to do."""
    settings = folder / "data" / "postgresql.auto.conf"
    text = settings.read_text()
    settings.write_text("unheard_of = 1\n")
    error = new_user(folder).go().answer()["error"]
    settings.write_text(text)
    assert 'unrecognized configuration parameter "unheard_of"' in error
    assert "DATABASE_URL" in error


def test_missing_package(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package, the error names both remedies."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RuntimeError, match=r"DATABASE_URL.*`demo` extra"):
        embedded.database_url(place / "missing")
