"""Incremental clean-up of tokenization spaces, compared with clean-up of the whole text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lmi_server.text.clean_up import CleanUp, cleaned_up

PIECES = st.lists(
    st.sampled_from([" ", "'", "n", "n't", "'v", "e", "r", "s", "m", ".", "?", "!", ",", " ' ", "a"])
)


@given(PIECES)
def test_incremental_clean_up_equals_clean_up_of_the_whole_text(pieces: list[str]) -> None:
    clean_up = CleanUp()
    assert "".join([*map(clean_up.push, pieces), clean_up.flush()]) == cleaned_up("".join(pieces))


def test_only_text_that_may_change_is_held_back() -> None:
    clean_up = CleanUp()
    assert [clean_up.push(piece) for piece in ("I do", " n", "'t", " know", " .")] == [
        "I do",
        "",
        "n't",
        " know",
        ".",
    ]
    assert clean_up.flush() == ""
