"""Periodic job leases for Django: one tick of a job runs, the others decline.

The mental model has four lines::

    claim       one process becomes the holder of a name; everybody else is declined
    heartbeat   while the job runs, its lease is renewed, and the job is told if it is lost
    fence       a write commits only if nobody has taken the lease over
    release     the lease is free, and the history says how the run ended

States of a lease, which is one row of ``RunLease``, as a reader sees it on the database's clock::

                        claim                        its ttl passes
      ┌──────────┐  generation + 1   ┌──────────┐  without renewal   ┌──────────┐
      │   free   │ ────────────────▶ │   held   │ ─────────────────▶ │ expired  │
      └──────────┘                   └──────────┘                    └──────────┘
           ▲   release, by its token   │  ▲   │                        │   │
           ├───────────────────────────┘  └───┼── claim by another ────┘   │
           │                                  │   (a takeover), gen. + 1   │
           └── break, by an operator, gen. + 1┴────────────────────────────┘

    paused    beside any of these: claims decline, a holder goes on
    expired   on the kernel where a program of its holder still lives, claims decline

What one process does, from top to bottom; each module imports only from those below it::

    management/   runjob, runlease: parse, call, map to exit codes
    admin/        pages of who holds what, of the history, and of what operators may do
    checks        mistakes in the settings, found before the first tick
    testing       situations for the tests of your jobs
    views         health and metrics over HTTP;  urls: where health is mounted
    runner        run a job under its lease; what its end means
    watch         a thread without I/O that ends a job when it has to end
    supervisor    a program as the job: its process group, guarded by guard.py
    terminal      which process group reads it, and gets its Ctrl-C
    interrupts    how a job in this process is stopped;  output: how it is kept quiet
    silences      for how long nobody is told of an alert
    incidents     what is kept of the alerts, and who is told
    alerts        what is wrong with a lease: one rule for each kind
    jobs          which job a name stands for
    blocks        lease() and leased(): the length of a lease in code
    claiming      claim(): try, wait, give up
    held          HeldLease: what a holder knows and can do
    heartbeat     one thread renews all leases of the process in one statement
    effects       the ledger of external actions;  endings: how a run ends, in words
    fencing       the fence;  triggers: tables that refuse what is not fenced
    metrics       figures for Prometheus;  monitoring/: its rules, and a dashboard for Grafana
    display/      pages for people: one description, two ways to draw it
    store/        the only code that changes a lease: claim, beat, release, break, pause; and prune
    card          all that is known of one lease and its holder
    statistics    what the history comes to, for people
    history       reads for people and programs;  search: which runs, and the indexes for them
    log           one record an event: receivers of signals, the events for your code
    situation     what the rules of the alerts look at;  thresholds: when they apply
    tallies       what runs come to, of those that are there and those that were counted before
    models/       the rows: RunLease; Run, its history; OperatorAction, what operators did
    terms         durations, and timings that check themselves
    holder        who am I, is that holder dead;  clock: the database's time and ours
    phrases       English wherever it is kept, in the reader's language in the admin
    conf, exceptions, text

Time. The database's clock decides whether a lease has expired. The holder also keeps
``trusted_until``: the moment *before* its last claim or renewal was sent, plus the ttl, less a
margin of a tenth of it. That can only make it stop sooner than the database would let anybody in.

Failures, and what happens::

    the holder crashes             the next claim takes over and closes its Run: at once on the
                                   same kernel, elsewhere when the lease has expired
    the holder is frozen           the same; when it wakes, it is told, and its fence refuses
    runjob and its guard are       claims on the same kernel decline until the program's group has
    killed, but not the program    ended, or a break; elsewhere until the lease has expired
    the job makes no progress      after ``stall_after`` runjob stops it; in code its lease is
                                   renewed no more, is lost, and expires
    the database is unreachable    beats fail; the job is told before, and ended when, trust is over
    a claim's commit is in doubt   its token is looked for, and released if it is there
    a release's commit is in doubt our Run tells whether it was done

Limits. A lease does not make a job run exactly one time: a crash after the work and before the
release looks like a crash before the work. A frozen process cannot be stopped while it is frozen.
Exclusion does not survive ``break --now``, a jump of the database's clock, or a failover that lost
commits. In all of these the fence still protects what is written through it, and nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .blocks import lease, leased
    from .claiming import claim
    from .exceptions import Declined, JobTimeout, LeaseDeclined, LeaseLost, RunLeaseError
    from .fencing import inherited_lease
    from .held import HeldLease, current_lease, fence
    from .jobs import job

__version__ = "0.1.0"

# Settings import this package before the apps are ready, so models must not be imported yet.
_HOMES = {
    "lease": "blocks",
    "leased": "blocks",
    "claim": "claiming",
    "job": "jobs",
    "current_lease": "held",
    "fence": "held",
    "inherited_lease": "fencing",
    "HeldLease": "held",
    "Declined": "exceptions",
    "RunLeaseError": "exceptions",
    "LeaseDeclined": "exceptions",
    "LeaseLost": "exceptions",
    "JobTimeout": "exceptions",
}

__all__ = [
    "Declined",
    "HeldLease",
    "JobTimeout",
    "LeaseDeclined",
    "LeaseLost",
    "RunLeaseError",
    "claim",
    "current_lease",
    "fence",
    "inherited_lease",
    "job",
    "lease",
    "leased",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
