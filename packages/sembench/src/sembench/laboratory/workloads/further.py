"""Two workloads of our own, in which the same text stands at different places: what a span cache is for."""

from __future__ import annotations

from sembench.laboratory.workloads.prompt_parts import PromptPart, Scene


def multi_agent(scene: Scene, requests: int) -> None:
    """A planner, workers and a critic go over one case, each with its own system prompt before the same material."""
    roles = [[scene.part("system", 500, 900), scene.part("template", 200, 400)] for _ in range(5)]
    cases = 0
    while len(scene.requests) < requests:
        cases += 1
        material = scene.parts(scene.dice.randint(2, 4), "retrieved_context", 1200, 2400)
        board: list[PromptPart] = []
        for turn in range(scene.dice.randint(10, 18)):
            role = roles[0] if turn % 4 == 0 else scene.dice.choice(roles[1:])
            scene.send([*role, *material, *board, scene.part("user", 40, 120)], f"case-{cases}")
            board.append(scene.part("assistant", 120, 500))
            if len(board) > 8:
                del board[0]
    del scene.requests[requests:]


def code_assistant(scene: Scene, requests: int) -> None:
    """Editors that send open files with each question, in the order of their last use. Edits make a file a new one."""
    system = scene.part("system", 700, 1000)
    tools = scene.part("template", 900, 1300)
    repositories = [scene.parts(30, "code", 400, 2200) for _ in range(4)]
    open_files: list[list[int]] = [scene.dice.sample(range(30), 4) for _ in repositories]
    for _ in range(requests):
        number = scene.dice.randrange(len(repositories))
        files, tabs = repositories[number], open_files[number]
        if scene.dice.random() < 0.4:
            opened = min(29, int(scene.dice.expovariate(1 / 6)))
            if opened in tabs:
                tabs.remove(opened)
            tabs.insert(0, opened)
            del tabs[5:]
        if scene.dice.random() < 0.3:
            edited = files[tabs[0]]
            files[tabs[0]] = scene.part("code", edited.tokens, edited.tokens + 40)
        scene.send([system, tools, *(files[tab] for tab in tabs), scene.part("user", 40, 300)], f"editor-{number}")
