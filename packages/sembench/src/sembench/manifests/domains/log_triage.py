"""Log triage: lines of a fleet of services, with the notes of the operators on duty."""

from __future__ import annotations

from sembench.manifests.grammar import Domain, FactForm

_RULES: dict[str, tuple[str, ...]] = {
    "bad": (
        "upstream timed out",
        "connection reset by peer",
        "lease lost",
        "checksum mismatch",
        "quota exceeded",
        "queue is full",
        "stale epoch",
        "handshake failed",
        "disk latency above limit",
        "replica is behind",
        "worker stopped answering",
        "schema not found",
        "write was fenced",
        "token has expired",
    ),
    "good": (
        "recovered",
        "leader elected",
        "snapshot written",
        "pool refilled",
        "compaction finished",
        "config reloaded",
        "replica caught up",
        "certificate renewed",
        "backlog drained",
        "health check passed",
    ),
    "act": (
        "restarted",
        "drained",
        "failed over",
        "throttled",
        "isolated",
        "patched",
        "rescheduled",
        "muted the alarm of",
        "took a heap dump of",
        "raised the pool size of",
    ),
    "guess": (
        "a noisy neighbour",
        "a bad cable",
        "the new kernel",
        "a retry storm",
        "a slow resolver",
        "a leaking cache",
        "clock drift",
        "a full partition",
        "the weekly report",
        "a bad config",
    ),
    "level": ("WARN", "ERROR"),
}

_SENTENCES = (
    "{tick} {level} {system}-{node} {bad} peer={address} after {ms} ms req={hex}",
    "{tick} {level} {system}-{node} {bad}, next try in {ms} ms shard={hex}",
    "{tick} INFO {system}-{node} {good} in {ms} ms trace={hex}",
    "{tick} INFO {system}-{node} session {hex} served {count} rows to {address}",
    "{tick} {level} {system}-{node} tenant={number} {bad} while calling {system}-{node}",
    "{tick} INFO {system}-{node} {good} on {site} rack {count}, epoch {hex}",
    "{tick} NOTE {person}: {act} {system}-{node} in {site}, suspect {guess}, ticket {ref}",
    "{tick} {level} {system}-{node} dropped {count} events of {system}, offset {number}",
    "{tick} INFO {system}-{node} paused {ms} ms, volume {hex} is moving to {site}",
    "{tick} NOTE {person}: {system} in {site} looks like {guess} to me, {person} is checking {address}",
    "{tick} {level} {system}-{node} heap at {percent}, pause {ms} ms span={hex}",
    "{tick} INFO {system}-{node} build {version} commit {hex} started in {site}",
    "{tick} NOTE {person}: paged {person}, {system} {bad}, see {ref}",
    "{tick} {level} {system}-{node} {bad}, lag {ms} ms, key={hex} owner={system}-{node}",
)

_FACTS = (
    FactForm(
        "{tick} NOTE {person#a}: root cause of outage {ref#a} is change {ref#x} on {system#a} in {site#a}",
        "Which change is noted as the root cause of outage {ref#a}?",
        "Outage {ref#a} on {system#a} goes back to one change: which?",
        "{ref#x}",
    ),
    FactForm(
        "{tick} NOTE {person#a}: rolled {system#a} in {site#a} back to build {version#x}-{hex#y} for {ref#a}",
        "To which build was {system#a} rolled back for {ref#a}?",
        "After the rollback under {ref#a}, which build did {system#a} run?",
        "{version#x}-{hex#y}",
    ),
    FactForm(
        "{tick} ERROR {system#a}-{node#a} panic in job {ref#a}: page {number#x} unreadable, core kept in {site#a}",
        "Which page was unreadable when job {ref#a} panicked?",
        "Job {ref#a} on {system#a}-{node#a} stumbled over an unreadable page: give its number.",
        "{number#x}",
    ),
    FactForm(
        "{tick} INFO {system#a}-{node#a} failover {ref#a} promoted {system#b}-{node#x} at {address#x}",
        "Which address has the node that failover {ref#a} promoted?",
        "Failover {ref#a} made another node the primary: at which address?",
        "{address#x}",
    ),
    FactForm(
        "{tick} NOTE {person#a}: {person#x} of the {site#a} crew owns follow-up {ref#a} on {system#a}",
        "Who owns follow-up {ref#a}?",
        "To whom was follow-up {ref#a} on {system#a} given?",
        "{person#x} of the {site#a} crew",
    ),
    FactForm(
        "{tick} WARN {system#a}-{node#a} lost exactly {number#x} writes of batch {ref#a} from {address#a}",
        "How many writes of batch {ref#a} were lost?",
        "Give the number of writes that {system#a} lost from batch {ref#a}.",
        "{number#x}",
    ),
)

LOG_TRIAGE = Domain(
    name="log_triage",
    noun="log excerpt",
    title="Log excerpt {ref}, cluster {site}, collected by {person} for {firm}",
    headings=(
        "{system} and {system}, watch of {person} in {site}",
        "{site}, alarm {ref}, on duty {person}",
    ),
    sentences=_SENTENCES,
    facts=_FACTS,
    rules=_RULES,
    part_length=(6, 14),
    part_joint="\n\n== ",
    first_joint="\n",
    joint="\n",
)
