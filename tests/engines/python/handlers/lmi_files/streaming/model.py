"""A handler that streams with the default formatter, its own, or none, and may fail during the stream."""

import json
import time

from djl_python import Input, Output


def words(text: str, fail: bool):
    for word in text.split():
        yield [word]
    if fail:
        raise RuntimeError("the model lost its thread")


def own_format(item) -> bytes:
    return (json.dumps({"word": item[0]}) + "\n").encode()


def forever(path: str):
    """Yield forever, and record in a file when stopped."""
    try:
        while True:
            time.sleep(0.02)
            yield "tick\n"
    finally:
        with open(path, "w") as file:
            file.write("stopped")


def handle(inputs: Input):
    if inputs.is_empty():
        return None
    data = inputs.get_as_json()
    outputs = Output()
    outputs.add_property("content-type", "application/jsonlines")
    if data.get("forever"):
        return outputs.add_stream_content(forever(data["forever"]), output_formatter=None)
    if data.get("own"):
        return outputs.add_stream_content(words(data["inputs"], False), output_formatter=own_format)
    return outputs.add_stream_content(words(data["inputs"], data.get("fail", False)))
