"""Stop strings across token boundaries, compared with a search of the whole text."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from engines.core import FinishReason, RequestOutput, SamplingParams
from lmi_server.generation.answer_text import (
    Completion,
    CompletionText,
    GenerationRequest,
    PromptText,
    TextRules,
)
from lmi_server.text.detokenizer import IncrementalDetokenizer
from lmi_server.text.tokenizer import TextModel

ALPHABET = "ab é😀你"
"""Few letters, so that stop strings occur. Some are one token, others several tokens that are no text by themselves."""
CHUNKS = st.lists(st.text(ALPHABET, max_size=4), max_size=12)
STOPS = st.lists(st.text(ALPHABET, min_size=1, max_size=5), max_size=4)


def naive(text: str, stops: list[str], include: bool, num_kept: int = 0) -> tuple[str, bool]:
    """Search letter by letter. Returns the text up to the first complete stop string, and whether there is one.

    `num_kept`: number of letters in which no stop string ends the text.
    """
    for end in range(num_kept + 1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[:end] if include else text[: end - max(map(len, ending))], True
    return text, False


def run(
    text_model: TextModel,
    ids: list[int],
    rules: TextRules,
    prompt: str,
    per_step: int,
    min_new_tokens: int = 0,
) -> tuple[list[str], list[str], Completion]:
    """Return the shown text of each step, the text of the tokens released by each step, and the completion."""
    sampling = SamplingParams(max_new_tokens=len(ids) + 1, min_new_tokens=min_new_tokens)
    request = GenerationRequest(prompt, text_model.encode(prompt), sampling, rules, "inputs")
    continuation = CompletionText(0, PromptText(request, text_model))
    shown, released_texts = [], []
    for at in range(0, len(ids), per_step):
        last = at + per_step >= len(ids)
        reason = FinishReason.LENGTH if last else None
        step = continuation.add_output(
            RequestOutput("a", tuple(ids[at : at + per_step]), finish_reason=reason)
        )
        shown.append(step.shown)
        released_texts.append("".join(token.text for token in step.released))
        if step.completion is not None:
            return shown, released_texts, step.completion
    raise AssertionError("the text was not completed")


@given(CHUNKS, STOPS, st.text(ALPHABET, min_size=1, max_size=6), st.integers(1, 3), st.booleans())
@example(["a", "b", "é"], ["bé", "abé"], "a", 1, False)
@example(["😀", "a"], ["😀a", "a"], "😀", 1, False)
@example(["b a"], ["ab"], "a", 1, False)
def test_text_ends_at_the_first_stop_string(
    text_model: TextModel, chunks: list[str], stops: list[str], prompt: str, per_step: int, include: bool
) -> None:
    """A stop string that starts in the prompt does not count."""
    ids = [token for chunk in chunks for token in text_model.encode(chunk)] or list(text_model.encode("a"))
    text = text_model.decode(ids)
    expected, stopped = naive(text, stops, include)
    rules = TextRules(continues_prompt=True, stop_strings=tuple(stops), include_stop=include)
    shown, released_texts, completion = run(text_model, ids, rules, prompt, per_step)
    assert completion.text == "".join(shown) == expected
    assert completion.finish_reason is (FinishReason.STOP_SEQUENCE if stopped else FinishReason.LENGTH)
    for number in range(1, len(shown) + 1):
        visible = "".join(shown[:number])
        assert expected.startswith(visible)
        assert visible.startswith("".join(released_texts[:number]))
    assert "".join(token.text for token in completion.released) == "".join(released_texts)
    if not stopped:
        assert "".join(released_texts) == expected


@given(CHUNKS, st.lists(st.text("é😀你 ", min_size=1, max_size=3), max_size=3), st.booleans(), st.booleans())
def test_a_special_token_can_be_a_stop_string(
    text_model: TextModel, chunks: list[str], stops: list[str], include: bool, skip: bool
) -> None:
    name = "<|im_start|>"
    ids = [token for chunk in chunks for token in text_model.encode(chunk)]
    expected, _ = naive(text_model.decode(ids) + name, [*stops, name], include)
    rules = TextRules(True, (*stops, name), include_stop=include, skip_special_tokens=skip)
    ids += [text_model.special_tokens[name], *text_model.encode("ab")]
    shown, _, completion = run(text_model, ids, rules, "a", 1)
    assert completion.text == "".join(shown) == expected
    assert completion.finish_reason is FinishReason.STOP_SEQUENCE


@given(CHUNKS, STOPS, st.integers(0, 12), st.integers(1, 3), st.booleans())
@example(["a", "b", "a", "b"], ["ab"], 2, 1, False)
@example(["a", "b"], ["ab", "a"], 1, 1, False)
def test_stop_strings_are_text_before_min_new_tokens(
    text_model: TextModel, chunks: list[str], stops: list[str], least: int, per_step: int, include: bool
) -> None:
    ids = [token for chunk in chunks for token in text_model.encode(chunk)] or list(text_model.encode("a"))
    detokenizer = IncrementalDetokenizer(text_model)
    num_kept = len("".join([detokenizer.push(token) for token in ids[:least]]))
    expected, stopped = naive(text_model.decode(ids), stops, include, num_kept)
    rules = TextRules(continues_prompt=True, stop_strings=tuple(stops), include_stop=include)
    shown, _, completion = run(text_model, ids, rules, "a", per_step, least)
    assert completion.text == "".join(shown) == expected
    assert completion.finish_reason is (FinishReason.STOP_SEQUENCE if stopped else FinishReason.LENGTH)


def test_a_special_token_does_not_stop_before_min_new_tokens(text_model: TextModel) -> None:
    name = "<|im_start|>"
    number = text_model.special_tokens[name]
    [a], [b] = text_model.encode("a"), text_model.encode("b")
    rules = TextRules(True, stop_strings=(name,))
    _, _, completion = run(text_model, [number, a, number, b], rules, "a", 1, min_new_tokens=1)
    assert completion.text == "a"
    assert completion.finish_reason is FinishReason.STOP_SEQUENCE
