"""Full pages of computed tokens that may serve again, found by what stands in them and before them.

A page's key is a hash of its tokens and of the key before it (of the tenant, for the first page), under a secret of
this process. A key is only a way to find a page quickly: on every hit the tokens are compared, and that the page
continues the very page object found before it. So by induction a hit has the same tenant and the same tokens from
the first on, whatever two hashes have in common.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Iterable
from hashlib import blake2b
from struct import Struct

from engines.mpi.cache.window import Window
from engines.mpi.scheduler.sequence import Sequence


class _Page:
    """One page in the cache. Never changed until it is `gone`, and it does not come back then."""

    __slots__ = ("block", "content", "gone", "index", "key", "parent")

    def __init__(self, block: int, key: bytes, parent: _Page | None, content: bytes) -> None:
        self.block = block
        self.key = key
        self.parent = parent
        """The page before; None before the first."""
        self.index: int = 0 if parent is None else parent.index + 1
        """Its place in every prompt that it is found for."""
        self.content = content
        """Its tokens; the tenant's name, then its tokens, for the first page."""
        self.gone = False
        """It can not be found any more."""


class PrefixCache:
    """Which block has which page. Who holds the blocks is the block manager's business.

    When several sequences compute the same page at the same time, the one that offers it first stays in the cache;
    the others' blocks are not in it, but their following pages chain to that one. A page whose predecessor has
    gone is not found any more, and is replaced when its tokens are computed again.
    """

    def __init__(self, block_size: int, window: Window | None = None) -> None:
        self._block_size = block_size
        self._window = window
        self._pack = Struct(f"{block_size}i").pack
        secret = secrets.token_bytes(32)
        self._hash_first = blake2b(digest_size=16, key=secret, person=b"first page")
        self._hash_next = blake2b(digest_size=16, key=secret, person=b"next page")
        self._by_key: dict[bytes, _Page] = {}
        self._by_block: dict[int, _Page] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        """Blocks in the cache that no sequence holds, the next to be evicted first."""
        self._kept: dict[Sequence, tuple[int, _Page | None]] = {}
        """For sequences that hold blocks: how many of their first pages were found or offered, and the page in the
        cache that equals the last of these, their own or another's. Where that has gone, or there is none, the
        sequence adds no more."""
        self._looked_up: Sequence | None = None
        """The sequence of the last look-up. While one waits for room it is looked up in every step."""
        self._found: list[int] = []
        """Blocks of its first pages. What goes is taken out at once, so only what may have come is looked for again."""

    @property
    def num_idle(self) -> int:
        """Blocks in the cache that no sequence holds."""
        return len(self._idle)

    def find(self, sequence: Sequence) -> list[int]:
        """Find the blocks of the sequence's first pages, as many as there are; its last token is never in one of them.

        Looked up again, a sequence costs as much as has changed, not as it is long. The list is the cache's own, and
        holds until the next call.
        """
        if sequence is not self._looked_up:
            self._looked_up, self._found = sequence, []
        blocks = self._found
        last = self._by_block[blocks[-1]] if blocks else None
        for index in range(len(blocks), (sequence.num_tokens - 1) // self._block_size):
            content = self._content(sequence, index)
            page = self._by_key.get(self._make_key(last.key if last else b"", content))
            if page is None or page.parent is not last or page.content != content:
                break
            blocks.append(page.block)
            last = page
        return blocks

    def hold(self, sequence: Sequence, blocks: list[int], first: int = 0) -> None:
        """The sequence holds from now on what `find` gave, at least one page, but for those before the first that its
        next token sees."""
        for block in blocks[first:]:
            self._idle.pop(block, None)
        self._kept[sequence] = len(blocks), self._by_block[blocks[-1]]

    def keep(self, sequence: Sequence) -> None:
        """Add the sequence's pages whose tokens are all computed and that were not offered before."""
        first, last = self._kept.get(sequence, (0, None))
        stop = sequence.num_settled_tokens // self._block_size
        if stop <= first:
            return
        self._kept[sequence] = stop, None
        if first and (last is None or last.gone):
            return
        settled = sequence.num_settled_tokens
        if self._window is not None and first * self._block_size < self._window.first_token(settled):
            # Finite logits say nothing about tokens that have left the window; their blocks may be others' by now.
            return
        for index in range(first, stop):
            content = self._content(sequence, index)
            key = self._make_key(last.key if last else b"", content)
            page = self._by_key.get(key)
            if page is not None and page.parent is not None and page.parent.gone:
                self._retire(page)
                page = None
            if page is None:
                block = sequence.block_table[index]
                page = self._by_key[key] = self._by_block[block] = _Page(block, key, last, content)
            elif page.parent is not last or page.content != content:
                return  # Two pages of one key: the one that is there stays.
            last = page
        self._kept[sequence] = stop, last

    def share(self, source: Sequence, sequence: Sequence) -> None:
        """The sequence has got the source's first pages, as far as its `num_computed_tokens` reaches."""
        count, page = self._kept.get(source, (0, None))
        num_pages = min(count, sequence.num_computed_tokens // self._block_size)
        for _ in range(count - num_pages):
            page = page.parent if page is not None else None
        self._kept[sequence] = num_pages, page

    def retain(self, blocks: Iterable[int]) -> list[int]:
        """Keep those of the blocks that are in the cache and that nobody holds any more; return the others."""
        strangers = []
        for block in blocks:
            if block in self._by_block:
                self._idle[block] = None
            else:
                strangers.append(block)
        return strangers

    def forget(self, sequence: Sequence) -> None:
        """The sequence has given up its blocks, the last page first. Its pages become the last to be evicted: suffixes
        before prefixes, also where the prefix stands in blocks of another sequence that is gone."""
        _, page = self._kept.pop(sequence, (0, None))
        while page is not None and not page.gone:
            if page.block in self._idle:
                self._idle.move_to_end(page.block)
            page = page.parent

    def evict(self, count: int) -> list[int]:
        """Drop the `count` least recently used idle pages; returns their blocks.

        Raises:
            KeyError: there are fewer.
        """
        blocks = [self._idle.popitem(last=False)[0] for _ in range(count)]
        for block in blocks:
            self._retire(self._by_block.pop(block))
        return blocks

    def check(self, held: set[int]) -> None:
        """`held`: the blocks that sequences hold. O(entries).

        Raises:
            RuntimeError: the accounting does not agree.
        """
        if self._idle.keys() != self._by_block.keys() - held:
            raise RuntimeError("the idle pages are not those in the cache that nobody holds")
        for block, page in self._by_block.items():
            if page.block != block or page.gone is (self._by_key.get(page.key) is page):
                raise RuntimeError(
                    f"the page in block {block} is not found under its key, or though it has gone"
                )
        for key, page in self._by_key.items():
            if page.key != key or self._by_block.get(page.block) is not page:
                raise RuntimeError(f"a key leads to a page that is not in block {page.block} any more")
        last = None
        for index, block in enumerate(self._found):
            found = self._by_block.get(block)
            if found is None or found.index != index or found.parent is not last:
                raise RuntimeError(
                    f"the last look-up still has block {block}, whose page or predecessor has gone"
                )
            last = found

    def _content(self, sequence: Sequence, index: int) -> bytes:
        start = index * self._block_size
        tokens = self._pack(*sequence.token_ids[start : start + self._block_size])
        return tokens if index else sequence.request.tenant.encode(errors="surrogatepass") + tokens

    def _make_key(self, parent_key: bytes, content: bytes) -> bytes:
        hashed = self._hash_next.copy() if parent_key else self._hash_first.copy()
        hashed.update(parent_key + content)
        return hashed.digest()

    def _retire(self, page: _Page) -> None:
        if self._by_key.get(page.key) is page:
            del self._by_key[page.key]
        if page.index < len(self._found) and self._found[page.index] == page.block:
            del self._found[page.index :]
        page.gone = True
        page.parent = None  # So that no chain of pages that have gone is kept in memory.
