"""Helpers of `djl_python` that LMI's handlers import, and errors for unsupported modules."""

from __future__ import annotations

import asyncio
import datetime
import importlib
import io
import threading
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from djl_python import Input, Output
from djl_python.async_utils import (
    create_non_stream_output,
    create_stream_chunk_output,
    handle_streaming_response,
)
from djl_python.encode_decode import decode
from djl_python.streaming_utils import STREAM_THREAD, StreamingUtils
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from tests.engines.python.handlers.line import make_input
from tests.support.tiny_models import load_oracle, save_llama
from tests.support.tokenizers import save_gpt2

PROMPTS = ["hello world", "pack my box with five dozen"]


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("huggingface", "the server generates text itself"),
        ("lmi_vllm.vllm_async_service", "the server generates text itself"),
        ("rolling_batch.rolling_batch", "the server generates text itself"),
        ("sklearn_handler", "write @init_handler and @prediction_handler"),
        ("sagemaker", "option.entryPoint"),
        ("chat_completions.chat_utils", "/v1/chat/completions"),
        ("properties_manager.properties", r"inputs\.get_properties\(\)"),
        ("service_loader", "internal to LMI"),
    ],
)
def test_importing_an_unsupported_module_names_an_alternative(name: str, advice: str) -> None:
    with pytest.raises(
        ImportError,
        match=f"djl_python.{name.split('.')[0]} is not part of this server; remove this import.*: .*{advice}",
    ):
        importlib.import_module(f"djl_python.{name}")


def test_importing_an_unsupported_name_gives_advice() -> None:
    with pytest.raises(ImportError, match="keep the state of sessions in the handler"):
        from djl_python import SessionManager  # type: ignore[attr-defined] # noqa: F401


def test_a_missing_key_of_the_content_is_none() -> None:
    content = make_input(b"x").get_content()
    assert content.get("other") is None
    assert content.get("data") == b"x"


def test_the_loading_call_is_decoded_as_an_empty_text() -> None:
    assert decode(Input(), None) == {"inputs": ""}
    with pytest.raises(ValueError, match="Expecting value"):
        decode(make_input(b"x"), None)


def test_keys_that_are_not_set_mean_the_body() -> None:
    assert make_input(b"[1]").get_as_json("") == [1]
    assert make_input(b"[1]").get_as_json(0) == [1]  # type: ignore[arg-type]


def test_names_of_outputs_that_handlers_use() -> None:
    assert Output.binary_encode({"data": "hi", "last": True}) == b"hi"
    assert Output.binary_encode({"data": {"a": 1}}) == b'{"a": 1}'
    assert Output._default_stream_output_formatter("a") == b'{"outputs": "a"}\n'
    assert Output._encode_json({"at": datetime.datetime(2024, 1, 1)}) == b'{"at": "2024-01-01 00:00:00"}'


@pytest.mark.parametrize("data", ["", "a part of the text"])
def test_an_output_takes_on_the_status_of_a_record(data: str) -> None:
    record = Output.binary_encode({"data": data, "last": True, "error": "no", "code": 400})
    assert record == b'{"error": "no", "code": 400}'
    assert Output().add(record).code == 400
    assert Output(201).add(Output.binary_encode({"data": data})).code == 201


def test_properties_of_an_output_are_found_by_name() -> None:
    output = Output().add_property("Content-Type", "text/plain")
    assert output.get_property("content-type") == "text/plain"
    assert output.get_property("other") is None


@pytest.mark.parametrize("mode", ["RGBA", "L"])
def test_images_keep_their_mode(mode: str) -> None:
    image = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    image.new(mode, (2, 3)).save(file, "PNG")
    found = make_input(file.getvalue()).get_as_image()
    assert (found.mode, found.size) == (mode, (2, 3))


def _body(output: Output) -> Any:
    return output.content.value_at(0)


def test_outputs_of_asynchronous_handlers() -> None:
    whole = create_non_stream_output({"text": "ü"}, properties={"X": "1"})
    assert (_body(whole), whole.code) == ('{"text": "ü"}\n'.encode(), 200)
    assert whole.properties == {"Content-Type": "application/json", "X": "1"}
    bad = create_non_stream_output("", error="no such model", code=404)
    assert (_body(bad), bad.code) == (b'{"error": "no such model", "code": 404}\n', 404)
    chunk = create_stream_chunk_output("a", False)
    assert (_body(chunk), chunk.properties["Content-Type"]) == (b"a\n", "application/jsonlines")


@pytest.mark.parametrize("accumulates", [False, True])
def test_a_stream_is_formatted_until_its_last_chunk(accumulates: bool) -> None:
    async def words() -> AsyncIterator[str]:
        for word in ("a", "b", "end", "never"):
            yield word

    def write(chunk: str, suffix: str, history: list[str] | None = None) -> Any:
        if history is None:
            return chunk + suffix, chunk == "end"
        seen = [*history, chunk]
        return "".join(seen) + suffix, chunk == "end", seen

    async def collect() -> list[bytes]:
        stream = handle_streaming_response(words(), write, accumulates, suffix="!")
        return [_body(output) async for output in stream]

    expected = [b"a!\n", b"ab!\n", b"abend!\n"] if accumulates else [b"a!\n", b"b!\n", b"end!\n"]
    assert asyncio.run(collect()) == expected


def test_a_failing_formatter_ends_the_stream_with_an_error() -> None:
    async def words() -> AsyncIterator[str]:
        yield "a"

    async def collect() -> list[bytes]:
        return [_body(output) async for output in handle_streaming_response(words(), lambda chunk: 1 / 0)]

    assert asyncio.run(collect()) == [b'{"error": "division by zero", "code": 424}\n']


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, PreTrainedTokenizerBase]:
    folder = tmp_path_factory.mktemp("model")
    size = save_gpt2(folder, as_json=True)
    save_llama(folder, vocab_size=size, eos_token_id=0, pad_token_id=None)
    return load_oracle(folder, "fp32"), AutoTokenizer.from_pretrained(folder)


def _generate(model: Any, tokenizer: Any, max_new_tokens: int) -> list[str]:
    """Return the generated text of each prompt alone."""
    texts = []
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
        out = model.generate(**ids, max_new_tokens=max_new_tokens, do_sample=False, pad_token_id=0)[0]
        start = len(tokenizer.decode(ids["input_ids"][0], skip_special_tokens=True))
        texts.append(tokenizer.decode(out, skip_special_tokens=True)[start:])
    return texts


@pytest.mark.parametrize("engine", ["Accelerate", "DeepSpeed"])
def test_streamed_text_equals_generate(model: tuple[Any, Any], engine: str) -> None:
    stream = StreamingUtils.get_stream_generator(engine)
    steps = list(stream(*model, PROMPTS, "cpu", max_new_tokens=7))
    assert len(steps) <= 7
    texts = ["".join(step[row] for step in steps) for row in range(2)]
    assert texts == _generate(*model, 7)


def test_the_default_streamer_starts_with_the_prompts(model: tuple[Any, Any]) -> None:
    steps = StreamingUtils.use_hf_default_streamer(*model, PROMPTS, None, max_new_tokens=2)
    assert next(iter(steps)) == PROMPTS


@pytest.mark.parametrize(("device", "expected"), [(None, "meta"), ("cpu", "cpu")])
def test_inputs_are_on_the_models_device_by_default(
    device: str | None, expected: str, model: tuple[Any, Any]
) -> None:
    def generate(input_ids: Any, attention_mask: Any, streamer: Any, **_: Any) -> None:
        devices.update({str(input_ids.device), str(attention_mask.device)})
        streamer.end()

    config = SimpleNamespace(is_encoder_decoder=False)
    fake = SimpleNamespace(device="meta", config=config, generate=generate)
    devices: set[str] = set()
    list(StreamingUtils.get_stream_generator("Accelerate")(fake, model[1], PROMPTS, device))
    assert devices == {expected}


@pytest.mark.parametrize(("is_encoder_decoder", "ends"), [(False, [0, 1]), (True, [1, 0])])
def test_prompts_are_padded_on_the_right_only_for_an_encoder(
    is_encoder_decoder: bool, ends: list[int], model: tuple[Any, Any]
) -> None:
    def generate(attention_mask: Any, streamer: Any, **_: Any) -> None:
        masks.append(attention_mask[0, [0, -1]].tolist())
        streamer.end()

    config = SimpleNamespace(is_encoder_decoder=is_encoder_decoder)
    fake = SimpleNamespace(device="cpu", config=config, generate=generate)
    masks: list[list[int]] = []
    list(StreamingUtils.get_stream_generator("Accelerate")(fake, model[1], PROMPTS))
    assert masks == [ends]


def test_the_same_seed_samples_the_same_text(model: tuple[Any, Any]) -> None:
    stream = StreamingUtils.get_stream_generator("Accelerate")
    runs = [list(stream(*model, PROMPTS, None, temperature=1.5, manual_seed=3)) for _ in range(2)]
    assert runs[0] == runs[1]


def test_errors_are_raised_in_the_stream(model: tuple[Any, Any]) -> None:
    stream = StreamingUtils.get_stream_generator("Accelerate")
    with pytest.raises(ValueError, match="top_k"):
        list(stream(*model, PROMPTS, None, top_k=-3))
    with pytest.raises(ValueError, match="list of at least one text"):
        list(stream(*model, "text"))
    with pytest.raises(ValueError, match="beam_size: beam search is not supported in a stream"):
        list(stream(*model, PROMPTS, None, beam_size=4))
    with pytest.raises(ValueError, match="Onnx engine is not supported"):
        StreamingUtils.get_stream_generator("Onnx")


def test_an_error_of_the_tokenizer_is_raised_in_the_stream(
    model: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = model[1].decode
    prompt_length = len(model[1](PROMPTS[0])["input_ids"])

    def fail_at_second_token(tokens: list[int], **named: Any) -> Any:
        if len(tokens) >= prompt_length + 2:
            raise ValueError("cannot decode")
        return decode(tokens, **named)

    monkeypatch.setattr(model[1], "decode", fail_at_second_token)
    stream = StreamingUtils.get_stream_generator("Accelerate")(
        *model, PROMPTS[:1], None, max_new_tokens=5, min_new_tokens=5
    )
    errors: list[str] = []

    def read() -> None:
        next(stream)
        try:
            next(stream)
        except ValueError as error:
            errors.append(str(error))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(30.0)
    assert errors == ["cannot decode"]


def test_closing_a_stream_stops_the_model(model: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    steps = 0
    forward = model[0].forward

    def counted(*arguments: Any, **named: Any) -> Any:
        nonlocal steps
        steps += 1
        return forward(*arguments, **named)

    monkeypatch.setattr(model[0], "forward", counted)
    before = set(threading.enumerate())  # the thread of an earlier stream may not have exited yet
    generator = StreamingUtils.get_stream_generator("Accelerate")
    stream = generator(*model, PROMPTS, None, max_new_tokens=5_000, min_new_tokens=5_000)
    next(stream)
    (thread,) = [each for each in threading.enumerate() if each.name == STREAM_THREAD and each not in before]
    stream.close()
    thread.join()
    assert steps < 5_000
