"""Stand-ins for what a test does not want: time, a model, a client. They have tests too."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from kokuban.core.pooling import Pooling, PoolingParams
from kokuban.core.request import NO_BLOCK, BlockId, Pin, Request, RequestId
from kokuban.core.sampling_params import SamplingParams
from kokuban.core.speculation import Offer, Wanted
from kokuban.core.step import (
    BlockCopy,
    BlockLoad,
    BlockMove,
    BlockStore,
    Chunk,
    ChunkOutput,
    SampledToken,
    StepPlan,
    StepResult,
)
from kokuban.kvcache.contents import BlockContent


def make_request(
    name: str = "r",
    num_tokens: int = 5,
    *,
    prompt: Sequence[int] | None = None,
    max_tokens: int | None = 4,
    min_tokens: int = 0,
    prompt_logprobs: int | None = None,
    end_token_ids: Sequence[int] = (),
    arrival_s: float = 0.0,
    priority: int = 0,
    deadline_s: float | None = None,
    tenant: str = "",
    cache_scope: str = "",
    session: str = "",
    pins: Sequence[Pin] = (),
    pooling: Pooling | None = None,
) -> Request:
    """A request whose prompt, unless given, is its own: no other name has the same tokens."""
    if prompt is None:
        first = zlib.crc32(name.encode())
        prompt = [(first + index) % 50_000 for index in range(num_tokens)]
    return Request(
        id=RequestId(name),
        prompt_token_ids=tuple(prompt),
        params=SamplingParams(
            temperature=0.0,
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            prompt_logprobs=prompt_logprobs,
        ),
        end_token_ids=frozenset(end_token_ids),
        arrival_s=arrival_s,
        priority=priority,
        deadline_s=deadline_s,
        tenant=tenant,
        cache_scope=cache_scope,
        session=session,
        pins=tuple(pins),
        pooling=None if pooling is None else PoolingParams(pooling=pooling),
    )


def next_token(token_ids: Sequence[int]) -> int:
    """What the fake model says after these tokens: a function of all of them and of their order."""
    return zlib.crc32(b"".join(token.to_bytes(4, "little") for token in token_ids)) % 50_000


def continuation(prompt: Sequence[int], num_tokens: int) -> list[int]:
    """What the fake model says when it has the machine to itself."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


def fake_embedding(token_ids: Sequence[int]) -> bytes:
    """What the fake model makes of a prompt that is pooled."""
    return b"".join(token.to_bytes(4, "little") for token in token_ids)


class FakeProposer:
    """Guesses what the fake model says, now and then on purpose something else.

    Args:
        percent: how many of the guesses are right: a function of the position, not of the run.
        most: drafts that it offers at once.
    """

    chances = (0.7,)

    def __init__(self, percent: int = 100, most: int = 16) -> None:
        self.percent = percent
        self.most = most
        self.num_wanted: list[int] = []
        """For each call of `propose` the requests that it was for."""

        self.known: set[RequestId] = set()
        """Requests that it was asked about and that have not ended."""

    def offer(self, request_id: RequestId, token_ids: Sequence[int], most: int) -> Offer:
        self.known.add(request_id)
        return Offer(min(most, self.most))

    def propose(self, wanted: Sequence[Wanted]) -> list[tuple[int, ...]]:
        self.num_wanted.append(len(wanted))
        return [self._guess(each.token_ids, each.num_tokens) for each in wanted]

    def _guess(self, token_ids: Sequence[int], num_tokens: int) -> tuple[int, ...]:
        tokens = list(token_ids)
        for _ in range(num_tokens):
            is_right = zlib.crc32(len(tokens).to_bytes(4, "little")) % 100 < self.percent
            tokens.append(next_token(tokens) + (0 if is_right else 1))
        return tuple(tokens[len(token_ids) :])

    def round_s(self, num_requests: int, context_tokens: int) -> float:
        return 0.0

    def forget(self, request_id: RequestId) -> None:
        self.known.discard(request_id)

    def close(self) -> None:
        pass


class FakeClock:
    """A clock that stands still until it is told to advance."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> float:
        self.now_s += seconds
        return self.now_s


FakeKv = tuple[int, int, int]
"""What the fake model keeps of a token: group, position, token id."""


@dataclass(slots=True)
class _Row:
    request: Request
    num_tokens: int
    """Prompt and output so far, as the plans have told."""

    num_computed: int
    tables: list[list[BlockId]]


class FakeRunner:
    """Runs step plans on a KV cache that holds token ids, and checks that the plans make sense.

    A step first moves blocks, in order, then writes the tokens of its chunks into their slots,
    then reads every sampling request's whole sequence back through its block tables. So a table
    that is wrong, a block that two requests write or one that was given away too early changes the
    text, or trips an assert.

    Args:
        block_size: token slots in a block.
        windows: for each KV group the tokens it looks back; None: all. The first must be None.
    """

    def __init__(self, block_size: int = 16, windows: Sequence[int | None] = (None,)) -> None:
        assert windows[0] is None, "the fake model reads its text from the first group"
        self._block_size = block_size
        self._windows = tuple(windows)
        self._slots: dict[tuple[BlockId, int], FakeKv] = {}
        self.host: dict[int, dict[int, FakeKv]] = {}
        """What each slot of host memory holds, by offset."""

        self._rows: dict[RequestId, _Row] = {}
        self._pooled: dict[RequestId, list[int]] = {}
        self.failures: dict[RequestId, str] = {}
        """Requests whose chunks fail, with the error."""

        self.num_steps = 0
        self.num_tokens = 0

    @property
    def row_ids(self) -> set[RequestId]:
        """Requests that have a row."""
        return set(self._rows)

    def run(self, plan: StepPlan) -> StepResult:
        self._update_rows(plan)
        for move in plan.moves:
            self._move(move)
        for chunk in plan.chunks:
            self._write(chunk)
        outputs = {}
        for chunk in plan.chunks:
            if output := self._output(chunk):
                outputs[chunk.request_id] = output
        self.num_steps += 1
        self.num_tokens += plan.num_tokens
        return StepResult(plan.step, outputs)

    def _update_rows(self, plan: StepPlan) -> None:
        for request_id in plan.ended:
            del self._rows[request_id]
            self._pooled.pop(request_id, None)
        for admission in plan.admitted:
            request = admission.request
            assert request.id not in self._rows, f"{request.id} is admitted twice"
            num_tokens = len(request.prompt_token_ids) + len(admission.output_token_ids)
            self._rows[request.id] = _Row(request, num_tokens, 0, [[] for _ in self._windows])
        for chunk in plan.chunks:
            tables = self._rows[chunk.request_id].tables
            for group, index, block in chunk.rewrites:
                assert tables[group][index] not in (NO_BLOCK, block), "a rewrite of nothing"
                tables[group][index] = block
            for table, new in zip(tables, chunk.new_block_ids, strict=True):
                table.extend(new)

    def _move(self, move: BlockMove) -> None:
        match move:
            case BlockCopy(source, target):
                assert source != target, "a block is copied onto itself"
                self._fill(target, self._content(source))
            case BlockStore(block, slot):
                self.host[slot] = self._content(block)
            case BlockLoad(slot, block):
                self._fill(block, self.host[slot])

    def _content(self, block: BlockId) -> dict[int, FakeKv]:
        offsets = range(self._block_size)
        return {i: self._slots[block, i] for i in offsets if (block, i) in self._slots}

    def _fill(self, block: BlockId, content: dict[int, FakeKv]) -> None:
        for offset in range(self._block_size):
            self._slots.pop((block, offset), None)
            if offset in content:
                self._slots[block, offset] = content[offset]

    def _write(self, chunk: Chunk) -> None:
        row = self._rows[chunk.request_id]
        # A jump ahead is a prefix that was cached; it can only be the row's first chunk.
        assert chunk.start == row.num_computed or row.num_computed == 0, "a gap in the sequence"
        for group, table in enumerate(row.tables):
            for position, token in enumerate(chunk.token_ids, start=chunk.start):
                block, offset = self._locate(table, position)
                self._slots[block, offset] = (group, position, token)
        row.num_computed = chunk.start + len(chunk.token_ids)
        known = row.num_computed - chunk.num_drafts
        assert known <= row.num_tokens, "more tokens than the sequence has"
        assert len(row.tables[0]) == -(-row.num_computed // self._block_size), "spare blocks"

    def _output(self, chunk: Chunk) -> ChunkOutput | None:
        row = self._rows[chunk.request_id]
        if error := self.failures.get(chunk.request_id):
            return ChunkOutput(error=error)
        sequence = self._read(row, 0, 0, row.num_computed)
        for group, window in enumerate(self._windows):
            first = max(0, chunk.start - window + 1) if window else 0
            seen = self._read(row, group, first, row.num_computed)
            assert seen == sequence[first:], f"group {group} holds other tokens"
        scores = self._scores(row.request, chunk)
        if row.request.pooling is not None:
            return self._pool(row, chunk, sequence)
        if not chunk.samples:
            return ChunkOutput(prompt_logprobs=scores) if scores else None
        assert row.num_computed - chunk.num_drafts == row.num_tokens, "a sample from the middle"
        return ChunkOutput(self._sample(row, chunk, sequence), scores)

    def _sample(self, row: _Row, chunk: Chunk, sequence: Sequence[int]) -> tuple[SampledToken, ...]:
        """The next token, and those after drafts that were right; forgets drafts that were not."""
        tokens: list[int] = []
        known = row.num_tokens
        for draft in (*sequence[known:], None):
            tokens.append(next_token(sequence[: known + len(tokens)]))
            if tokens[-1] != draft:
                break
        row.num_tokens += len(tokens)
        row.num_computed = row.num_tokens - 1
        if chunk.num_drafts:
            for table in row.tables:
                del table[-(-row.num_computed // self._block_size) :]
        return tuple(map(SampledToken, tokens))

    def _pool(self, row: _Row, chunk: Chunk, sequence: Sequence[int]) -> ChunkOutput | None:
        """The tokens themselves; of a mean those that were computed for it, whatever was cached."""
        assert not chunk.samples, "a chunk that is pooled and sampled"
        computed = self._pooled.setdefault(row.request.id, [])
        computed += chunk.token_ids
        if row.num_computed < row.num_tokens:
            return None
        tokens = computed if row.request.needs_every_row else sequence
        return ChunkOutput(embedding=fake_embedding(tokens))

    def _scores(self, request: Request, chunk: Chunk) -> tuple[SampledToken, ...]:
        if request.params.prompt_logprobs is None:
            return ()
        end = chunk.start + len(chunk.token_ids)
        scored = request.prompt_token_ids[chunk.start + 1 : end + 1]
        return tuple(
            SampledToken(token, logprob=-float(position))
            for position, token in enumerate(scored, start=chunk.start + 1)
        )

    def _read(self, row: _Row, group: int, start: int, end: int) -> list[int]:
        tokens = []
        for position in range(start, end):
            held_group, held_position, token = self._slots[
                self._locate(row.tables[group], position)
            ]
            assert (held_group, held_position) == (group, position), "a slot of somebody else"
            tokens.append(token)
        return tokens

    def _locate(self, table: Sequence[BlockId], position: int) -> tuple[BlockId, int]:
        index, offset = divmod(position, self._block_size)
        assert table[index] != NO_BLOCK, f"position {position} has no block"
        return table[index], offset


@dataclass(frozen=True, slots=True)
class FakeDiskJob:
    kind: str
    content: BlockContent
    slot: int
    ok: bool = True


class FakeDisk:
    """A disk that works when it is told to, and may lose what it has.

    Args:
        host: slots of host memory, as `FakeRunner.host`.
        num_blocks: contents that it holds; the first written are the first to go.
    """

    def __init__(self, host: dict[int, dict[int, FakeKv]], num_blocks: int = 1000) -> None:
        self._host = host
        self.max_blocks = num_blocks
        self.kept: dict[BlockContent, dict[int, FakeKv]] = {}
        self._queue: list[FakeDiskJob] = []
        self._done: list[FakeDiskJob] = []

    @property
    def num_queued(self) -> int:
        return len(self._queue)

    @property
    def num_blocks(self) -> int:
        return len(self.kept)

    @property
    def room(self) -> int:
        return 8 - len(self._queue)

    def contains(self, content: BlockContent) -> bool:
        return content in self.kept

    def write(self, content: BlockContent, slot: int) -> bool:
        if self.room < 1:
            return False
        self._queue.append(FakeDiskJob("write", content, slot))
        return True

    def read(self, content: BlockContent, slot: int) -> None:
        self._queue.append(FakeDiskJob("read", content, slot))

    def take_done(self) -> list[FakeDiskJob]:
        done, self._done = self._done, []
        return done

    def forget(self, content: BlockContent) -> None:
        self.kept.pop(content, None)
        stopped = [j for j in self._queue if j.content == content and j.kind == "write"]
        self._queue = [j for j in self._queue if j not in stopped]
        self._done += [FakeDiskJob(j.kind, j.content, j.slot, ok=False) for j in stopped]

    def clear(self) -> None:
        """Forget everything; writes under way are not done, reads fail."""
        self.kept.clear()
        self._done += [FakeDiskJob(j.kind, j.content, j.slot, ok=False) for j in self._queue]
        self._queue.clear()

    def work(self, count: int = 1000) -> None:
        """Do the first `count` jobs."""
        jobs, self._queue = self._queue[:count], self._queue[count:]
        for job in jobs:
            ok = True
            if job.kind == "write":
                self.kept[job.content] = dict(self._host[job.slot])
                if len(self.kept) > self.max_blocks:
                    del self.kept[next(iter(self.kept))]
            elif ok := job.content in self.kept:
                self._host[job.slot] = dict(self.kept[job.content])
            self._done.append(FakeDiskJob(job.kind, job.content, job.slot, ok))
