"""Generated support tickets and the prompts made of them."""

from __future__ import annotations

import random
from dataclasses import dataclass

_PRODUCTS = ("gateway", "billing service", "mobile app", "search cluster", "mail relay", "export job", "login page")
_SYMPTOMS = ("returns errors", "is slow", "drops connections", "shows stale data", "rejects valid input", "restarts")
_CAUSES = (
    "an expired certificate",
    "a full disk",
    "a wrong time zone",
    "a missing index",
    "a changed limit",
    "a proxy",
)
_ACTIONS = (
    "rolled back the release",
    "raised the limit",
    "added an index",
    "renewed the certificate",
    "moved the data",
)
_PEOPLE = ("Amara", "Boris", "Chen", "Dalia", "Emeka", "Freya", "Goran", "Hana", "Ines", "Jonas")

FIRST_INSTRUCTION = "You are a support engineer. Read the ticket and state the cause. Cite the line you rely on."
NEW_INSTRUCTION = (
    "Act as the on-call manager. Before anything else decide whether customers must be told, then write two "
    "sentences for the status page. Stay factual and name no person. Here is the material:"
)
QUESTION = "What should be done next, and by when?"


@dataclass(frozen=True)
class Prompt:
    label: str
    text: str


def ticket(number: int, seed: int, entries: int = 14) -> str:
    """One ticket of about 300 words; another seed or number gives other words throughout."""
    source = random.Random(f"{seed}-{number}")
    lines = [f"Ticket {source.randrange(10_000, 99_999)} opened by {source.choice(_PEOPLE)}"]
    for _ in range(entries):
        hour, minute, code = source.randrange(24), source.randrange(60), source.randrange(1000, 9999)
        lines.append(
            f"At {hour:02}:{minute:02} {source.choice(_PEOPLE)} noted that the {source.choice(_PRODUCTS)} "
            f"{source.choice(_SYMPTOMS)} with code {code} after {source.choice(_CAUSES)} and "
            f"{source.choice(_ACTIONS)} for account {source.randrange(100_000, 999_999)}"
        )
    return "\n".join(lines)


def donor_prompts(seed: int) -> list[Prompt]:
    tickets = [ticket(number, seed) for number in range(4)]
    separate = [Prompt(f"ticket {n}", f"{FIRST_INSTRUCTION}\n{text}\n{QUESTION}") for n, text in enumerate(tickets)]
    combined = ticket_records([ticket(number, seed) for number in range(10, 14)])
    return [*separate, Prompt("four tickets", f"{FIRST_INSTRUCTION}\n{combined}\n{QUESTION}")]


def recipient_prompts(seed: int) -> list[Prompt]:
    tickets = [ticket(number, seed) for number in range(4)]
    records = [ticket(number, seed) for number in range(10, 14)]
    edited = [line if n % 5 else line.replace("noted", "wrote down") for n, line in enumerate(tickets[1].splitlines())]
    return [
        Prompt("same prompt again", f"{FIRST_INSTRUCTION}\n{tickets[0]}\n{QUESTION}"),
        Prompt("new instruction", f"{NEW_INSTRUCTION}\n{tickets[0]}\n{QUESTION}"),
        Prompt("reordered", f"{NEW_INSTRUCTION}\n{ticket_records(records[::-1])}\n{QUESTION}"),
        Prompt("from 4 requests", f"{NEW_INSTRUCTION}\n{ticket_records(tickets[::-1])}\n{QUESTION}"),
        Prompt("edited lines", f"{NEW_INSTRUCTION}\n" + "\n".join(edited) + f"\n{QUESTION}"),
        Prompt("unrelated control", f"{NEW_INSTRUCTION}\n{ticket(99, seed + 1)}\n{QUESTION}"),
    ]


def ticket_records(tickets: list[str]) -> str:
    return "\n".join(f"Record {number}\n{text}" for number, text in enumerate(tickets, 1))
