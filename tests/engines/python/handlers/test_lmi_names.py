"""Handlers for LMI pass keyword arguments, so functions of `djl_python` have LMI's parameter names, in LMI's order."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest
from djl_python import Input, Output, PairList

_LMI = {
    "inputs": {
        "Input": "",
        "Input.is_batch": "",
        "Input.get_batch_size": "",
        "Input.get_batches": "",
        "Input.get_function_name": "",
        "Input.get_properties": "",
        "Input.get_content": "",
        "Input.get_property": "key",
        "Input.contains_key": "key",
        "Input.get_data": "key",
        "Input.get_as_bytes": "key",
        "Input.get_as_string": "key",
        "Input.get_as_json": "key",
        "Input.get_as_image": "key",
        "Input.get_as_numpy": "key",
        "Input.get_as_npz": "key",
        "Input.get_as_csv": "key",
        "Input.is_empty": "",
    },
    "outputs": {
        "Output": "code message",
        "Output.set_code": "code",
        "Output.set_message": "message",
        "Output.error": "error code message",
        "Output.add_property": "key val",
        "Output.get_properties": "",
        "Output.get_property": "key",
        "Output.add": "value key batch_index",
        "Output.add_as_numpy": "np_list key batch_index",
        "Output.add_as_npz": "np_list key batch_index",
        "Output.add_as_json": "val key batch_index",
        "Output.add_stream_content": "stream_content output_formatter",
        "Output.binary_encode": "data",
        "Output.finalize": "finalize_function args",
        "Output.execute_finalize": "",
    },
    "pair_list": {
        "PairList": "keys values pair_list pair_map",
        "PairList.add": "key value index pair",
        "PairList.add_all": "other",
        "PairList.size": "",
        "PairList.is_empty": "",
        "PairList.get": "key",
        "PairList.key_at": "index",
        "PairList.value_at": "index",
        "PairList.get_keys": "",
        "PairList.get_values": "",
    },
    "request_io": {
        "Token": "id text log_prob special_token error_msg",
        "Token.as_dict": "",
        "Token.as_tgi_dict": "",
        "Iterator.get_index": "",
        "Iterator.next_index": "",
        "Sequence": "tokens top_tokens cumulative_log_prob finish_reason last_token_index stop_reason",
        "Sequence.set_next_token": "token is_last_token",
        "Sequence.set_next_top_tokens": "top_tokens",
        "Sequence.has_next_token": "",
        "Sequence.has_next_top_tokens": "",
        "Sequence.get_next_token": "",
        "Sequence.get_last_token": "",
        "Sequence.get_next_top_tokens": "",
        "RequestInput": "request_id client_request_id output_formatter parameters server_parameters tgi_compat",
        "TextInput": "request_id client_request_id output_formatter parameters server_parameters tgi_compat"
        " input_text adapters tokenizer",
        "TextInput.prompt_tokens_length": "",
        "RequestOutput": "request_id input finished",
        "TextGenerationOutput": "request_id input finished sequences best_sequence_index prompt_tokens_details"
        " other_sequences_indices",
        "TextGenerationOutput.set_next_token": "token sequence_index is_last_token finish_reason",
        "TextGenerationOutput.set_next_top_tokens": "top_tokens sequence_index",
        "TextGenerationOutput.set_best_sequence_index": "sequence_index",
        "TextGenerationOutput.set_finish_reason": "finish_reason sequence_index",
        "TextGenerationOutput.get_tokens_as_dict": "sequence_index",
        "TextGenerationOutput.get_prompt_tokens_as_dict": "",
        "TextGenerationOutput.get_top_tokens_as_dict": "sequence_index",
    },
    "encode_decode": {
        "decode": "inputs content_type key require_csv_headers",
        "decode_csv": "inputs require_headers",
        "encode": "outputs prediction content_type key",
        "encode_csv": "content",
    },
    "np_util": {"from_nd_list": "encoded", "to_nd_list": "np_list"},
    "async_utils": {
        "create_non_stream_output": "data properties error code",
        "create_stream_chunk_output": "data last_chunk error code",
        "handle_streaming_response": "response stream_output_formatter accumulate_chunks kwargs",
    },
    "streaming_utils": {
        "HFStreamer": "tokenizer",
        "HFStreamer.put": "value",
        "HFStreamer.end": "",
        "StreamingUtils.use_hf_default_streamer": "model tokenizer inputs device kwargs",
        "StreamingUtils.get_stream_generator": "execution_engine",
    },
    "input_parser": {
        "input_formatter": "function",
        "prediction_handler": "function",
        "init_handler": "function",
    },
    "output_formatter": {"output_formatter": "function"},
}
"""LMI's public functions, classes and methods by module, with the names of their parameters."""


_OURS = {"Input.get_request_id", "Output.get_content", "PairList.contains", "HFStreamer.close"}
"""Methods that LMI lacks."""


@pytest.mark.parametrize("module", _LMI)
def test_parameters_have_the_names_of_lmi(module: str) -> None:
    for path, names in _LMI[module].items():
        target: Any = importlib.import_module(f"djl_python.{module}")
        for part in path.split("."):
            target = getattr(target, part)
        parameters = [name for name in inspect.signature(target).parameters if name != "self"]
        assert parameters[: len(names.split())] == names.split(), f"{module}.{path}"


@pytest.mark.parametrize("module", _LMI)
def test_the_table_has_every_public_method(module: str) -> None:
    source = importlib.import_module(f"djl_python.{module}")
    classes = {path.partition(".")[0] for path in _LMI[module] if path[:1].isupper()}
    own = {
        f"{name}.{method}"
        for name in classes
        for method, value in vars(getattr(source, name)).items()
        if not method.startswith("_") and inspect.isroutine(value)
    }
    assert own - _LMI[module].keys() <= _OURS


def test_keywords_of_lmi_are_accepted() -> None:
    calls: list[str] = []
    output = Output().add_as_json(val=[1]).add_property(key="a", val="b")
    output.finalize(finalize_function=calls.append)
    assert (output.finalize_function, output.finalize_args) == (calls.append, ())
    output.finalize(calls.append, "done").execute_finalize()
    assert (output.properties, calls) == ({"a": "b"}, ["done"])
    assert Output().add_as_numpy(np_list=[]).add_as_npz(np_list=[]).content.size() == 2
    assert Input().get_property(key="a") is None


def test_pairs_are_added_at_a_place_or_together() -> None:
    pairs = PairList(pair_map={"a": 1, "b": 2})
    pairs.add(key="first", value=0, index=0)
    pairs.add(pair=("c", 3))
    pairs.add("ignored", None)
    pairs.add_all({"d": 4})
    pairs.add_all(PairList(pair_list=[("a", 5)]))
    assert list(pairs) == [("first", 0), ("a", 1), ("b", 2), ("c", 3), ("d", 4), ("a", 5)]
    with pytest.raises(ValueError, match="2 keys for 1 values"):
        PairList(["a", "b"], [1])
