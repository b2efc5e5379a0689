"""Kinds and counts of real scheduler outputs against a model that keeps books position by position."""

from __future__ import annotations

import os
import random
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from real_scheduler import Options, RealScheduler

from vime_otel.data import settings
from vime_otel.demo.tiny_model import write_tiny_model
from vime_otel.recorder.vllm_steps import count_step
from vime_otel.recorder.window import StepCounts

pytestmark = pytest.mark.engine

_PATIENCE_STEPS = 2000
# Token ids. All are sampled alike, so that requests of a family find each other's generated tokens in the cache.
_SHARED, _SAMPLED = 10, 11


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A model folder for the configuration; what vLLM does to the environment is undone afterwards."""
    with patch.dict(os.environ):
        yield write_tiny_model(tmp_path_factory.mktemp("scheduler_model"))


@dataclass(frozen=True)
class Arrival:
    """A request: its prompt is `shared` tokens that all may have, then `own` tokens of its family."""

    at: int
    shared: int
    own: int
    family: int
    max_tokens: int
    priority: int


@dataclass(frozen=True)
class Load:
    """A setup and what happens to it: step → which arrival is aborted; steps at which all are preempted."""

    options: Options
    depth: int
    arrivals: list[Arrival]
    aborts: dict[int, int]
    preempt_all: frozenset[int]
    seed: int


@st.composite
def loads(draw: st.DrawFn) -> Load:
    """Small caches, small budgets and several requests, so that all meet all."""
    arrivals = draw(
        st.lists(
            st.builds(
                Arrival,
                at=st.integers(0, 12),
                shared=st.sampled_from([0, 7, 8, 16]),
                own=st.integers(1, 14),
                family=st.integers(1, 3),
                max_tokens=st.integers(1, 24),
                priority=st.integers(0, 2),
            ),
            min_size=2,
            max_size=6,
        )
    )
    arrivals += draw(st.lists(st.sampled_from(arrivals), max_size=4))  # twins: each finds all of the other in the cache
    drafts = draw(st.sampled_from([0, 0, 1, 3]))
    asynchronous = draw(st.booleans())
    block_size = draw(st.sampled_from([1, 1, 2, 4]))
    max_requests = draw(st.integers(2, 8))
    # The largest request must fit, with its drafts and those of a step in flight, beside the block that vLLM keeps.
    largest = max(a.shared + a.own + a.max_tokens for a in arrivals) + 2 * (1 + drafts)
    options = Options(
        blocks=largest // block_size + 2 + draw(st.integers(0, 40)) // block_size,
        block_size=block_size,
        token_budget=draw(st.integers(max(max_requests, 1 + drafts), 40)),
        max_requests=max_requests,
        drafts=drafts,
        prefix_caching=draw(st.sampled_from([True, True, False])),
        asynchronous=asynchronous,
        policy=draw(st.sampled_from(["fcfs", "priority"])),
        v2_model_runner=draw(st.booleans()),
    )
    # Without asynchronous scheduling steps overlap in a pipeline only, and not where there are drafts.
    deep = asynchronous or not drafts
    return Load(
        options,
        depth=draw(st.integers(1, 3)) if deep else 1,
        arrivals=arrivals,
        aborts=draw(st.dictionaries(st.integers(2, 30), st.integers(0, len(arrivals) - 1), max_size=2)),
        preempt_all=frozenset(draw(st.lists(st.integers(3, 30), max_size=2))),
        seed=draw(st.integers(0, 2**16)),
    )


@dataclass
class Books:
    """What is known of one request.

    `tokens` are its prompt and what has come out of it. `owed` are the positions that it has to compute, in this
    residency, before it can generate again. `coming` are the tokens that steps in flight will add if no draft is
    rejected.
    """

    prompt: int
    tokens: int
    owed: set[int] = field(default_factory=set)
    next: int = 0
    coming: int = 0
    resident: bool = False
    residency: int = 0


@dataclass(frozen=True)
class Booked:
    """One request in one step."""

    residency: int
    drafts: int
    samples: bool


class BruteForce:
    """Expected counts by bookkeeping, from scheduler outputs and from what comes out of the engine alone.

    A request that enters the batch owes every position of its prompt and, if it comes back after a preemption, every
    position of what it has generated but the last token: that one no step has ever computed, and computing it makes
    the next token, as always in decoding. Prefix cache hits pay for positions from the front. A request prefills in
    a step that computes a position which it owes, else it decodes. Positions past all tokens that it has, or will
    have once the steps in flight are back, are drafts.
    """

    def __init__(self) -> None:
        self.met: Counter[str] = Counter()
        self._books: dict[str, Books] = {}

    def add(self, name: str, prompt: int) -> None:
        self._books[name] = Books(prompt, prompt)

    def drop(self, name: str) -> None:
        self._books.pop(name, None)

    def preempt(self, names: Iterable[str]) -> None:
        """These have lost their KV cache before what the same scheduler output schedules."""
        for name in names:
            if name in self._books:
                books = self._books[name]
                books.resident, books.coming, books.owed = False, 0, set()

    def schedule(self, output: Any) -> tuple[StepCounts, dict[str, Booked]]:
        """What the step should be counted as, and what each request does in it."""
        cached = output.scheduled_cached_reqs
        told = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        told |= {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        context = generation = resumed = drafts = goes_on = 0
        booked: dict[str, Booked] = {}
        for name, tokens in output.num_scheduled_tokens.items():
            books = self._books[name]
            resumes = not books.resident and books.residency > 0
            as_new = resumes and name not in cached.resumed_req_ids
            resumed += resumes
            if not books.resident:
                self._enter(books, told[name])
            assert books.next == told[name], f"the books of {name} are wrong"
            positions = range(books.next, books.next + tokens)
            prefills = not books.owed.isdisjoint(positions)
            if prefills:
                context += tokens
            else:
                generation += tokens
                goes_on += not resumes
            here = sum(position >= books.tokens + books.coming for position in positions)
            self.met["prefill of generated tokens"] += any(p >= books.prompt for p in books.owed & set(positions))
            self.met["ahead of the sampled tokens"] += books.coming > 0
            books.owed.difference_update(positions)
            books.next += tokens
            self.met["resumed among the new"] += as_new
            self.met["resumed as a decode"] += resumes and not prefills
            self.met["resumed as a decode among the new"] += as_new and not prefills
            self.met["chunked prefill"] += prefills and bool(books.owed)
            self.met["drafts beside a prefill"] += prefills and here > 0
            samples = books.next >= books.tokens + books.coming
            if samples:
                books.coming += 1 + here
            drafts += here
            booked[name] = Booked(books.residency, here, samples)
        counts = StepCounts(
            kind="prefill" if context else "decode",
            mixed=bool(context and generation),
            context_tokens=context,
            generation_tokens=generation,
            requests=len(output.num_scheduled_tokens),
            resumed=resumed,
            speculative_tokens=drafts,
        )
        self.met[counts.kind] += 1
        self.met["mixed"] += counts.mixed
        self.met["resumed"] += resumed > 0
        self.met["resumed beside decodes"] += resumed > 0 and goes_on > 0
        self.met["speculative"] += drafts > 0
        self.met["decode of more than 4 tokens"] += not context and generation > 4
        return counts, booked

    def update(
        self, booked: dict[str, Booked], sampled: dict[str, list[int]], came: dict[str, list[int]], finished: set[str]
    ) -> None:
        """A step has come back: `sampled` by the model, `came` out of the engine."""
        for name, step in booked.items():
            books = self._books.get(name)
            if books is None:
                self.met["ended while in flight"] += step.samples
                continue
            books.tokens += len(came.get(name, ()))
            if not step.samples:
                continue
            if step.residency == books.residency and books.resident:
                rejected = step.drafts + 1 - len(sampled[name])
                books.coming -= 1 + step.drafts
                books.next -= rejected
                self.met["rejected drafts"] += rejected > 0
                self.met["accepted drafts"] += len(sampled[name]) > 1
            else:
                self.met["preempted while in flight"] += 1
        for name in finished:
            self.drop(name)

    def _enter(self, books: Books, told: int) -> None:
        books.resident = True
        books.residency += 1
        books.owed = {*range(books.prompt), *range(books.tokens - 1)} - {*range(told)}
        books.next = told
        self.met["prefix hit"] += told > 0
        self.met["prefix hit when resumed"] += told > 0 and books.residency > 1


def play(model: Path, load: Load, met: Counter[str]) -> None:
    """Run a load to its end and check every scheduler output on the way."""
    chance = random.Random(load.seed)
    engine, expected = RealScheduler(model, load.options), BruteForce()
    in_flight: deque[tuple[Any, dict[str, Booked]]] = deque()
    to_come = {f"r{number}": arrival for number, arrival in enumerate(load.arrivals)}

    def bring_back() -> None:
        output, booked = in_flight.popleft()
        sampled = {}
        for name, step in booked.items():
            real = step.drafts and (load.options.asynchronous or -1 not in output.scheduled_spec_decode_tokens[name])
            accepted = chance.randint(0, step.drafts) if real else 0
            sampled[name] = [_SAMPLED] * (1 + accepted) if step.samples else []
        drafts = load.options.drafts
        came, finished = engine.update(output, sampled, lambda: [_SAMPLED] * chance.randint(0, drafts))
        expected.update(booked, sampled, came, finished)

    for step in range(_PATIENCE_STEPS):
        for name, arrival in list(to_come.items()):
            if arrival.at <= step:
                prompt = [_SHARED] * arrival.shared + [arrival.family] * arrival.own
                engine.add(name, prompt, arrival.max_tokens, arrival.priority)
                expected.add(name, len(prompt))
                del to_come[name]
        if step in load.aborts:
            name = f"r{load.aborts[step]}"
            engine.abort(name)
            expected.drop(name)
        if step in load.preempt_all:
            engine.preempt_all()
        output = engine.schedule()
        expected.preempt(output.preempted_req_ids)
        if output.num_scheduled_tokens:
            counts, booked = expected.schedule(output)
            assert engine.sampling(output) == {name for name, each in booked.items() if each.samples}
            assert count_step(engine.requests, output) == counts
            in_flight.append((output, booked))
            expected.met["scheduler outputs"] += 1
        elif not in_flight and not engine.requests and not to_come:
            met.update(expected.met)
            return
        if in_flight and (len(in_flight) >= load.depth or not output.num_scheduled_tokens):
            bring_back()
    pytest.fail(f"the load did not end within {_PATIENCE_STEPS} steps")


# Each must be met, so that the property says something about it.
_CLASSES = [
    "decode",
    "prefill",
    "mixed",
    "chunked prefill",
    "prefix hit",
    "prefix hit when resumed",
    "resumed",
    "resumed beside decodes",
    "resumed among the new",
    "resumed as a decode",
    "resumed as a decode among the new",
    "prefill of generated tokens",
    "speculative",
    "accepted drafts",
    "rejected drafts",
    "drafts beside a prefill",
    "ahead of the sampled tokens",
    "preempted while in flight",
    "ended while in flight",
    "decode of more than 4 tokens",
]


def test_counts_of_real_schedules_are_those_of_the_books(model: Path) -> None:
    met: Counter[str] = Counter()

    @given(loads())
    def every_output_is_counted_right(load: Load) -> None:
        play(model, load, met)

    every_output_is_counted_right()
    print(", ".join(f"{name}: {count}" for name, count in met.most_common()))
    assert met["scheduler outputs"] >= 1000
    assert not [name for name in _CLASSES if not met[name]]


def test_eight_decodes_are_a_decode_and_a_prefill_where_more_than_4_tokens_are_one(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = RealScheduler(model, Options())
    for number in range(8):
        engine.add(f"r{number}", [number] * 5, max_tokens=4)
    prefill = engine.schedule()
    assert count_step(engine.requests, prefill) == StepCounts("prefill", False, 40, 0, 8)
    engine.update(prefill, {name: [_SAMPLED] for name in engine.sampling(prefill)}, list)
    decode = engine.schedule()
    assert count_step(engine.requests, decode) == StepCounts("decode", False, 0, 8, 8)

    assert settings.decode_tokens() is None
    monkeypatch.setenv("VIME_OTEL_DECODE_TOKENS", "4")
    by_number = count_step(engine.requests, decode, settings.decode_tokens())
    assert by_number == StepCounts("prefill", False, 0, 8, 8)
