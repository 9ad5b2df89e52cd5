"""A handler: counts words, for single requests and for batches. Files written for LMI look like this."""

from djl_python import Input, Output


class WordCounter:
    """State that a handler loads once, such as weights, a tokenizer or a connection."""

    def __init__(self, language: str) -> None:
        self.language = language

    def count(self, text: str) -> dict:
        return {"language": self.language, "words": len(text.split())}


counter = None


def handle(inputs: Input) -> Output | None:
    global counter
    if counter is None:
        counter = WordCounter(inputs.get_properties()["language"])
    if inputs.is_empty():  # the call at the start of a worker
        return None
    outputs = Output().add_property("Content-Type", "application/json")
    for index, request in enumerate(inputs.get_batches()):
        outputs.add_as_json(counter.count(request.get_as_json()["inputs"]), batch_index=index)
    return outputs
