"""Formatters in the older style of rolling batches: a request object as input, one token at a time as output."""

import json
from typing import Any

from djl_python import Input
from djl_python.encode_decode import decode
from djl_python.input_parser import input_formatter
from djl_python.output_formatter import TextGenerationOutput, output_formatter
from djl_python.request_io import RequestInput, TextInput


class MyInput(TextInput):
    my_own_fields: Any


@input_formatter
def custom_input_formatter(input_item: Input, **kwargs) -> RequestInput:
    content_type = input_item.get_property("Content-Type")
    input_map = decode(input_item, content_type)
    request_input = MyInput()
    request_input.input_text = input_map.pop("question")
    request_input.parameters = input_map.pop("parameters", {})
    request_input.my_own_fields = input_map.pop("my_own_fields", None)
    return request_input


@output_formatter
def custom_output_formatter(request_output: TextGenerationOutput) -> str:
    best_sequence = request_output.sequences[request_output.best_sequence_index]
    next_token, is_first_token, is_last_token = best_sequence.get_next_token()
    result = {"token_id": next_token.id, "token_text": next_token.text}
    if is_first_token:
        result["first"] = True
    if is_last_token:
        result["finish_reason"] = best_sequence.finish_reason
    return json.dumps(result) + "\n"
