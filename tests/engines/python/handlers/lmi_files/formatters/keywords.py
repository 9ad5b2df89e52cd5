"""An input formatter that takes the tokenizer among its keyword arguments and selects the format of the response."""

from djl_python import Input
from djl_python.input_parser import input_formatter
from djl_python.request_io import RequestInput, TextInput


@input_formatter
def custom_input_formatter(input_item: Input, **kwargs) -> RequestInput:
    request = TextInput()
    request.input_text = " ".join(kwargs["tokenizer"].tokenize(input_item.get_as_json()["question"]))
    request.parameters = {"output_formatter": "json"}
    request.output_formatter = "jsonlines"
    return request
