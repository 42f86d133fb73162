"""The text of segments: English words of three letters.

With its blank, such a word is one token of most real tokenizers, and one of the stand-in's (4
bytes). So a segment is equally long for all of them.
"""

from __future__ import annotations

from functools import lru_cache
from random import Random
from typing import Any

import xxhash

from extproc.lab.workloads.workload import Api, Segment

CHARACTERS_PER_TOKEN = 4

_SHORT_TOKENS = 500
"""Longest texts that are cached by the thousands: most are needed again."""

_VOCABULARY = (
    "act add age ago aid aim air all and any ape are arm art ask ate bad bag bar bat bay bed bee "
    "beg bet bid big bit boa bow box boy bug bus but buy can cap car cat cow cry cup cut day did "
    "dig dog dot dry due ear eat egg end eye far fat fed few fig fit fix fly fog for fox fun fur "
    "gap gas get got gun gut guy had ham has hat hen her hid him hip his hit hop hot how hub hug "
    "ice ill ink inn ion its jam jar jaw jet job joy key kid kit lab lad lag lap law lay led leg "
    "let lid lie lip lit log lot low mad man map may men met mix mob mom mud mug nap net new nor "
    "not now nut oak odd off oil old one our out owe own pan par pat pay pen per pet pie pig pin "
    "pit pop pot pub put ran rat raw ray red rib rid rim rip rob rod row rub run sad sat saw say "
    "sea see set sew she shy sin sit six ski sky son spy sum sun tap tax tea ten the tie tin tip "
    "toe ton too top toy try tub two use van vet via war was wax way web wet who why win wit won "
    "yes yet you zip zoo"
)
_WORDS = _VOCABULARY.split()


def text(segment: Segment, characters: int | None = None) -> str:
    """Return the text of a segment, or its first `characters`."""
    tokens = segment.tokens
    if characters is not None:
        tokens = min(tokens, -(-characters // CHARACTERS_PER_TOKEN))
    make = _text if tokens <= _SHORT_TOKENS else _long_text
    return make(segment.name, tokens)[:characters]


def document(
    api: Api, prompt: tuple[Segment, ...], characters: int | None = None
) -> dict[str, Any]:
    """Return the prompt as the JSON body of a request; of each segment the first `characters`.

    With `characters`, it leaves out segments after the first user message if the segments up to
    there have that length. No hash of a prefix of so many characters can depend on them.
    """
    shown = prompt if characters is None else _head(prompt, characters)
    if api == "completions":
        return {"prompt": "".join(text(segment, characters) for segment in shown)}
    messages = [{"role": one.role, "content": text(one, characters)} for one in shown]
    return {"messages": messages}


def _head(prompt: tuple[Segment, ...], characters: int) -> tuple[Segment, ...]:
    length = 0
    user = False
    for number, segment in enumerate(prompt, 1):
        length += CHARACTERS_PER_TOKEN * segment.tokens
        user = user or segment.role == "user"
        if user and length >= characters:
            return prompt[:number]
    return prompt


# The content limits the caches: 40 MB each, unless texts are longer than contexts.
@lru_cache(maxsize=40)
def _long_text(name: str, tokens: int) -> str:
    return _made(name, tokens)


@lru_cache(maxsize=20_000)
def _text(name: str, tokens: int) -> str:
    return _made(name, tokens)


def _made(name: str, tokens: int) -> str:
    # Words are drawn in order, so a shorter text is the beginning of a longer one.
    words = Random(xxhash.xxh64_intdigest(name.encode())).choices(_WORDS, k=tokens)
    return " ".join(words) + " " if words else ""
