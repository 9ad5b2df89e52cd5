"""A handler for arbitrary bytes and forms, which also returns various status codes."""

from djl_python import Input, Output


def handle(inputs: Input) -> Output:
    if inputs.is_empty():
        return None
    kind = inputs.get_property("content-type") or ""
    if kind.startswith("multipart/"):
        sizes = {key: len(value) for key, value in inputs.get_content()}
        return Output().add_as_json(sizes)
    data = inputs.get_as_bytes()
    if data == b"nothing":
        return None
    if data == b"teapot":
        return Output(code=418, message="I'm a\r\nteapot: yes").add("short and stout")
    if data == b"memory":
        raise MemoryError("no room")
    if data == b"status":
        return Output(code=9)
    if data == b"header":
        return Output().add_property("a b:", "c")
    if data == b"wrong":
        return {"not": "an Output"}
    outputs = Output()
    outputs.add_property("Content-Type", "application/x-npy" if kind == "image/png" else kind)
    outputs.add(bytes(reversed(data)))
    return outputs
