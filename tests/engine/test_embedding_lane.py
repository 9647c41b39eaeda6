"""The lane's steps with a made-up encoder: whose vector is whose, and what a failed run means."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.adapters.text import TextAdapter
from engine.batcher import Batcher
from engine.embedding_lane import EmbeddingJob, EmbeddingLane
from engine.errors import Kind, RequestError
from engine.job import Delivery
from tests.engine.tiny_bert import make_tokenizer

BAD = 13  # the id that makes the encoder raise
Array = NDArray[np.float32]


class FakeEncoder:
    """A row's vector is (its first id, its length), so a vector tells whose it is."""

    dimensions = 2

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []
        self.distort: Callable[[Array], object] = lambda vectors: vectors

    def run(self, token_ids: NDArray[np.int32], lengths: NDArray[np.int32]) -> Array:
        self.shapes.append(token_ids.shape)
        if (token_ids == BAD).any():
            raise RuntimeError("bad row")
        return self.distort(np.stack([token_ids[:, 0], lengths], axis=1).astype(np.float32))  # type: ignore[return-value]


@pytest.fixture
def encoder() -> FakeEncoder:
    return FakeEncoder()


@pytest.fixture
def lane(encoder: FakeEncoder) -> EmbeddingLane:
    adapter = TextAdapter(make_tokenizer(), max_tokens=40)
    batcher: Batcher[EmbeddingJob] = Batcher(max_batch=8, max_padded_tokens=1000)
    ticks = iter(range(1000))
    return EmbeddingLane("m", encoder, adapter, batcher, clock=lambda: float(next(ticks)))


def make_job(*rows: Sequence[int]) -> EmbeddingJob:
    return EmbeddingJob(deliver=lambda event: None, arrived_at=0.0, rows=rows)


def run_all(lane: EmbeddingLane) -> list[Delivery]:
    """What a device does, until nothing is ready."""
    deliveries: list[Delivery] = []
    while lane.ready(0.0):
        step = lane.plan(0.0, math.inf)
        if step is None:
            continue
        try:
            deliveries += step.run()
        except RuntimeError as error:
            deliveries += step.fail(error)
    return deliveries


def test_vectors_go_back_to_their_texts(lane: EmbeddingLane, encoder: FakeEncoder) -> None:
    first, second = make_job([2, 3], [7, 8, 9]), make_job([5])
    lane.add(first)
    lane.add(second)
    answers = dict(run_all(lane))
    assert answers[first].tolist() == [[2, 2], [7, 3]]
    assert answers[second].tolist() == [[5, 1]]
    assert encoder.shapes == [(3, 3)]
    assert lane.num_runs == 1


def test_a_job_of_several_batches_is_delivered_once_whole(lane: EmbeddingLane, encoder: FakeEncoder) -> None:
    job = make_job(*([index, 9] for index in range(20) if index != BAD))
    lane.add(job)
    ((delivered, vectors),) = run_all(lane)
    assert delivered is job
    assert vectors[:, 0].tolist() == [index for index in range(20) if index != BAD]
    assert len(encoder.shapes) == 3


def test_O01_one_bad_text_fails_its_job_alone(lane: EmbeddingLane, encoder: FakeEncoder) -> None:
    good = [make_job([index]) for index in range(7)]
    bad = make_job([1], [BAD])
    for job in [*good[:4], bad, *good[4:]]:
        lane.add(job)
    answers = dict(run_all(lane))
    assert all(answers[job].tolist() == [[index, 1]] for index, job in enumerate(good))
    error = answers[bad]
    assert isinstance(error, RequestError)
    assert (error.kind, error.param) == (Kind.FAILED, "input")
    assert error.message == "input[1] could not be embedded: the model failed on it (RuntimeError)"
    assert len(encoder.shapes) <= 2 * 9
    after = [make_job([5]) for _ in range(20)]
    for job in after:
        lane.add(job)
    assert len(run_all(lane)) == 20


@pytest.mark.parametrize(
    "distort",
    [
        lambda vectors: vectors[:-1],
        lambda vectors: np.concatenate([vectors, vectors[:1]]),
        lambda vectors: vectors[:, :1],
        lambda vectors: np.float32(1),
        lambda vectors: vectors.ravel(),
    ],
)
def test_O08_a_wrong_number_of_vectors_fails_the_batch(
    lane: EmbeddingLane, encoder: FakeEncoder, distort: Callable[[Array], object], caplog: pytest.LogCaptureFixture
) -> None:
    encoder.distort = distort
    jobs = [make_job([index]) for index in range(8)]
    for job in jobs:
        lane.add(job)
    answers = run_all(lane)
    assert [job for job, _ in answers] == jobs
    assert all(isinstance(error, RequestError) and error.kind is Kind.FAILED for _, error in answers)
    assert len(encoder.shapes) == 1
    assert "model m gave a result of shape" in caplog.text


def test_a_vector_that_is_not_finite_fails_its_job_alone(lane: EmbeddingLane, encoder: FakeEncoder) -> None:
    def spoil(vectors: Array) -> Array:
        vectors[vectors[:, 0] == 7] = np.nan
        return vectors

    encoder.distort = spoil
    good, bad = make_job([1]), make_job([2], [7], [4])
    lane.add(bad)
    lane.add(good)
    answers = run_all(lane)
    assert [job for job, _ in answers] == [bad, good]
    assert "output tensor embedding is not finite" in answers[0][1].message
    assert answers[1][1].tolist() == [[1, 1]]


def test_O02_cancelled_jobs_are_left_out_when_the_batch_is_formed(lane: EmbeddingLane, encoder: FakeEncoder) -> None:
    gone, stays = make_job([1], [2]), make_job([3])
    lane.add(gone)
    lane.add(stays)
    gone.cancelled = True  # the command to drop it is still on its way
    assert [job for job, _ in run_all(lane)] == [stays]
    assert encoder.shapes == [(1, 1)]
    lane.add(gone)
    assert lane.plan(0.0, math.inf) is None
    assert not lane.ready(0.0)


def test_the_allowance_bounds_a_batch(lane: EmbeddingLane, encoder: FakeEncoder) -> None:
    lane.add(make_job([1] * 10))
    run_all(lane)  # one second by the fake clock, so the pace is known
    lane.add(make_job(*[[1] * 10] * 4))
    allowance_s = lane.pace.seconds_per_token * 21
    step = lane.plan(0.0, allowance_s)
    assert step is not None
    step.run()
    assert encoder.shapes[-1] == (2, 10)
    assert not lane.decoding()
