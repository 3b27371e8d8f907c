"""The only code that changes a lease.

=========  ==================================================  =================================
operation  happens when                                        effect
=========  ==================================================  =================================
claim      not paused; free or vacated; due; tick not run yet  new token, generation + 1, Run open
renew      token matches and has not expired                   expires_at = now + ttl
release    token matches                                       free; Run closed
break      an operator says so                                 free; generation + 1; Run lost
pause      an operator says so                                 the next claims decline
remove     free, and unclaimed for long                        no row; its generation is kept
close      a check sees that a Run's holder is gone            Run abandoned; the lease as it was
=========  ==================================================  =================================

A lease is vacated when it has expired and no program of its holder is seen to live, or when its
holder and that program are seen to be dead (``holder``), which only their own kernel can see.

Each operation is one short READ COMMITTED transaction: lock the row, then read the database's
clock, then decide, then write. Decisions are read from the database that takes the writes. What an
operator does is written down as an ``OperatorAction``, in the same transaction.
"""

from .actions import REASON_LENGTH, checked_reason, note_action
from .beats import beat
from .blocking import Blocked, Changed, unless_blocked
from .claims import claim, preview
from .connection import (
    LOCK_TIMEOUT_MS,
    apart,
    database_clock,
    default_alias,
    explain,
    in_test,
    in_transaction,
    is_connection_error,
    is_contention,
    is_in_transaction,
    lease_transaction,
    own_connection,
    sqlstate,
    takes_queries,
    write_alias,
)
from .counting import count_runs
from .dead import close_dead_runs
from .holding import close_run, is_ours_now, note_group, release, renew, why_gone_now
from .operating import Broken, Seen, break_lease, is_after_break, pause, remove, resume
from .pruning import Pruned, prune
from .records import (
    Answer,
    Beat,
    Claimed,
    ClaimRequest,
    Closed,
    Closing,
    Loss,
    LostReason,
    Refusal,
    progress,
)
from .runs import BROKEN, record_decline, tell_closed
from .staging import expire

__all__ = [
    "BROKEN",
    "LOCK_TIMEOUT_MS",
    "REASON_LENGTH",
    "Answer",
    "Beat",
    "Blocked",
    "Broken",
    "Changed",
    "ClaimRequest",
    "Claimed",
    "Closed",
    "Closing",
    "Loss",
    "LostReason",
    "Pruned",
    "Refusal",
    "Seen",
    "apart",
    "beat",
    "break_lease",
    "checked_reason",
    "claim",
    "close_dead_runs",
    "close_run",
    "count_runs",
    "database_clock",
    "default_alias",
    "expire",
    "explain",
    "in_test",
    "in_transaction",
    "is_after_break",
    "is_connection_error",
    "is_contention",
    "is_in_transaction",
    "is_ours_now",
    "lease_transaction",
    "note_action",
    "note_group",
    "own_connection",
    "pause",
    "preview",
    "progress",
    "prune",
    "record_decline",
    "release",
    "remove",
    "renew",
    "resume",
    "sqlstate",
    "takes_queries",
    "tell_closed",
    "unless_blocked",
    "why_gone_now",
    "write_alias",
]
