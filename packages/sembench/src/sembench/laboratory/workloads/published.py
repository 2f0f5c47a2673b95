"""The five workloads that SemanticKV published, by their names. The texts are ours; what recurs, and how, is theirs."""

from __future__ import annotations

from sembench.laboratory.workloads.prompt_parts import PromptPart, Scene


def low_memory_rag_stress(scene: Scene, requests: int) -> None:
    """Questions about a dozen long documents, in no order. Each question brings a long text of its own."""
    system = scene.part("system", 200, 260)
    template = scene.part("template", 120, 180)
    documents = scene.parts(12, "retrieved_context", 2600, 3400)
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
    active: list[_Session] = []
    started = 0
    for _ in range(requests):
        while len(active) < 5:
            started += 1
            active.append(
                _Session(f"agent-{started}", [*opening, scene.part("user", 80, 200)], scene.dice.randint(6, 12))
            )
        # Whoever acted last mostly acts next: an agent works until it waits for something.
        session = active[-1] if scene.dice.random() < 0.6 else scene.dice.choice(active)
        active.remove(session)
        scene.send(session.prompt, session.name)
        session.prompt += [scene.part("assistant", 60, 160), scene.part("tool_output", 300, 900)]
        session.turns_left -= 1
        if session.turns_left:
            active.append(session)


def legal_review_long_context(scene: Scene, requests: int) -> None:
    """One matter after another: long evidence that many questions in a row are about, then never again."""
    opening = [scene.part("system", 400, 600), scene.part("template", 200, 400)]
    matters = 0
    while len(scene.requests) < requests:
        matters += 1
        evidence = scene.parts(scene.dice.randint(3, 5), "legal_evidence", 2000, 3000)
        history: list[PromptPart] = []
        for _ in range(scene.dice.randint(8, 14)):
            question = scene.part("user", 80, 240)
            scene.send([*opening, *evidence, *history, question], f"matter-{matters}")
            history += [question, scene.part("assistant", 150, 400)]
    del scene.requests[requests:]


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


class _Session:
    def __init__(self, name: str, prompt: list[PromptPart], turns: int) -> None:
        self.name = name
        self.prompt = prompt
        self.turns_left = turns
