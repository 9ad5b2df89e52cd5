"""Malformed requests as plain data, each with the words that its error message must contain.

Nothing is imported from the server, so the requests can be sent to any running server with a context of at most 100,000
tokens and the default `max_request_size`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

INVOCATIONS = "/invocations"
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
JSON_TYPE = "application/json"


@dataclass(frozen=True, slots=True)
class Malformed:
    """A request and its expected error."""

    name: str
    path: str
    body: bytes
    mentions: tuple[str, ...]
    """Parts of the error message: field, value, limit."""
    status: int
    content_type: str | None = JSON_TYPE


def _case(name: str, path: str, body: Any, mentions: tuple[str, ...], status: int) -> Malformed:
    return Malformed(
        name, path, body if isinstance(body, bytes) else json.dumps(body).encode(), mentions, status
    )


def _lmi(name: str, body: Any, *mentions: str) -> Malformed:
    return _case(name, INVOCATIONS, body, mentions, 424)


def _content_type(name: str, content_type: str, *mentions: str) -> Malformed:
    mentions = ("Content-Type", *mentions)
    return Malformed(name, INVOCATIONS, b'{"inputs": "Hello"}', mentions, 415, content_type)


def _parameter(parameter: str, value: Any, *mentions: str) -> Malformed:
    body = {"inputs": "Hello", "parameters": {parameter: value}}
    return _lmi(f"{parameter}={json.dumps(value)[:40]}", body, f"parameters.{parameter}", *mentions)


def _combination(parameters: dict[str, Any], *mentions: str) -> Malformed:
    body = {"inputs": "Hello", "parameters": parameters}
    return _lmi(f"combination {json.dumps(parameters)}", body, *mentions)


def _chat(name: str, body: Any, *mentions: str) -> Malformed:
    return _case(f"chat {name}", CHAT, body, mentions, 400)


def _fields(fields: dict[str, Any], *mentions: str) -> Malformed:
    return _chat(f"fields {json.dumps(fields)[:60]}", {"messages": _user("Hello"), **fields}, *mentions)


def _field(field: str, value: Any, *mentions: str) -> Malformed:
    return _fields({field: value}, field, *mentions)


def _completions(name: str, body: Any, *mentions: str) -> Malformed:
    return _case(f"completions {name}", COMPLETIONS, body, mentions, 400)


def _prompt(name: str, prompt: Any, *mentions: str) -> Malformed:
    return _completions(name, {"prompt": prompt}, *mentions)


def _completions_field(field: str, value: Any, *mentions: str) -> Malformed:
    return _completions(
        f"{field}={json.dumps(value)[:40]}", {"prompt": "Hello", field: value}, field, *mentions
    )


def _messages(name: str, messages: Any, *mentions: str) -> Malformed:
    return _chat(name, {"messages": messages}, *mentions)


def _user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


def body_with_duplicate_name(num_names: int) -> bytes:
    """Return a JSON object with `num_names` names, the last of which repeats the first."""
    names = [f'"n{number}": 0' for number in range(num_names - 1)]
    return ("{" + ", ".join([*names, '"n0": 0']) + "}").encode()


BODIES: tuple[Malformed, ...] = (
    # Not JSON, or not a valid object
    _lmi("empty body", b"", "body", "empty", "JSON object"),
    _lmi("blank body", b" \n ", "body", "empty", "JSON object"),
    _lmi("not JSON", b"inputs=Hello", "body", "not valid JSON", "JSON object"),
    _lmi("truncated", b'{"inputs": "Hel', "body", "not valid JSON", "column"),
    _lmi("two objects", b"{}{}", "body", "not valid JSON"),
    _lmi("a list", b'["Hello"]', "body", "a list", "JSON object"),
    _lmi("a string", b'"Hello"', "body", "a string", "JSON object"),
    _lmi("a number", b"12", "body", "a number", "JSON object"),
    _lmi("null", b"null", "body", "null", "JSON object"),
    _lmi("not UTF-8", b'{"inputs": "caf\xe9"}', "body", "0xe9", "UTF-8"),
    _lmi("unpaired surrogate", b'{"inputs": "\\ud83d"}', "body", "\\ud83d", "valid Unicode"),
    _lmi("NaN", b'{"inputs": "Hello", "parameters": {"temperature": NaN}}', "NaN", "finite"),
    _lmi(
        "number that overflows to infinity",
        b'{"inputs": "Hello", "parameters": {"temperature": 1e999}}',
        "temperature",
        "100",
    ),
    _lmi(
        "number of 5000 digits", b'{"inputs": "Hello", "parameters": {"seed": ' + b"9" * 5000 + b"}}", "body"
    ),
    _lmi("nested too deeply", b'{"inputs": ' + b"[" * 40 + b"]" * 40 + b"}", "body", "32", "nested"),
    _lmi("nested 400,000 levels deep", b'{"inputs": ' + b"[" * 400_000, "body", "32", "nested"),
    _lmi("duplicate name", b'{"inputs": "a", "inputs": "b"}', "body", "inputs", "duplicate name"),
    _lmi("duplicate name among 100,000", body_with_duplicate_name(100_000), "body", '"n0"', "duplicate name"),
    _lmi("long duplicate name", b'{"%s": 1, "%s": 2}' % (2 * (b"n" * 10_000,)), "nnn", "duplicate name"),
    _lmi("long unknown name", {"inputs": "Hello", "n" * 10_000: 1}, "nnn", "unknown name"),
    _lmi("a million values", b'{"inputs": [' + b"0," * 1_000_000 + b"0]}", "more than 500000 values"),
    _lmi("a million lists", b'{"inputs": [' + b"[[]]," * 500_000 + b"0]}", "more than 500000 values"),
    # Headers
    _content_type("plain text", "text/plain", "text/plain", JSON_TYPE),
    _content_type("form data", "application/x-www-form-urlencoded", "form-urlencoded", JSON_TYPE),
    _content_type("two content types", "application/json, text/plain", "application/json, text/plain"),
    _content_type("other character set", "application/json; charset=utf-16", "utf-16", "UTF-8"),
    # Fields of /invocations
    _lmi("no inputs", {}, "inputs: missing", "string"),
    _lmi("empty inputs", {"inputs": ""}, "inputs", '""', "not empty"),
    _lmi("inputs is null", {"inputs": None}, "inputs", "null", "string"),
    _lmi("inputs is a number", {"inputs": 5}, "inputs", "5", "string"),
    _lmi(
        "inputs is a list",
        {"inputs": ["a", "b"]},
        "inputs",
        '["a", "b"]',
        "accepted: a string",
        "engine=Python takes lists",
    ),
    _lmi("two prompts", {"inputs": "a", "prompt": "b"}, "prompt", "one of messages, prompt, inputs"),
    _lmi("messages and a prompt", {"messages": [], "prompt": "a"}, "one of messages, prompt, inputs"),
    _lmi("prompt is a number", {"prompt": 5}, "prompt", "5", "a string"),
    _lmi("inputs too long", {"inputs": "word " * 120_000}, "inputs", "option.max_model_len", "at most"),
    _lmi(
        "inputs of 12 million characters",
        {"inputs": "a" * 12_000_000},
        "inputs",
        "option.max_model_len",
        "12000000",
    ),
    _lmi("misspelled field", {"input": "Hello"}, "input", "'inputs'"),
    _lmi(
        "unknown field",
        {"inputs": "Hello", "colour": "red"},
        'colour: unknown name, given with value "red"; known: inputs, messages, model, parameters, prompt, stream',
    ),
    _lmi(
        "parameter at the top level", {"inputs": "Hello", "max_new_tokens": 5}, "max_new_tokens", "parameters"
    ),
    _lmi("parameters is a list", {"inputs": "Hello", "parameters": [1]}, "parameters", "[1]", "an object"),
    _lmi("stream is a string", {"inputs": "Hello", "stream": "true"}, "stream", '"true"', "true or false"),
    _lmi("stream is a number", {"inputs": "Hello", "stream": 1}, "stream", "1", "true or false"),
    _lmi("model is a number", {"inputs": "Hello", "model": 7}, "model", "7", "256"),
    _lmi("adapters", {"inputs": "Hello", "adapters": ["a1"]}, "adapters", "a1", "LoRA"),
    # Parameters
    _parameter("max_new_tokens", 0, "0", "at least 1"),
    _parameter("max_new_tokens", 10.0, "10.0", "an integer"),
    _parameter("max_new_tokens", "10", '"10"', "an integer"),
    _parameter("max_new_token", 10, "10", "did you mean 'max_new_tokens'"),
    _parameter("temprature", 0.5, "0.5", "did you mean 'temperature'"),
    _parameter("topk", 1, "1", "did you mean 'top_k'"),
    _parameter("detail", 1, "1", "did you mean 'details'"),
    _parameter("temperature", -0.1, "-0.1", "from 0 to 100"),
    _parameter("temperature", "hot", "hot", "a number"),
    _parameter("top_p", -0.1, "-0.1", "from 0 to 1"),
    _parameter("top_k", -2, "-2", "from -1"),
    _parameter("repetition_penalty", 0, "0", "from 0.01 to 10"),
    _parameter("seed", -(2**63) - 1, str(-(2**63) - 1), f"from {-(2**63)} to"),
    _parameter("seed", 2**64, str(2**64), str(2**64 - 1)),
    _parameter("do_sample", "yes", "yes", "true or false"),
    _parameter("ignore_eos_token", 1, "1", "true or false"),
    _parameter("details", "true", '"true"', "true or false"),
    _parameter("return_full_text", 0, "0", "true or false"),
    _parameter("stop_sequences", [""], '""', "1 to 256 bytes"),
    _parameter("stop_sequences", ["x" * 257], "257", "1 to 256 bytes"),
    _parameter("stop_sequences", ["x"] * 65, "65", "at most 64"),
    _parameter("bad_words", ["x"] * 17, "17", "at most 16"),
    _parameter("stop_sequences", [1], "[0]", "1", "a string"),
    _parameter("stop_sequences", {"a": 1}, '{"a": 1}', "a string"),
    _parameter("output_formatter", "xml", "xml", "json, jsonlines or sse"),
    _parameter("decoder_input_details", 1, "1", "true or false"),
    _parameter("typical_p", 0, "0", "above 0", "at most 1"),
    _parameter("min_p", 1.1, "1.1", "from 0 to 1"),
    _parameter("n", 129, "129", "from 1 to 128"),
    _parameter("best_of", 0, "0", "from 1 to 128"),
    _parameter("presence_penalty", 2.1, "2.1", "from -2 to 2"),
    _parameter("frequency_penalty", -2.1, "-2.1", "from -2 to 2"),
    _parameter("watermark", True, "true", "false"),
    _parameter("spaces_between_special_tokens", False, "false", "true"),
    _parameter("truncate", 0, "0", "at least 1"),
    _parameter("min_new_tokens", -1, "-1", "at least 0"),
    _parameter("min_length", 31, "31", "at most 30", "max_new_tokens"),
    _parameter("stop_token_ids", ["x"], "x", "a token id"),
    _parameter("stop_token_ids", [1, -1], "[1]", "-1", "from 0 to"),
    _parameter("stop_token_ids", [2**31], str(2**31), "from 0 to"),
    _parameter("stop_token_ids", list(range(17)), "17", "at most 16"),
    _parameter("stop_token_ids", 1.5, "1.5", "a token id or a list of"),
    _parameter("eos_token_id", "2", '"2"', "a token id"),
    _parameter("max_length", 0, "0", "at least 1"),
    _parameter("bad_words_ids", [[]], "[0]", "1 to 32 token ids"),
    _parameter("bad_words_ids", [[1, 2**31]], str(2**31), "from 0 to"),
    _parameter("suppress_tokens", [-1], "-1", "from 0 to"),
    _parameter("add_special_tokens", 1, "1", "true or false"),
    _parameter("no_repeat_ngram_size", 2, "2", "engine=Python"),
    _parameter("no_repeat_ngram_size", 65, "65", "from 0 to 64"),
    _parameter("sequence_bias", [[[5], 101]], "[0][1]", "101", "from -100 to 100"),
    _parameter("sequence_bias", [[5, 1.0]], "[0][0]", "5", "a list of 1 to 32 token ids"),
    _parameter("num_beams", 9, "9", "from 1 to 8"),
    _parameter("length_penalty", 20.0, "20.0", "-10"),
    _parameter("early_stopping", "never", "never", "true or false"),
    _parameter("top_n_tokens", 21, "21", "from 0 to 20"),
    _parameter("logprobs", True, "true", "an integer"),
    _parameter("prompt_logprobs", -1, "-1", "from 0 to 20"),
    _parameter("priority", 0.5, "0.5", "an integer"),
    _parameter("timeout", 0, "0", "above 0"),
    _parameter("timeout", 100_000, "100000", "option.predict_timeout"),
    _parameter("timeout", 10**400, "10000", "a number of seconds"),
    _combination({"n": 4, "best_of": 2}, "best_of", "2", "n is 4", "at least 4"),
    _combination({"num_beams": 2, "do_sample": True}, "num_beams", "2", "sampling"),
    _combination({"num_beams": 2, "temperature": 0.5}, "num_beams", "sampling"),
    _combination({"num_beams": 2, "n": 2}, "num_beams", "n above 1"),
    _combination({"num_beams": 2, "n": 1, "best_of": 2}, "num_beams", "best_of above 1"),
    _combination({"num_beams": 2, "top_n_tokens": 1}, "num_beams", "log-probabilities"),
    _combination({"num_beams": 2, "decoder_input_details": True}, "num_beams", "log-probabilities"),
    _combination({"num_beams": 2, "output_formatter": "sse"}, "num_beams", "streamed"),
    _combination({"num_beams": 2, "renormalize_logits": True}, "num_beams", "renormalize_logits"),
    _combination({"n": 2, "output_formatter": "sse"}, "n", "2", "streamed"),
    _combination({"best_of": 2, "output_formatter": "jsonlines"}, "best_of", "2", "streamed"),
    _combination(
        {"decoder_input_details": True, "output_formatter": "sse"}, "decoder_input_details", "stream"
    ),
    _combination(
        {"stop": ["a"], "stop_sequences": ["b"]}, "parameters.stop_sequences", "parameters.stop", "one of"
    ),
    _case(
        "unknown name beside prompt", INVOCATIONS, {"prompt": "Hello", "max_token": 5}, ("max_tokens",), 424
    ),
    # Chat
    _chat("no messages", {}, "messages: missing", "at least 1"),
    _chat("prompt", {"prompt": "Hello"}, "messages: missing", "'prompt' is for /v1/completions"),
    _chat("inputs", {"inputs": "Hello"}, "messages: missing", "'inputs' is for /invocations"),
    _chat("not JSON", b"{", "body", "not valid JSON"),
    _messages("empty messages", [], "messages", "[]", "at least 1"),
    _messages(
        "too many parts",
        [{"role": "user", "content": [{"type": "text", "text": ""}] * 2048}] * 3,
        "messages",
        "6144 text parts",
        "4096",
    ),
    _messages("messages is a string", "Hello", "messages", "Hello", "a list"),
    _messages("message is a string", ["Hello"], "messages[0]", "Hello", "an object"),
    _messages("no role", [{"content": "Hello"}], "messages[0].role", "missing", "user"),
    _messages(
        "unknown role", [{"role": "robot", "content": "Hello"}], "messages[0].role", "robot", "assistant"
    ),
    _messages("no content", [{"role": "user"}], "messages[0].content", "missing", "a string"),
    _messages("content is a number", _user(5), "messages[0].content", "5", "a string"),
    _messages("content is an empty list", _user([]), "messages[0].content", "[]", "at least 1"),
    _messages(
        "an image",
        _user([{"type": "image_url", "image_url": {"url": "http://127.0.0.1/"}}]),
        "messages[0].content[0].type",
        "image_url",
        '"text"',
    ),
    _messages(
        "tool calls",
        [{"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}],
        "messages[0].tool_calls",
        "null",
    ),
    _messages("too long", _user("word " * 120_000), "messages", "option.max_model_len", "at most"),
    _field("max_tokens", 0, "0", "at least 1"),
    _field("max_completion_tokens", 1_000_000_000, "1000000000", "option.max_model_len"),
    _field("temperature", 2.1, "2.1", "from 0 to 2"),
    _field("no_repeat_ngram_size", 2, "2", "engine=Python"),
    _field("logprobs", 1, "1", "true or false"),
    _field("top_logprobs", 5, "5", "'logprobs'"),
    _field("logit_bias", {"5": 101}, "101", "from -100 to 100"),
    _field("logit_bias", {"05": 1}, "05", "leading zeros"),
    _field("logit_bias", {"five": 1}, "five", "token ids"),
    _field("logit_bias", {"5": True}, "true", "a number"),
    _field("logit_bias", {"4000000000": 1}, "4000000000", "from 0 to"),
    _field("logit_bias", {str(i): 1 for i in range(301)}, "301", "at most 300"),
    _field("logit_bias", [5], "[5]", "an object"),
    _fields({"prompt_logprobs": 0, "stream": True}, "prompt_logprobs", "stream"),
    _fields({"n": 2, "best_of": 3, "stream": True}, "best_of", "stream"),
    _field("tools", [{"type": "function"}], "function", "[]"),
    _field("tool_choice", "required", "required", "auto"),
    _field("response_format", {"type": "json_object"}, "json_object", "text"),
    _field("stream", "yes", "yes", "true or false"),
    _field("stream_options", {"include_usage": True}, "include_usage", "stream"),
    _field("model", 7, "7", "256"),
    _field("chat_template", "{{ 1 }}", "{{ 1 }}", "leave it out"),
    # Completions
    _completions("not JSON", b"[", "body", "not valid JSON"),
    _completions("no prompt", {}, "prompt", "missing", "a string"),
    _prompt("prompt is null", None, "prompt", "null", "a string"),
    _completions(
        "a chat", {"messages": _user("Hello")}, "prompt: missing", "'messages' is for /v1/chat/completions"
    ),
    _completions("inputs", {"inputs": "Hello"}, "prompt: missing", "'inputs' is for /invocations"),
    _prompt("empty prompt", "", "prompt", '""', "not empty"),
    _prompt("prompt is an object", {"text": "Hello"}, "prompt", "Hello", "a list"),
    _prompt("empty list of prompts", [], "prompt", "[]", "token ids"),
    _prompt("too many prompts", ["Hello"] * 1025, "prompt", "1025", "1024"),
    _prompt("one empty prompt", ["Hello", ""], "prompt[1]", '""', "not empty"),
    _prompt("token ids after a string", ["Hello", [1, 2]], "prompt[1]", "[1, 2]", "a string"),
    _prompt("string after token ids", [[1, 2], "Hello"], "prompt[1]", "Hello", "token ids"),
    _prompt("one prompt without ids", [[1], []], "prompt[1]", "at least 1 token"),
    _prompt("id outside the vocabulary", [1, 2**31], "prompt[1]", str(2**31), "a token id", "from 0 to"),
    _prompt("negative id", [[1], [-1]], "prompt[1][0]", "-1", "from 0 to"),
    _prompt("fractional id", [1, 2.5], "prompt[1]", "2.5", "a token id from 0 to"),
    _prompt("boolean id", [[1, True]], "prompt[0][1]", "true", "a token id from 0 to"),
    _prompt("too many ids", [1] * 200_000, "prompt", "200000", "option.max_model_len"),
    _prompt("too long", ["Hello", "word " * 120_000], "prompt[1]", "option.max_model_len", "at most"),
    _completions_field("max_tokens", 1_000_000_000, "1000000000", "option.max_model_len"),
    _completions("too many choices", {"prompt": ["Hello"] * 200, "n": 8}, "n", "8", "200 prompts", "1024"),
    _completions_field("max_tokens", 0, "0", "at least 1", "echo"),
    _completions_field("suffix", "the end", "the end", '""'),
    _completions_field("logprobs", 21, "21", "from 0 to 20"),
    _completions_field("logprobs", True, "true", "an integer"),
    _completions_field("echo", "yes", "yes", "true or false"),
    _completions_field("stream", 1, "1", "true or false"),
    _completions_field("stream_options", {"include_usage": True}, "stream"),
    _completions_field("guided_json", {"type": "object"}, "object", "leave it out"),
)
