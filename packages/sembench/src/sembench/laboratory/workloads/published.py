"""The five workloads that SemanticKV published, by their names. The texts are ours; what recurs, and how, is theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count

from sembench.laboratory.workloads.prompt_parts import PromptPart, Scene


def low_memory_rag_stress(scene: Scene, requests: int) -> None:
    """Questions about a dozen long documents, in no order. Each question brings a long text of its own."""
    system = scene.part("system", 200, 260)
    template = scene.part("template", 120, 180)
    documents = scene.parts(12, "retrieved_context", 3600, 4400)
    for _ in range(requests):
        question = scene.part("user", 900, 1500)
        scene.send([system, template, scene.pick(documents, 0.2), question])


def shared_system_prompt_high_reuse(scene: Scene, requests: int) -> None:
    """A few applications with long system prompts and short questions: almost everything recurs."""
    applications = [[scene.part("system", 1200, 1800), scene.part("template", 300, 500)] for _ in range(6)]
    for _ in range(requests):
        application = scene.dice.choices(applications, [1.0 / rank for rank in range(1, 7)])[0]
        scene.send([*application, scene.part("user", 60, 220)])


def tool_agent_session_reuse(scene: Scene, requests: int) -> None:
    """Agents whose prompts grow by a call and its output each turn. A session that is over never comes back."""
    opening = [scene.part("system", 500, 700), scene.part("template", 700, 1000)]

    def begin() -> list[PromptPart]:
        return [*opening, scene.part("user", 80, 200)]

    for session in _turns(scene, requests, begin, active=5, goes_on=0.6, turns=(6, 12)):
        scene.send(session.prompt, session.name)
        session.prompt += [scene.part("assistant", 60, 160), scene.part("tool_output", 300, 900)]


def legal_review_long_context(scene: Scene, requests: int) -> None:
    """A few matters at a time: long evidence that many questions in a row are about, then never again."""
    opening = [scene.part("system", 400, 600), scene.part("template", 200, 400)]

    def begin() -> list[PromptPart]:
        return [*opening, *scene.parts(scene.dice.randint(3, 5), "legal_evidence", 2000, 3000)]

    for matter in _turns(scene, requests, begin, active=3, goes_on=0.8, turns=(8, 14)):
        question = scene.part("user", 80, 240)
        scene.send([*matter.prompt, question], matter.name)
        matter.prompt += [question, scene.part("assistant", 150, 400)]


def workload_shift_static_vs_adaptive(scene: Scene, requests: int) -> None:
    """What recurs changes twice: documents first, then code, then tools' outputs. The rest is of one use each."""
    system = scene.part("system", 200, 260)
    phases = [
        ("retrieved_context", scene.parts(12, "retrieved_context", 1800, 2400), "code"),
        ("code", scene.parts(12, "code", 1800, 2400), "tool_output"),
        ("tool_output", scene.parts(12, "tool_output", 1800, 2400), "retrieved_context"),
    ]
    for number in range(requests):
        _, recurring, once = phases[number * len(phases) // requests]
        noise = scene.part(once, 300, 600)
        scene.send([system, scene.pick(recurring, 0.2), noise, scene.part("user", 500, 900)])


@dataclass
class _Session:
    name: str
    prompt: list[PromptPart]
    turns_left: int


def _turns(
    scene: Scene,
    requests: int,
    begin: Callable[[], list[PromptPart]],
    *,
    active: int,
    goes_on: float,
    turns: tuple[int, int],
) -> Iterator[_Session]:
    """Whose turn it is. Who came last mostly goes on (``goes_on``); who is done makes room for another."""
    sessions: list[_Session] = []
    begun = count(1)
    for _ in range(requests):
        while len(sessions) < active:
            sessions.insert(0, _Session(f"session-{next(begun)}", begin(), scene.dice.randint(*turns)))
        session = sessions[-1] if scene.dice.random() < goes_on else scene.dice.choice(sessions)
        sessions.remove(session)
        yield session
        session.turns_left -= 1
        if session.turns_left:
            sessions.append(session)
