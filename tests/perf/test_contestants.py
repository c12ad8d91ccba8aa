"""Calls from Python as contestants, with the least of torch that they need, and the measurement programs that time so."""

import contextlib
import re
import types
from pathlib import Path

import pytest
from fake_driver import LAUNCH_SECONDS, fake_driver

from gemmgen.perf import contestants
from gemmgen.perf.timing import capture

__all__ = ["fake_driver"]

PROGRAMS = sorted((Path(__file__).resolve().parents[2] / "measurements").glob("*.py"))


class Torch:
    """As much of torch as a contestant asks for; the fake driver counts the launches of a call."""

    def __init__(self):
        self.cuda = types.SimpleNamespace(Stream=self.stream, synchronize=lambda: None, stream=self.on)
        self.current = []

    def stream(self, device):
        return types.SimpleNamespace(cuda_stream=77, device=device)

    @contextlib.contextmanager
    def on(self, stream):
        self.current.append(stream.cuda_stream)
        yield
        self.current.pop()


@pytest.fixture
def timed(fake_driver, monkeypatch):
    """Median seconds of calls that enqueue so many launches each, and the sets that they were called on."""
    monkeypatch.setattr(contestants, "capture_torch", lambda cleanup, torch, stream, work: capture(cleanup, stream.cuda_stream, work))
    monkeypatch.setattr(contestants, "WARM_UP_SECONDS", 0.0)
    torch, seen = Torch(), []

    def run(launches, sets):
        def work(count):
            def enqueue(index):
                seen.append((torch.current[-1], index))
                for _ in range(count):
                    fake_driver._enqueue(77, ("kernel",), ())

            return enqueue

        fake_driver.kernels["kernel"] = lambda launch, values: None
        return contestants.median_seconds(torch, {name: work(count) for name, count in launches.items()}, sets=sets, rounds=5), seen

    return run


def test_a_call_takes_as_long_as_its_launches(timed):
    seconds, _ = timed({"one": 1, "three": 3}, sets=2)
    assert seconds == pytest.approx({"one": LAUNCH_SECONDS, "three": 3 * LAUNCH_SECONDS})


def test_calls_go_through_all_sets_on_the_stream_of_the_contest(timed):
    _, seen = timed({"one": 1}, sets=3)
    assert seen[:3] == [(77, 0), (77, 1), (77, 2)]
    assert {index for _, index in seen} == {0, 1, 2}
    assert {stream for stream, _ in seen} == {77}


def test_a_trial_tells_seconds_of_one_launch(monkeypatch):
    monkeypatch.setattr(contestants, "replay_seconds", lambda stream, graphs, rounds, meanwhile: [[graph] * rounds for graph in graphs])
    one = contestants.Contestant("one", "peer", lambda index: None, lambda enqueue: 8e-3)
    assert contestants.trial_seconds(0, [one], 4) == [2e-3]


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_programs_leave_graphs_and_events_to_the_package(path):
    assert not re.search(r"CUDAGraph|elapsed_time|Event\(enable_timing", path.read_text())
