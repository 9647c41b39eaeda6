"""Rows of a run keep to themselves: chunks, neighbours, idle slots and releases change no answer."""

import errno
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from engine.llm.calibrate import measure_cost
from engine.llm.decoder import Decoder, RowWork, load_decoder
from engine.model_folder import ModelError, ModelFolder

PROMPT = [1, *range(40, 75)]
OTHER = [1, *range(120, 180)]


@pytest.fixture
def decoder(tiny_chat: ModelFolder) -> Iterator[Decoder]:
    decoder = load_decoder(tiny_chat, slots=4, context=128, threads=1)
    yield decoder
    decoder.close()


def logits(decoder: Decoder, *rows: RowWork) -> list[np.ndarray]:
    """All logits of every row of one run."""
    return [row.whole() for answer in decoder.run(rows) for row in answer]


def test_a_prompt_in_chunks_is_the_prompt_whole(decoder: Decoder) -> None:
    (whole,) = logits(decoder, RowWork(0, PROMPT, 0, 1))
    assert decoder.run([RowWork(1, PROMPT[:20], 0, 0)]) == [[]]
    decoder.run([RowWork(1, PROMPT[20:21], 20, 0)])
    (chunked,) = logits(decoder, RowWork(1, PROMPT[21:], 21, 1))
    np.testing.assert_allclose(chunked, whole, atol=0.02)


def test_rows_of_any_length_share_a_run(decoder: Decoder) -> None:
    alone = logits(decoder, RowWork(0, PROMPT, 0, 1)) + logits(decoder, RowWork(3, OTHER, 0, 1))
    decoder.run([RowWork(1, PROMPT[:-1], 0, 0)])
    mixed = decoder.run([RowWork(2, OTHER, 0, 1), RowWork(1, PROMPT[-1:], 35, 1), RowWork(0, [9], 36, 0)])
    assert [len(answer) for answer in mixed] == [1, 1, 0]
    np.testing.assert_allclose(mixed[1][0].whole(), alone[0], atol=0.02)
    np.testing.assert_allclose(mixed[0][0].whole(), alone[1], atol=0.02)


def test_logits_after_several_tokens_of_a_row_are_those_of_single_steps(decoder: Decoder) -> None:
    single = [logits(decoder, RowWork(0, [token], past, 1))[0] for past, token in enumerate(PROMPT)]
    decoder.run([RowWork(1, PROMPT[:20], 0, 0)])
    first, second = decoder.run([RowWork(2, OTHER, 0, 1), RowWork(1, PROMPT[20:30], 20, 10)])
    assert (len(first), len(second)) == (1, 10)
    np.testing.assert_allclose([row.whole() for row in second], single[20:30], atol=0.1)  # one token: other kernels
    every = logits(decoder, *(RowWork(slot, PROMPT, 0, len(PROMPT)) for slot in range(4)))
    np.testing.assert_allclose(every, single * 4, atol=0.1)


def test_a_smaller_past_takes_tokens_back(decoder: Decoder) -> None:
    (expected,) = logits(decoder, RowWork(0, PROMPT[:24], 0, 1))
    decoder.run([RowWork(1, PROMPT[:20], 0, 0)])
    decoder.run([RowWork(1, OTHER[:12], 20, 12)])
    (again,) = logits(decoder, RowWork(1, PROMPT[20:24], 20, 1))
    np.testing.assert_allclose(again, expected, atol=0.02)


def test_at_equal_shapes_an_answer_is_bit_equal_whatever_the_neighbours_say(decoder: Decoder) -> None:
    def answers(neighbour: list[int]) -> list[np.ndarray]:
        decoder.run([RowWork(1, PROMPT, 0, 0), RowWork(2, neighbour, 0, 0)])
        return [
            logits(decoder, RowWork(1, [50 + step], 36 + step, 1), RowWork(2, [neighbour[step]], 36 + step, 1))[0]
            for step in range(8)
        ]

    for one, other in zip(answers(list(range(100, 136))), answers([7] * 36), strict=True):
        np.testing.assert_array_equal(one, other)


def test_an_idle_slot_keeps_what_it_holds(decoder: Decoder) -> None:
    decoder.run([RowWork(1, PROMPT[:-1], 0, 0)])
    (expected,) = logits(decoder, RowWork(1, PROMPT[-1:], 35, 1))
    decoder.run([RowWork(1, PROMPT[:-1], 0, 0)])
    decoder.run([RowWork(0, OTHER, 0, 0), RowWork(2, [5], 0, 0)])  # slot 1 lies idle between them
    (kept,) = logits(decoder, RowWork(1, PROMPT[-1:], 35, 1))
    np.testing.assert_array_equal(kept, expected)


def test_a_released_slot_serves_another_sequence(decoder: Decoder) -> None:
    (expected,) = logits(decoder, RowWork(0, OTHER, 0, 1))
    decoder.run([RowWork(2, PROMPT, 0, 0)])
    assert decoder.kv_bytes_committed == decoder.kv_bytes_for(len(OTHER)) + decoder.kv_bytes_for(len(PROMPT))
    decoder.release(2)
    decoder.release(0)
    assert decoder.kv_bytes_committed == 0
    (again,) = logits(decoder, RowWork(2, OTHER, 0, 1))
    np.testing.assert_array_equal(again, expected)


def test_the_best_logits_and_the_logsumexp_are_those_of_the_whole_vocabulary(decoder: Decoder) -> None:
    rows = decoder.run([RowWork(slot, PROMPT[: 5 + slot], 0, 1) for slot in range(4)])
    for (row,) in rows:
        whole = row.whole()
        assert whole.shape == (decoder.vocab_size,)
        np.testing.assert_array_equal(row.logits, np.sort(whole)[::-1][:64])
        np.testing.assert_array_equal(row.logits, whole[row.ids])
        assert row.logsumexp == pytest.approx(np.log(np.exp(whole.astype(np.float64)).sum()), abs=1e-5)


def test_results_outlive_the_next_run(decoder: Decoder) -> None:
    ((row,),) = decoder.run([RowWork(0, PROMPT, 0, 1)])
    ids, best = row.ids.copy(), row.logits.copy()
    decoder.run([RowWork(1, OTHER, 0, 1)])
    np.testing.assert_array_equal(row.ids, ids)
    np.testing.assert_array_equal(row.logits, best)


def test_the_context_can_be_filled_to_its_last_token(decoder: Decoder) -> None:
    decoder.run([RowWork(0, [9] * 127, 0, 0)])
    rows = decoder.run([RowWork(0, [9], 127, 1), RowWork(1, OTHER, 0, 1)])  # the long row pads the full one
    assert all(np.isfinite(row.logits).all() for (row,) in rows)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([RowWork(0, [1], 0, 1), RowWork(0, [2], 1, 1)], "share a slot"),
        ([RowWork(4, [1], 0, 1)], "slot 4 is not one of 4"),
        ([RowWork(0, [], 0, 1)], "0 new tokens"),
        ([RowWork(0, [1] * 513, 0, 1)], "513 new tokens"),
        ([RowWork(0, [1], 128, 1)], r"128 \+ 1 tokens pass the context of 128"),
        ([RowWork(0, [1, 2], 0, 3)], "logits after 3 of 2 tokens"),
    ],
)
def test_impossible_work_is_refused(decoder: Decoder, rows: list[RowWork], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decoder.run(rows)


def test_no_rows_are_no_run(decoder: Decoder) -> None:
    assert decoder.run([]) == []


def test_warming_up_leaves_nothing_behind(decoder: Decoder) -> None:
    measure_cost(decoder)
    assert decoder.kv_bytes_committed == 0


def test_more_stretches_of_slots_than_bindings_are_kept(
    tiny_chat: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.llm.decoder.MAX_BINDINGS", 2)
    decoder = load_decoder(tiny_chat, slots=4, threads=1)
    first = [logits(decoder, RowWork(slot, PROMPT, 0, 1))[0] for slot in range(4)]
    for slot in range(4):
        np.testing.assert_array_equal(logits(decoder, RowWork(slot, PROMPT, 0, 1))[0], first[slot])


def test_a_context_beyond_the_models_is_refused(tiny_chat: ModelFolder) -> None:
    with pytest.raises(ModelError, match="context of 257 passes the model's 256"):
        load_decoder(tiny_chat, slots=1, context=257, threads=1)


def test_too_little_address_space_is_named(tiny_chat: ModelFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr("mmap.mmap", refuse)
    with pytest.raises(ModelError, match=r"4 slots of 256 tokens .*Cannot allocate memory.*fewer slots"):
        load_decoder(tiny_chat, slots=4, threads=1)


@pytest.mark.parametrize("name", ["vocab_size", "layers", "kv_heads", "head_dim", "top_k"])
def test_a_graph_of_other_sizes_than_the_manifest_says_is_named(tiny_chat: ModelFolder, name: str) -> None:
    facts = tiny_chat.chat.model_copy(update={name: getattr(tiny_chat.chat, name) + 1})
    manifest = tiny_chat.manifest.model_copy(update={"chat": facts})
    decoder = load_decoder(replace(tiny_chat, manifest=manifest), slots=2, threads=1)
    with pytest.raises(ModelError, match="cannot run with the sizes in the manifest"):
        measure_cost(decoder)
