"""TensorRT-LLM's KV events for a router that goes by token ids, such as Dynamo's.

Nothing approximate enters TensorRT-LLM's tree, so all that it tells is true of exact blocks. Start the engine with
``event_buffer_max_size`` (the launcher's ``--kv-events``), and hand its events on::

    announcements = Announcements(publisher, block_size=32)
    announcements.pass_on(llm.get_kv_cache_events())
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

_SIGNED = 1 << 63


class RouterPublisher(Protocol):
    """As ``KvEventPublisher`` of Dynamo's runtime takes them."""

    def publish_stored(
        self,
        event_id: int,
        token_ids: list[int],
        num_block_tokens: list[int],
        block_hashes: list[int],
        lora_id: int,
        parent_hash: int | None = None,
    ) -> None: ...

    def publish_removed(self, event_id: int, block_hashes: list[int]) -> None: ...


class Announcements:
    """Tells a router of whole blocks on the device, by the engine's own hashes."""

    def __init__(self, publisher: RouterPublisher, block_size: int) -> None:
        self._publisher, self._block_size = publisher, block_size
        self._left_out: set[int] = set()
        """Blocks that were not told of, so that their end is not told either."""

    def pass_on(self, events: Iterable[Mapping[str, Any]]) -> None:
        for event in events:
            data = event["data"]
            if data["type"] == "stored":
                self._stored(int(event["event_id"]), data)
            elif data["type"] == "removed":
                self._removed(int(event["event_id"]), data["block_hashes"])

    def _stored(self, event_id: int, data: Mapping[str, Any]) -> None:
        token_ids: list[int] = []
        hashes: list[int] = []
        cut = False
        for block in data["blocks"]:
            tokens = [int(token["token_id"]) for token in block["tokens"]]
            # A block that is not full, or salted (the router knows no salts), ends what can be told of the chain.
            cut = cut or len(tokens) != self._block_size or block.get("cache_salt") is not None
            if cut:
                self._left_out.add(int(block["block_hash"]))
                continue
            token_ids += tokens
            hashes.append(_signed(block["block_hash"]))
        if not hashes:
            return
        parent = data.get("parent_hash")
        sizes = [self._block_size] * len(hashes)
        parent_hash = None if parent is None else _signed(parent)
        self._publisher.publish_stored(event_id, token_ids, sizes, hashes, 0, parent_hash)

    def _removed(self, event_id: int, block_hashes: Iterable[int]) -> None:
        told = [int(each) for each in block_hashes if int(each) not in self._left_out]
        self._left_out.difference_update(int(each) for each in block_hashes)
        if told:
            self._publisher.publish_removed(event_id, [_signed(each) for each in told])


def _signed(number: int) -> int:
    """TensorRT-LLM's hashes are 64 bits without a sign, routers' with one."""
    return int(number) - 2 * _SIGNED if int(number) >= _SIGNED else int(number)
