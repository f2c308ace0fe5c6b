"""Replays by compiled code: the same as those of the model, and hand-worked ones."""

import ctypes
import random
import shutil
import subprocess
import sys
from array import array
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from test_card_replay import CONFIGS, MIB, PLAIN, decoding, repeating, trace_of, traces
from test_step_replay import pieces_of, random_trace

from maintenance.environments import compiled_replay as building
from profiler.allocator import AllocatorConfig, CardReplay, Trace, TraceBuilder, replay_on_card
from profiler.allocator.traces import smallest_fit as module
from profiler.allocator.traces.card_replay import RefusedError, StepPeaks, StepReplay
from profiler.allocator.traces.smallest_fit import arrays_of, compiled_replay, loaded, replays
from profiler.allocator.traces.trace import Piece, piece_of
from profiler.domain.errors import ProfilerError
from profiler.domain.memory import Category, Phase
from profiler.worker import forecast
from profiler.worker.forecast import step_replay

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


KNOWN = (
    PLAIN,
    AllocatorConfig(addresses_descend=True),
    AllocatorConfig(large_segment_bytes=32 * MIB),
    AllocatorConfig(per_process_memory_fraction=0.5),
)
"""Settings that the compiled code knows."""


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    file = tmp_path_factory.mktemp("compiled") / "smallest_fit.so"
    building.build(file)
    return loaded(file)


def compared(library: ctypes.CDLL, trace: Trace, config: AllocatorConfig, capacity: int | None) -> CardReplay:
    """Return the replay by compiled code, after comparing it with that of the model, orders of keys included."""
    found = compiled_replay(library, arrays_of(trace), config=config, capacity_bytes=capacity, total_bytes=capacity)
    expected = replay_on_card(trace, capacity_bytes=capacity, config=config)
    assert found == expected
    assert [*found.phases, *found.breakdown, *found.live_bytes] == [
        *expected.phases,
        *expected.breakdown,
        *expected.live_bytes,
    ]
    return found


def with_many_holes() -> Trace:
    """Of a thousand blocks of unlike sizes in both pools every other one is freed, twice; then others are requested."""
    builder = TraceBuilder()
    builder.enter(Phase.FORWARD)
    made = [builder.allocate(512 * (number * 7919 % 5000 + 1), Category.ACTIVATIONS) for number in range(1000)]
    for first in (1, 2):
        for block in made[first::4]:
            builder.free(block)
    for number, block in enumerate(made[::4]):
        builder.allocate(512 * (number * 104_729 % 4000 + 1), Category.GRADIENTS)
        builder.free(block)
    return builder.finished()


@given(st.one_of(traces(), repeating()), st.sampled_from(KNOWN), st.one_of(st.none(), st.integers(1, 200 * MIB)))
@example(decoding(40), PLAIN, 120 * MIB)
@example(decoding(40), PLAIN, None)
@example(with_many_holes(), PLAIN, None)
@example(with_many_holes(), PLAIN, 1000 * MIB)
def test_compiled_replays_are_those_of_the_model(
    library: ctypes.CDLL, trace: Trace, config: AllocatorConfig, capacity: int | None
) -> None:
    compared(library, trace, config, capacity)


@given(st.one_of(traces(), repeating()), st.sampled_from(KNOWN))
@example(with_many_holes(), PLAIN)
def test_compiled_counters_are_those_of_the_model(library: ctypes.CDLL, trace: Trace, config: AllocatorConfig) -> None:
    piece, found = piece_of(trace, 0, len(trace.events), first_block=0), []
    for each in (library, None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "compiled", lambda each=each: each)
            found.append(module.counters_of(piece, config))
    assert found[0] == found[1]


def test_arrays_of_other_numbers_are_not_replayed(library: ctypes.CDLL) -> None:
    allocator = module.CompiledAllocator(library, capacity_bytes=None, config=PLAIN)
    events, sizes, actual = array("i", [1]), array("q", [512]), array("q", [0])
    assert allocator.run(0, 1, events, sizes, actual)[0] == 0  # it needs new memory
    for wrong in ((array("q", [1]), sizes, actual), (events, array("d", [512]), actual)):
        with pytest.raises(TypeError, match="whole numbers"):
            allocator.run(0, 1, *wrong)


def test_a_full_card_returns_its_cache(library: ctypes.CDLL) -> None:
    builder = TraceBuilder()
    builder.enter(Phase.FORWARD)
    builder.free(builder.allocate(12 * MIB, Category.ACTIVATIONS))
    builder.enter(Phase.BACKWARD)
    builder.allocate(14 * MIB, Category.GRADIENTS)
    builder.allocate(10 * MIB, Category.GRADIENTS)
    trace = builder.finished()
    unlimited, full, refused = (compared(library, trace, PLAIN, most) for most in (None, 24 * MIB, 23 * MIB))
    # By hand: without a limit 12 are cached when 14 are requested, and serve the 10. On a card of 24 they are returned.
    assert (unlimited.peak_reserved_bytes, unlimited.num_alloc_retries) == (26 * MIB, 0)
    assert (full.peak_reserved_bytes, full.num_alloc_retries) == (24 * MIB, 1)
    assert refused.refusal is not None
    assert (refused.refusal.requested_bytes, refused.refusal.free_bytes) == (10 * MIB, 9 * MIB)
    assert (refused.events_reached, refused.num_alloc_retries) == (3, 2)


def test_a_peak_before_new_memory_stays(library: ctypes.CDLL) -> None:
    # By hand: 5 MiB of a segment of 20 come and go, before a segment of the small pool is taken.
    load = compared(library, trace_of([1, -1, 2], [5 * MIB, 1]), PLAIN, None).phases[Phase.LOAD]
    assert (load.peak_allocated_bytes, load.peak_reserved_bytes) == (5 * MIB, 22 * MIB)


def attention(seed: int) -> Trace:
    """Layers decode between caches that grow, by few kinds of runs that free what they allocate, in both pools."""
    numbers, builder = random.Random(seed), TraceBuilder()
    builder.enter(Phase.LOAD)
    scale = numbers.choice([MIB // 4, MIB, 2 * MIB])
    kinds = [[numbers.randint(1, 3) * scale - 512 * numbers.randint(0, 3) for _ in range(3)] for _ in range(3)]
    kinds.append([512 * numbers.randint(1, 5), 2 * scale])
    others = [builder.allocate(numbers.randint(1, 9 * MIB), Category.OTHER) for _ in range(30)]
    caches = [builder.allocate(numbers.randint(1, 30) * MIB, Category.KV_CACHE) for _ in range(4)]
    courses = [numbers.choice(["+++---", "++-+--", "+-++--", "++--+-"]) for _ in kinds]
    for step in range(40):
        if step % 10 == 3:
            builder.enter(numbers.choice([Phase.ROLLOUT, Phase.FORWARD]))
        if numbers.random() < 0.4:
            builder.free(others.pop(numbers.randrange(len(others))))
            others.append(builder.allocate(numbers.randint(0, 3 * MIB), Category.OTHER))
        if step == 30:
            builder.empty_cache()
        for layer, old in enumerate(caches):
            caches[layer] = builder.allocate(
                builder.sizes_bytes[old] + 512 * numbers.randint(1, 900), Category.KV_CACHE
            )
            builder.free(old)
            kind = layer % len(kinds) if numbers.random() < 0.9 else numbers.randrange(len(kinds))
            made: list[int] = []
            sizes = iter(kinds[kind] * 3)
            for action in courses[kind]:
                if action == "+":
                    made.append(builder.allocate(next(sizes), Category.ACTIVATIONS))
                else:
                    builder.free(made.pop(0 if kind % 2 else -1))
    return builder.finished()


@pytest.mark.parametrize("capacity", [None, 340 * MIB])
def test_runs_that_find_the_same_are_passed_over(library: ctypes.CDLL, capacity: int | None) -> None:
    found = [compared(library, attention(seed), config, capacity) for seed in range(60) for config in KNOWN[:2]]
    assert capacity is None or any(each.num_alloc_retries for each in found)
    assert capacity is None or any(each.refusal is None for each in found)


def test_a_run_that_is_passed_over_has_its_peaks(library: ctypes.CDLL) -> None:
    builder = TraceBuilder()
    builder.enter(Phase.FORWARD)
    kept = builder.allocate(2 * MIB, Category.WEIGHTS)
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        builder.enter(phase)
        builder.free(builder.allocate(3 * MIB, Category.ACTIVATIONS))
    small = builder.allocate(1 * MIB, Category.GRADIENTS)
    highest = builder.allocate(3 * MIB, Category.ACTIVATIONS)
    builder.free(highest)
    # By hand: of 20 MiB 2 are kept and 3 come and go, the last time next to 1 of the small pool.
    found = compared(library, builder.finished(), PLAIN, None)
    assert found.phases[Phase.FORWARD].peak_allocated_bytes == 5 * MIB
    assert found.live_bytes == {kept: 2 * MIB, small: 1 * MIB, highest: 3 * MIB}
    assert (found.peak_event, found.peak_phase) == (6, Phase.BACKWARD)


def test_a_run_with_other_sizes_is_not_passed_over(library: ctypes.CDLL) -> None:
    builder = TraceBuilder()
    builder.enter(Phase.FORWARD)
    builder.free(builder.allocate(60 * MIB, Category.OTHER))
    builder.enter(Phase.BACKWARD)
    for inner_mib in (2, 2, 2, 5, 2):
        builder.allocate(512, Category.GRADIENTS)
        outer = builder.allocate(3 * MIB, Category.ACTIVATIONS)
        inner = builder.allocate(inner_mib * MIB, Category.ACTIVATIONS)
        builder.free(inner)
        builder.free(outer)
    found = compared(library, builder.finished(), PLAIN, None)
    assert found.phases[Phase.BACKWARD].peak_allocated_bytes == 8 * MIB + 4 * 512


def test_a_run_that_is_passed_over_has_its_peak_in_it(library: ctypes.CDLL) -> None:
    builder = TraceBuilder()
    builder.enter(Phase.FORWARD)
    builder.free(builder.allocate(8 * MIB + 512, Category.OTHER))
    for _ in range(4):
        kept = builder.allocate(512, Category.GRADIENTS)
        outer = builder.allocate(3 * MIB, Category.ACTIVATIONS)
        inner = builder.allocate(5 * MIB + 512, Category.ACTIVATIONS)
        builder.free(inner)
        builder.free(outer)
    # By hand: two events of the first block, then runs of four after a small block each; the fourth is the highest.
    found = compared(library, builder.finished(), PLAIN, None)
    assert found.peak_event == 2 + 3 * 5 + 2
    assert found.live_bytes[inner] == 5 * MIB + 512
    assert found.live_bytes[outer] == 3 * MIB
    assert found.live_bytes[kept] == 512


@pytest.mark.parametrize("rest", [0, 1])
def test_a_rest_that_is_too_small_is_wasted(library: ctypes.CDLL, rest: int) -> None:
    # By hand: 5 MiB of 20, then what leaves so many steps of 512 bytes beyond 1 MiB, and 1 MiB of the small pool's 2.
    sizes = [5 * MIB, 14 * MIB - 512 * rest, 1 * MIB, 1 * MIB]
    found = compared(library, trace_of([1, 2, 3, 4], sizes), PLAIN, None)
    assert found.live_bytes[1] == (14 * MIB - 512 if rest else 15 * MIB)
    assert found.peak_reserved_bytes == 22 * MIB


def test_events_that_are_no_trace(library: ctypes.CDLL) -> None:
    with pytest.raises(ValueError, match="without events"):
        compared(library, TraceBuilder().finished(), PLAIN, None)
    for events in ([1, -1, -1], [1, -2], [1, 3]):
        with pytest.raises(KeyError):
            compiled_replay(library, arrays_of(trace_of(events, [512])), config=PLAIN, capacity_bytes=None)


@given(repeating(), st.sampled_from(CONFIGS), st.integers(1, 100 * MIB), st.booleans())
def test_each_setting_has_the_replay_of_the_model(
    library: ctypes.CDLL, trace: Trace, config: AllocatorConfig, capacity: int, is_built: bool
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "compiled", lambda: library if is_built else None)
        found = replays(trace, config, capacity_bytes=capacity, total_bytes=2 * capacity)
    assert found == (
        replay_on_card(trace, capacity_bytes=None, config=config),
        replay_on_card(trace, capacity_bytes=capacity, config=config, total_bytes=2 * capacity),
    )


def test_blocks_of_other_streams_are_replayed_by_the_model(
    library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "compiled", lambda: library)
    builder = TraceBuilder()
    builder.free(builder.allocate(12 * MIB, Category.ACTIVATIONS))
    builder.streams[builder.allocate(12 * MIB, Category.ACTIVATIONS)] = 1
    # By hand: a stream is served from its own free blocks only.
    found, _ = replays(builder.finished(), PLAIN, capacity_bytes=80 * MIB, total_bytes=80 * MIB)
    assert found.peak_reserved_bytes == 24 * MIB


def steps_of(replay: StepReplay, steps: list[list[Piece]]) -> list[StepPeaks | tuple[object, int]]:
    """Return the peaks of each step, up to the refused request and the number of its piece."""
    found: list[StepPeaks | tuple[object, int]] = []
    for step in steps:
        try:
            found.append(replay.step(step))
        except RefusedError as error:
            return [*found, (error.refusal, error.piece)]
    return found


@given(
    st.lists(st.integers(0, 3000), min_size=12, max_size=80),
    st.lists(st.integers(0, 80), max_size=8),
    st.sampled_from(CONFIGS),
    st.one_of(st.none(), st.integers(10 * MIB, 400 * MIB)),
)
@example([64, 64, 3, 3, 128, 128, 3, 3] * 5, list(range(0, 40, 3)), PLAIN, None)
def test_runs_by_compiled_code_are_those_of_the_model(
    library: ctypes.CDLL, choices: list[int], cuts: list[int], config: AllocatorConfig, capacity: int | None
) -> None:
    trace = random_trace(choices)
    pieces = pieces_of(trace, [min(cut, len(trace.events)) for cut in cuts])
    steps = [pieces[at : at + 2] for at in range(0, len(pieces), 2)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(forecast, "compiled", lambda: library)
        compiled = step_replay(steps[0], config, capacity_bytes=capacity)
    assert (type(compiled) is StepReplay) == (config not in KNOWN)
    assert steps_of(compiled, steps) == steps_of(StepReplay(capacity_bytes=capacity, config=config), steps)


def test_runs_of_other_streams_are_replayed_by_the_model(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast, "compiled", lambda: library)
    plain = Piece(events=[1, -1], first_block=0, sizes_bytes=[12 * MIB], phases=[(0, Phase.FORWARD)])
    other = Piece(events=[2], first_block=1, sizes_bytes=[12 * MIB], phases=[(0, Phase.FORWARD)], streams={0: 1})
    # By hand: a stream is served from its own free blocks only.
    assert step_replay([plain, other], PLAIN, capacity_bytes=None).step([plain, other]).reserved_bytes == 24 * MIB
    with pytest.raises(ValueError, match="another stream follows"):
        step_replay([plain], PLAIN, capacity_bytes=None).step([plain, other])


def test_the_compiled_code_is_that_of_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "smallest_fit.c"
    source.write_bytes(module.SOURCE.read_bytes())
    monkeypatch.setattr(module, "SOURCE", source)
    building.main()
    before = module.library_file()
    assert before is not None
    assert before.exists()
    source.write_text(f"{source.read_text()}\n")
    assert module.compiled.__wrapped__() is None
    building.main()
    assert not before.exists()
    after = module.library_file()
    assert after is not None
    after.write_text("a library of another machine")
    assert module.compiled.__wrapped__() is None
    source.unlink()
    assert module.compiled.__wrapped__() is None


_REPLAYING = """
import sys
from pathlib import Path
from profiler.allocator.traces import smallest_fit
from profiler.analytical.replayed.requests import Requests

smallest_fit.SOURCE = Path(sys.argv[1])
requests = Requests()
requests.allocate(4096)
print(*(requests.counters("").peak_allocated_bytes for _ in range(2)))
"""


@pytest.mark.parametrize(
    ("library", "said"),
    [
        (lambda _: None, "is not built"),
        (lambda file: file.with_name("smallest_fit-0123456789ab.so").write_text(""), "is older than its source"),
        (lambda file: file.write_text("not for this machine"), "was built for another machine"),
        (building.build, ""),
        (lambda _: module.SOURCE.unlink(), ""),  # as in a wheel
    ],
)
def test_replays_in_python_are_announced_once(tmp_path, monkeypatch, library, said):
    source = tmp_path / "smallest_fit.c"
    source.write_bytes(module.SOURCE.read_bytes())
    monkeypatch.setattr(module, "SOURCE", source)
    library(module.library_file())

    done = subprocess.run([sys.executable, "-c", _REPLAYING, str(source)], capture_output=True, text=True, check=True)

    assert done.stdout == "4096 4096\n"
    expected = f"The compiled replay {said}, so replays run in Python, which takes up to 20 times longer."
    assert done.stderr == (f"{expected} Build it: {module.BUILD}\n" if said else "")


@pytest.mark.parametrize("is_there", [True, False])
def test_without_a_working_compiler_nothing_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: "/bin/false" if is_there else None)
    with pytest.raises(ProfilerError, match="could not be built" if is_there else "was not found"):
        building.build(tmp_path / "smallest_fit.so")
    assert not list(tmp_path.iterdir())
