"""An asynchronous handler in the style of LMI's async mode. Some requests fail on purpose."""

import asyncio
import os
import threading

from djl_python import Input, Output
from djl_python.async_utils import create_non_stream_output, create_stream_chunk_output
from djl_python.encode_decode import decode

loop = None
released = threading.Event()
num_met = 0
all_met = asyncio.Event()


async def meet(size: int):
    """Wait until `size` requests have arrived."""
    global num_met
    num_met += 1
    if num_met == size:
        all_met.set()
    await all_met.wait()


async def wait_and_record_cancellation(path: str):
    """Wait, and record a cancellation in a file."""
    try:
        await asyncio.sleep(3600)
    finally:
        with open(path, "w") as file:
            file.write("canceled")


async def chunks(words):
    for index, word in enumerate(words):
        await asyncio.sleep(0)
        yield create_stream_chunk_output({"word": word}, index == len(words) - 1)


def blocked():
    """Yield a piece, then nothing until some call releases all blocked ones."""
    yield b"begun"
    released.wait()


async def handle(inputs: Input):
    global loop
    if inputs.is_empty():
        loop = asyncio.get_running_loop()
        return None
    data = decode(inputs, inputs.get_property("Content-Type"))
    if asyncio.get_running_loop() is not loop:
        return Output().error("this is not the loop of the load")
    match data.get("do"):
        case "meet":
            await meet(data["size"])
        case "tell":
            await wait_and_record_cancellation(data["path"])
        case "wait once":
            if not os.path.exists(data["path"]):
                await wait_and_record_cancellation(data["path"])
        case "exit":
            raise SystemExit(3)
        case "cancel":
            raise asyncio.CancelledError
        case "raise":
            raise ValueError("no such thing")
        case "stream":
            return chunks(data["inputs"].split())
        case "block":
            return Output().add_stream_content(blocked(), None)
        case "release":
            released.set()
        case "iterate":
            return Output().add_stream_content(iter(data["inputs"].split()), None)
    return create_non_stream_output({"text": data["inputs"][::-1], "pid": os.getpid()})
