"""What `headrace model fit` promises is what a decoder commits."""

from hypothesis import given
from hypothesis import strategies as st

from engine.llm.decoder import load_decoder
from engine.llm.fit import fits, longest_context
from engine.manifest import ChatFacts
from engine.model_folder import ModelFolder

SMOLLM2 = ChatFacts(
    layers=30,
    hidden=576,
    heads=9,
    kv_heads=3,
    head_dim=64,
    vocab_size=49152,
    context=8192,
    max_chunk=512,
    top_k=64,
    eos_ids=(2,),
)


def test_slots_by_context_in_the_memory_that_the_weights_leave() -> None:
    rows = [(row.context, row.slot_bytes >> 20, row.slots) for row in fits(SMOLLM2, 1 << 30)]
    assert rows == [(8192, 360, 2), (4096, 180, 5), (2048, 90, 11), (1024, 45, 22), (512, 22, 45)]
    assert [row.slots for row in fits(SMOLLM2, -1)] == [0] * 5


def test_a_slot_takes_what_the_decoder_commits(tiny_chat: ModelFolder) -> None:
    decoder = load_decoder(tiny_chat, slots=2, threads=1)
    (row,) = fits(tiny_chat.chat, 1 << 30)
    assert (row.context, row.slot_bytes) == (decoder.context, decoder.kv_bytes_for(decoder.context))
    decoder.close()


@given(st.integers(-1, 400 << 20))
def test_the_longest_context_fits_and_one_token_more_does_not(kv_bytes: int) -> None:
    def takes(context: int) -> int:
        (row, *_) = fits(SMOLLM2.model_copy(update={"context": context}), kv_bytes)
        return row.slot_bytes

    longest = longest_context(SMOLLM2, kv_bytes)
    assert longest == 0 or takes(longest) <= kv_bytes
    assert longest == SMOLLM2.context or takes(longest + 1) > kv_bytes
