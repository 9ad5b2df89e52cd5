"""A handler for dynamic batches, with one output for each key of the content. Some inputs fail on purpose."""

import os
import signal
import time

from djl_python import Input, Output

BAD = {
    "crash": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "hang": lambda: time.sleep(3600),
    "raise": lambda: int("no number"),
}


def handle(inputs: Input) -> Output:
    if inputs.is_empty():
        return None
    batch = inputs.get_batches()
    outputs = Output()
    for i, item in enumerate(batch):
        text = item.get_as_json()["inputs"]
        BAD.get(text, lambda: None)()
        answer = {"text": text[::-1], "batch": len(batch)}
        outputs.add(answer, key=inputs.get_content().key_at(i))
    return outputs
