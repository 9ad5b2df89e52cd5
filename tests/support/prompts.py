"""The 32 fixed prompts for which greedy output is compared with transformers: 16 chats, 16 plain texts.

They have 5 to 600 tokens and differ in language, form and subject. Texts are fixed or generated from word lists with a
seed, so they are the same on every machine.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A chat or a plain text, with a name."""

    name: str
    messages: tuple[tuple[str, str], ...] = ()
    """(role, content) in order; empty for a plain text."""
    text: str = ""

    def as_messages(self) -> list[Message]:
        return [{"role": role, "content": content} for role, content in self.messages]


_SUBJECTS = (
    "The river, A small town, The old library, My neighbour, The harbour, A young baker, The train, Winter"
)
_VERBS = "remembers, crosses, repairs, describes, follows, paints, measures, forgets, lights, carries"
_OBJECTS = (
    "the stone bridge, a box of letters, the market square, three broken clocks, the morning bread, a map of "
    "the coast, the empty theatre, two wooden boats, the first snow, a song about the sea"
)
_ENDINGS = "before noon, without a word, for the second time, near the station, in the rain, as in every year"


def prose(seed: int, num_sentences: int) -> str:
    """Seeded sentences of plain English, about 12 tokens each."""
    rng = random.Random(seed)
    parts = [words.split(", ") for words in (_SUBJECTS, _VERBS, _OBJECTS, _ENDINGS)]
    return " ".join(" ".join(rng.choice(choices) for choices in parts) + "." for _ in range(num_sentences))


def numbered_list(seed: int, num_items: int) -> str:
    """Seeded lines of an inventory, about 12 tokens each."""
    rng = random.Random(seed)
    things = ["lamps", "chairs", "bottles", "ropes", "tins", "blankets", "candles", "hammers", "maps"]
    things.append("baskets")
    return "\n".join(
        f"{n}. {rng.randint(2, 99)} {rng.choice(things)}, {rng.randint(1, 40)} coins"
        for n in range(1, num_items + 1)
    )


def _small_talk(num_turns: int) -> list[tuple[str, str]]:
    """Turns of a chat in which both sides tell stories."""
    pairs = [(("user", prose(20 + turn, 2)), ("assistant", prose(40 + turn, 2))) for turn in range(num_turns)]
    return [message for pair in pairs for message in pair]


_CODE = '''def fibonacci(n):
    """Return the n-th Fibonacci number."""
    if n < 2:
        return n
'''

CHAT = (
    Prompt("capital", (("user", "What is the capital of France?"),)),
    Prompt("greeting", (("user", "Hi"),)),
    Prompt("arithmetic", (("user", "What is 17 plus 25? Answer with the number only."),)),
    Prompt("haiku", (("user", "Write a haiku about autumn leaves."),)),
    Prompt(
        "pirate", (("system", "You are a pirate. Answer in one sentence."), ("user", "Where is the gold?"))
    ),
    Prompt(
        "follow-up",
        (
            ("user", "Name a planet with rings."),
            ("assistant", "Saturn has bright rings."),
            ("user", "How many moons does it have?"),
        ),
    ),
    Prompt("code-question", (("user", f"What does this function do?\n\n```python\n{_CODE}```"),)),
    Prompt("french", (("user", "Traduis en anglais : « Le chat dort sur la chaise près de la fenêtre. »"),)),
    Prompt("german", (("user", "Erkläre kurz, warum der Himmel blau ist."),)),
    Prompt("json", (("user", 'Give me a JSON object with the keys "name", "age" and "city".'),)),
    Prompt("list", (("user", "List five fruits, one per line."),)),
    Prompt("emoji", (("user", "What do these mean? 🎉 🚀 ❤️ 日本"),)),
    Prompt("summary", (("user", f"Summarise this text in two sentences:\n\n{prose(11, 12)}"),)),
    Prompt("long-summary", (("user", f"Who is mentioned in this text?\n\n{prose(12, 30)}"),)),
    Prompt(
        "long-system",
        (
            ("system", f"You answer from these notes only.\n{prose(13, 22)}"),
            ("user", "What is the weather like?"),
        ),
    ),
    Prompt(
        "long-talk",
        (*_small_talk(num_turns=6), ("user", "Tell me how the story ends.")),
    ),
)

PLAIN = (
    Prompt("once", text="Once upon a time,"),
    Prompt("gravity", text="Gravity is the force that"),
    Prompt("recipe", text="To bake a simple loaf of bread, first mix flour, water, yeast and salt. Then"),
    Prompt("code", text=_CODE + "    return"),
    Prompt("numbers", text="1, 2, 3, 5, 8, 13, 21, 34,"),
    Prompt("alphabet", text="a b c d e f g h i j k"),
    Prompt("html", text="<html>\n  <head>\n    <title>My page</title>\n  </head>\n  <body>\n"),
    Prompt("spanish", text="En un lugar de la Mancha, de cuyo nombre no quiero acordarme,"),
    Prompt("letter", text="Dear Sir or Madam,\n\nI am writing to you because"),
    Prompt("table", text="| city | country |\n|---|---|\n| Paris | France |\n| Rome | Italy |\n| Madrid |"),
    Prompt("question", text="Q: How many legs does a spider have?\nA:"),
    Prompt("story", text=prose(1, 5)),
    Prompt("long-story", text=prose(2, 20)),
    Prompt("longest-story", text=prose(3, 53)),
    Prompt("inventory", text=numbered_list(4, 12) + "\n13."),
    Prompt("long-inventory", text=numbered_list(5, 34) + "\n35."),
)

ALL = CHAT + PLAIN


def by_name(*names: str) -> tuple[Prompt, ...]:
    """The prompts with these names, in the same order. Raises `KeyError` for an unknown name."""
    table = {prompt.name: prompt for prompt in ALL}
    return tuple(table[name] for name in names)
