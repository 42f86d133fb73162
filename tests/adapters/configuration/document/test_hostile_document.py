from __future__ import annotations

import re
import subprocess
import sys

import pytest

from extproc.adapters.configuration.document import MAX_BYTES, DocumentError, parse
from tests.adapters.configuration.document.texts import LLAMA, problems, with_endpoints, with_key
from tests.extent import extent


class TestHostileDocument:
    def test_larger_than_a_config_map_is_refused(self) -> None:
        assert parse(LLAMA.encode().ljust(MAX_BYTES)).models
        assert problems(LLAMA.encode().ljust(MAX_BYTES + 1)) == [
            "the document has 1048577 bytes; 1048576 are allowed"
        ]

    @pytest.mark.parametrize(
        "text",
        [
            pytest.param(b"models: \x00", id="control character"),
            pytest.param(b"models: \xff\xff\xff", id="bad UTF-8"),
            pytest.param(b'models: [{name: "\\ud800"}]', id="lone surrogate"),
            pytest.param(b"models: 2001-99-99", id="impossible date"),
            pytest.param(b"models: " + b"9" * 5000, id="5,000 digits"),
            pytest.param(b"models: " + b"[" * 3000 + b"]" * 3000, id="deep"),
            pytest.param(b"models: &a [*a]", id="a list within itself"),
            pytest.param(b"&a {models: *a}", id="a mapping within itself"),
            pytest.param(b"{models: [], 1: 2}", id="a number as a key"),
            pytest.param(b"{models: [], ~: 2}", id="null as a key"),
            pytest.param(b"{models: [], ? [a] : 2}", id="a list as a key"),
            pytest.param(b"{models: [], ? {a: b} : 2}", id="a mapping as a key"),
            pytest.param(b"models: !!bool maybe", id="invalid boolean"),
            pytest.param(b"models: !!int foo", id="invalid integer"),
            pytest.param(b"models: !!int ''", id="an empty integer"),
            pytest.param(b"models: !!float ''", id="an empty float"),
            pytest.param(b"models: !!timestamp foo", id="invalid date"),
            pytest.param(b"models: !!binary '='", id="invalid base64"),
            pytest.param(b"models: !!map x", id="invalid mapping"),
        ],
    )
    def test_is_refused_with_a_problem(self, text: bytes) -> None:
        assert problems(text)

    @pytest.mark.parametrize(
        "text",
        [
            pytest.param(b"<" * MAX_BYTES, id="text"),
            pytest.param(b"models: !" + b"x" * 1_000_000 + b" 1", id="a tag"),
            pytest.param(b"models: []\n? " + b"k" * 1_000_000 + b"\n: 1", id="a key"),
            pytest.param(
                b"{? " + b"k" * 500_000 + b" : 1, ? " + b"k" * 500_000 + b" : 1}", id="twice"
            ),
            pytest.param(with_endpoints("x" * 1_000_000).encode(), id="an endpoint"),
            pytest.param(b"models:\n" + b"- {a: 1}\n" * extent(10_000, 100_000), id="models"),
            pytest.param(b"models: " + b"9" * 1_000_000, id="digits"),
        ],
    )
    def test_has_a_short_error(self, text: bytes) -> None:
        with pytest.raises(DocumentError) as refused:
            parse(text)
        assert len(str(refused.value)) < 5_000
        assert all(len(problem) < 500 for problem in refused.value.problems)
        assert len(refused.value.problems) <= 101

    def test_counts_the_problems_that_it_does_not_show(self) -> None:
        found = problems(b"models:\n" + b"- {a: 1}\n" * 100)
        assert len(found) == 101
        assert found[-1] == "and 100 more problems"
        error = DocumentError([f"p{number}" for number in range(12)])
        assert str(error).endswith("; p9; and 2 more problems")

    def test_exponential_aliases_use_no_memory(self) -> None:
        code = (
            "import resource\n"
            "from extproc.adapters.configuration.document import DocumentError, parse\n"
            "resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))\n"
            "lines = ['models:', '- &a0 [' + 'x, ' * 9 + ']']\n"
            "lines += [f'- &a{i + 1} [' + f'*a{i}, ' * 9 + ']' for i in range(9)]\n"
            "try: parse('\\n'.join(lines).encode())\n"
            "except DocumentError: print('refused')\n"
        )
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert (run.returncode, run.stdout) == (0, "refused\n"), run.stderr

    def test_deep_nesting_does_not_crash_the_process(self) -> None:
        # In its own process: a parser that overflows the C stack ends the process at once.
        code = (
            "from extproc.adapters.configuration.document import DocumentError, parse\n"
            "try: parse(b'[' * 500_000)\n"
            "except DocumentError: print('refused')\n"
        )
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert (run.returncode, run.stdout) == (0, "refused\n")

    @pytest.mark.parametrize(
        "text",
        [
            pytest.param('"a\\nb": 1\nmodels: []', id="a key"),
            pytest.param(with_key('"a\\nb": 1'), id="a key of a model"),
            pytest.param(with_key('aliases: ["a\\nb", "a\\nb"]'), id="an alias"),
            pytest.param(with_endpoints('"a\\nb:1"'), id="an endpoint"),
            pytest.param(with_key('loadBalancing: {strategy: "a\\nb"}'), id="a strategy"),
            pytest.param('models: *"a\n', id="an anchor"),
        ],
    )
    def test_each_problem_is_one_line(self, text: str) -> None:
        assert all(len(problem.splitlines()) == 1 for problem in problems(text))

    @pytest.mark.parametrize(
        "text",
        [
            pytest.param("models:", id="no models"),
            pytest.param("models: x", id="text as models"),
            pytest.param("models: [x]", id="text as a model"),
            pytest.param("models: [[]]", id="list as a model"),
            pytest.param("models: [{name: a, endpoints: '10.0.0.1:1'}]", id="one endpoint"),
            pytest.param(with_key("aliases:"), id="no aliases"),
            pytest.param(with_key("loadBalancing:"), id="no loadBalancing"),
            pytest.param(with_key("loadBalancing: {prefixHash: [1]}"), id="a list for prefixHash"),
        ],
    )
    def test_problem_uses_terms_of_yaml_instead_of_python(self, text: str) -> None:
        for problem in problems(text):
            assert not re.search(r"tuple|dictionary|instance|[A-Za-z]+Spec", problem), problem
