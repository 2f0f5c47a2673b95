"""A small archive of texts, and the ways in which a prompt made of them comes back changed."""

from __future__ import annotations

TOPICS = {
    "mill": ("Ilse Brandt", "sacks", "barley", 1868),
    "bridge": ("Piet Vos", "carts", "granite", 1899),
    "brewery": ("Clara Dahl", "barrels", "hops", 1877),
    "station": ("Otto Rask", "trains", "coal", 1912),
}
PASSAGES = [
    f"The {topic} was in the care of {name} from {year} on. "
    + " ".join(
        f"In {year + n} the {topic} counted {n * 17 % 80 + 3} {units}, paid {n * 11 % 50 + 5} crowns for {goods}, "
        f"and {name} wrote that {('snow', 'drought', 'storms')[n % 3]} had kept {n * 7 % 13 + 1} people at home."
        for n in range(1, 6)
    )
    for topic, (name, units, goods, year) in TOPICS.items()
]
DOCUMENT = "\n\n".join(PASSAGES)


def first(question: str = "Who kept the books?") -> str:
    return f"You answer questions about an old town.\n\n{DOCUMENT}\n\nQuestion: {question}\nAnswer:"


QUESTIONS = ("Who ran the station?", "How many carts crossed the bridge in 1900?", "Who looked after the mill?")
CASES: dict[str, tuple[list[str], str, float]] = {
    "new instruction": (
        [first()],
        f"Read what follows closely. Answer in a few words, and use no name that is not in it.\n\n{DOCUMENT}",
        0.05,
    ),
    "passages in another order": (
        [first()],
        "Pages from the town's chronicle, shuffled.\n\n"
        + "\n\n".join(f"Page {n}: {PASSAGES[i]}" for n, i in enumerate((2, 0, 3, 1), 1)),
        0.25,
    ),
    "passages of four requests": (
        [f"Page {n} of the chronicle:\n{passage}\n\nTitle:" for n, passage in enumerate(PASSAGES)],
        "Four pages.\n\n" + "\n\n".join(PASSAGES),
        0.35,
    ),
}
"""Donors, the recipient's text, and how far its first words may be from the cold ones: mean KL in nats."""


def recipient(name: str, question: str = QUESTIONS[0]) -> str:
    return f"{CASES[name][1]}\n\nQuestion: {question}\nAnswer:"
