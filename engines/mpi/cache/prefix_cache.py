"""The prefix cache: full pages of computed tokens, found by their tokens and all tokens before them.

A page's key is a hash of its tokens and the previous page's key (for the first page, the tenant), under a secret of
this process. Keys only make lookups fast. Every hit compares the tokens, and checks that the page continues the very
page object found before it. So by induction a hit has the same tenant and the same tokens from the first on, even if
two hashes collide.
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
    """One page in the cache. Immutable until it is `gone`; a page that is gone never comes back."""

    __slots__ = ("block", "content", "gone", "index", "key", "parent")

    def __init__(self, block: int, key: bytes, parent: _Page | None, content: bytes) -> None:
        self.block = block
        self.key = key
        self.parent = parent
        """The previous page; None for the first."""
        self.index: int = 0 if parent is None else parent.index + 1
        """Index of the page in every prompt that contains it."""
        self.content = content
        """Tokens of the page; for the first page, the tenant's name, then the tokens."""
        self.gone = False
        """True when lookups can no longer find the page."""


class PrefixCache:
    """The cached pages and their blocks. The block manager tracks who holds the blocks.

    When several sequences compute the same page at the same time, the first one offered is cached. The blocks of the
    other sequences are not cached, but their following pages are chained to the cached page. A page whose predecessor
    is gone is no longer found, and is replaced when its tokens are computed again.
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
        """Cached blocks that no sequence holds, in the order of eviction."""
        self._last_pages: dict[Sequence, tuple[int, _Page | None]] = {}
        """For each sequence that holds blocks: how many of its first pages were found or offered, and the cached
        page that equals the last of them, its own or another sequence's. When that page is gone or None, the
        sequence adds no more pages."""
        self._looked_up: Sequence | None = None
        """Sequence of the last lookup. A sequence that waits for room is looked up in every step."""
        self._found_blocks: list[int] = []
        """Blocks of the first pages of `_looked_up`. Pages that are gone are removed at once, so the next lookup
        only searches for further pages."""

    @property
    def num_idle(self) -> int:
        """Number of cached blocks that no sequence holds."""
        return len(self._idle)

    def find(self, sequence: Sequence) -> list[int]:
        """Return the blocks of the sequence's first pages, as many as are cached. Its last token is never in one of
        them.

        A repeated lookup costs as much as has changed, regardless of the sequence's length. The list belongs to the
        cache and is valid until the next call.
        """
        if sequence is not self._looked_up:
            self._looked_up, self._found_blocks = sequence, []
        blocks = self._found_blocks
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
        """Mark the blocks that `find` returned (at least one) as held by the sequence, from index `first` on. The
        next token of the sequence does not see the blocks before `first`."""
        for block in blocks[first:]:
            self._idle.pop(block, None)
        self._last_pages[sequence] = len(blocks), self._by_block[blocks[-1]]

    def add_full_pages(self, sequence: Sequence) -> None:
        """Add the sequence's pages that are computed completely and were not offered before."""
        first, last = self._last_pages.get(sequence, (0, None))
        stop = sequence.num_settled_tokens // self._block_size
        if stop <= first:
            return
        self._last_pages[sequence] = stop, None
        if first and (last is None or last.gone):
            return
        settled = sequence.num_settled_tokens
        if self._window is not None and first * self._block_size < self._window.first_token(settled):
            # Finite logits say nothing about tokens that have left the window. Their blocks may belong to others by
            # now.
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
                return  # Another page has the same key: the cached page stays.
            last = page
        self._last_pages[sequence] = stop, last

    def share(self, source: Sequence, sequence: Sequence) -> None:
        """Record that the sequence took over the source's first pages, up to its own `num_computed_tokens`."""
        count, page = self._last_pages.get(source, (0, None))
        num_pages = min(count, sequence.num_computed_tokens // self._block_size)
        for _ in range(count - num_pages):
            page = page.parent if page is not None else None
        self._last_pages[sequence] = num_pages, page

    def retain(self, blocks: Iterable[int]) -> list[int]:
        """Keep the cached ones of these blocks as idle, and return the others. No sequence holds the blocks any
        more."""
        uncached = []
        for block in blocks:
            if block in self._by_block:
                self._idle[block] = None
            else:
                uncached.append(block)
        return uncached

    def forget(self, sequence: Sequence) -> None:
        """Forget a sequence that has released its blocks, the last page first. Its pages become the last to be
        evicted: suffixes before prefixes, even where the prefix is in blocks of another sequence that has ended."""
        _, page = self._last_pages.pop(sequence, (0, None))
        while page is not None and not page.gone:
            if page.block in self._idle:
                self._idle.move_to_end(page.block)
            page = page.parent

    def evict(self, count: int) -> list[int]:
        """Evict the `count` least recently used idle pages; return their blocks.

        Raises:
            KeyError: there are fewer idle pages.
        """
        blocks = [self._idle.popitem(last=False)[0] for _ in range(count)]
        for block in blocks:
            self._retire(self._by_block.pop(block))
        return blocks

    def check(self, held: set[int]) -> None:
        """Audit the cache. O(entries).

        held: blocks that sequences hold.

        Raises:
            RuntimeError: the accounting is inconsistent.
        """
        if self._idle.keys() != self._by_block.keys() - held:
            raise RuntimeError("the idle pages differ from the cached pages that no sequence holds")
        for block, page in self._by_block.items():
            if page.block != block or page.gone is (self._by_key.get(page.key) is page):
                raise RuntimeError(
                    f"the page in block {block} is not found by its key, or is found although evicted"
                )
        for key, page in self._by_key.items():
            if page.key != key or self._by_block.get(page.block) is not page:
                raise RuntimeError(f"a key refers to a page that is no longer in block {page.block}")
        last = None
        for index, block in enumerate(self._found_blocks):
            found = self._by_block.get(block)
            if found is None or found.index != index or found.parent is not last:
                raise RuntimeError(
                    f"the last lookup still has block {block}, whose page or parent was evicted"
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
        if page.index < len(self._found_blocks) and self._found_blocks[page.index] == page.block:
            del self._found_blocks[page.index :]
        page.gone = True
        page.parent = None  # Chains of pages that are gone must not stay in memory.
