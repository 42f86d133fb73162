"""The style guide's rules that a program can check: words, docstrings, sentences, headings."""

from __future__ import annotations

import re
from pathlib import Path

from tests.style.prose import (
    ROOT,
    comments,
    docstrings,
    function_docstrings,
    headings,
    matches,
    messages,
    modules,
    names,
    pages,
    sentences,
)

_WORDS = (
    "anew anybody aright beside hear hears heard hearing lest likewise nobody seldom somebody "
    "tell tells telling told upon whatever wherever whoever whomever"
)
_PHRASES = (
    "be it",
    "by chance",
    "for ever",
    "in vain",
    "judged by",
    "no other than",
    "none but",
    "of late",
    "said of",
    "says of",
    "what is said",
)
RIDDLES = re.compile(
    r"\b(?:" + "|".join([*_WORDS.split(), *(p.replace(" ", r"\s+") for p in _PHRASES)]) + r")\b",
    re.IGNORECASE,
)

FIRST_WORDS = re.compile(
    r"\A\s*(?:Again|How|If|Of|What|Where|Whether|Which|Who|Whoever|Whose)\b(?!\?)"
)

DETERMINERS = re.compile(
    r"\A\s*(?:A|All|An|Each|Every|It|Its|No|One|That|The|These|This)\b", re.IGNORECASE
)

RIDDLE_HEADING = re.compile(r"^(?:If|What|When|Where|Whether|Which|Who|Whose)\b")

LONGEST_SENTENCE = 35
"""Words."""

README_WORDS = 900

GUIDES = [
    page
    for page in pages()
    # The lists of releases and the pages of measurements are no guides.
    if page.stem not in {"CHANGELOG", "benchmarks", "performance", "prefix-caches", "reference"}
]

PRODUCT, TESTS = modules("extproc"), modules("tests")


def report(findings: list[str]) -> str:
    """Return a message for a failed assertion, one finding a line."""
    return f"{len(findings)} findings\n" + "\n".join(findings)


class TestWords:
    def test_in_pages(self) -> None:
        found = [line for page in pages() for line in matches(RIDDLES, sentences(page))]
        assert not found, report(found)

    def test_in_docstrings_and_comments(self) -> None:
        found = [
            line
            for module in PRODUCT + TESTS
            # Reading the tokens of all modules takes long, and few have these words anywhere.
            if module != Path(__file__) and RIDDLES.search(module.read_text())
            for line in matches(RIDDLES, [*docstrings(module), *comments(module)])
        ]
        assert not found, report(found)

    def test_in_messages(self) -> None:
        found = [
            line
            for module in PRODUCT
            if "workloads" not in module.parts or module.stem == "arguments"  # others are prompts
            for line in matches(RIDDLES, messages(module))
        ]
        assert not found, report(found)

    def test_in_names(self) -> None:
        found = [line for module in PRODUCT + TESTS for line in matches(RIDDLES, names(module))]
        assert not found, report(found)


def test_docstrings_begin_with_a_noun_phrase_or_a_verb() -> None:
    found = [
        line for module in PRODUCT + TESTS for line in matches(FIRST_WORDS, docstrings(module))
    ]
    assert not found, report(found)


def test_docstrings_of_functions_begin_with_a_verb() -> None:
    found = [
        line
        for module in PRODUCT + TESTS
        for line in matches(DETERMINERS, function_docstrings(module))
    ]
    assert not found, report(found)


def test_headings_name_a_task_or_a_noun() -> None:
    found = [line for page in pages() for line in matches(RIDDLE_HEADING, headings(page))]
    assert not found, report(found)


def test_sentences_of_guides_are_short() -> None:
    found = [
        f"{len(sentence.text.split())} words in {sentence}"
        for page in GUIDES
        for sentence in sentences(page)
        if len(sentence.text.split()) > LONGEST_SENTENCE
    ]
    assert not found, report(found)


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= README_WORDS
