"""Parses the models document: YAML text to a validated ModelsSpec, or a list of problems."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from extproc.core.schema import ModelsSpec
from extproc.core.schema.values import suggestion

# The size limit of a ConfigMap.
MAX_BYTES = 1024 * 1024
# The schema has six levels. YAML's C loader recurses, and crashes at some 10,000 levels.
MAX_DEPTH = 32

Location = tuple[int | str, ...]


# A document of a megabyte can have 200,000 problems, or one with a value of a megabyte.
_MOST_PROBLEMS = 100
_MOST_IN_MESSAGE = 10
_LONGEST_PROBLEM = 400


class DocumentError(Exception):
    """An invalid models document; `problems` has one line for each problem.

    The message has the first ones. Long lines are cut in the middle.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(map(_cut, problems))
        super().__init__("; ".join(_first(self.problems, len(problems), _MOST_IN_MESSAGE)))


def _first(problems: Iterable[str], count: int, most: int) -> list[str]:
    """Return at most this many of `count` problems, then the number of the others."""
    more = [f"and {count - most} more problems"] if count > most else []
    return [*islice(problems, most), *more]


def _cut(problem: str) -> str:
    half = _LONGEST_PROBLEM // 2
    fits = len(problem) <= _LONGEST_PROBLEM
    return problem if fits else f"{problem[:half]} ... {problem[-half:]}"


def parse(text: bytes) -> ModelsSpec:
    """Return the models of a document. Raises DocumentError with every problem found."""
    if len(text) > MAX_BYTES:
        raise DocumentError([f"the document has {len(text)} bytes; {MAX_BYTES} are allowed"])
    content = _load(text)
    if not isinstance(content, dict):
        raise DocumentError(["the document must be a mapping with the key 'models'"])
    try:
        spec = ModelsSpec.model_validate(content)
    except ValidationError as invalid:
        problems = map(_problem, invalid.errors(include_url=False))
        shown = _first(problems, invalid.error_count(), _MOST_PROBLEMS)
        raise DocumentError(shown) from None
    contradictions = [*_name_clashes(spec), *_dangling_targets(spec)]
    if contradictions:
        raise DocumentError(_first(contradictions, len(contradictions), _MOST_PROBLEMS))
    return spec


# In base 8 or 60, but in YAML 1.2 a decimal number or a text.
_SURPRISING_NUMBER = re.compile(r"[-+]?0[0-9_]+|.*:.*")


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML's safe loader, which additionally refuses duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    problem=f"the key {key.value!r} comes twice", problem_mark=key.start_mark
                )
            seen.add(key.value)
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return mapping

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        number: int = super().construct_yaml_int(node)
        if _SURPRISING_NUMBER.fullmatch(node.value):
            raise yaml.constructor.ConstructorError(
                problem=f"{node.value!r} means {number} in YAML 1.1; write a number without "
                "leading zeros and colons, and a text in quotes",
                problem_mark=node.start_mark,
            )
        return number


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


def _load(text: bytes) -> object:
    try:
        _check_depth(text)
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise DocumentError([f"{where}{error.problem or error.context}"]) from None
    except Exception as error:
        # YAML's constructors raise any exception of a value's conversion.
        why = str(error).splitlines() or [type(error).__name__]
        raise DocumentError([f"not readable as YAML: {why[0]}"]) from None


def _check_depth(text: bytes) -> None:
    """Raise MarkedYAMLError for nesting that would crash libyaml's loader, and the process."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            mark = event.start_mark
            raise yaml.MarkedYAMLError(problem="nested too deeply", problem_mark=mark)  # type: ignore[arg-type]


_EXPECTED = {
    "bool_type": "true or false",
    "float_type": "a number",
    "dict_type": "a mapping",
    "int_type": "a whole number",
    "model_type": "a mapping",
    "string_type": "a string",
    "tuple_type": "a list",
}


def _problem(error: ErrorDetails) -> str:
    location = error["loc"]
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        known = _keys(location[:-1])
        message = f"unknown key{suggestion(location[-1], known)}; known are {_joined(known)}"
    elif error["type"] == "missing":
        message = "is required"
    elif error["type"] == "literal_error":
        options = error["ctx"]["expected"].replace("'", "").replace(" or ", ", ").split(", ")
        close = suggestion(error["input"], options)
        message = f"{_shown(error['input'])} is not one of {_joined(options)}{close}"
    elif error["type"] in _EXPECTED:
        message = f"must be {_EXPECTED[error['type']]}, not {_shown(error['input'])}"
    return f"{_path(location)}: {message}"


def _path(location: Location) -> str:
    """Return a path such as `models[1].loadBalancing.strategy`."""
    path = ""
    for step in location:
        name = step if isinstance(step, str) and step.isprintable() else repr(step)
        path += f"[{step}]" if isinstance(step, int) else f".{name}"
    return path.removeprefix(".") or "the document"


def _keys(location: Location) -> list[str]:
    """Return the keys that are allowed at a location of the document."""
    model: type[BaseModel] = ModelsSpec
    for step in location:
        field = next((f for f in model.model_fields.values() if f.alias == step), None)
        inner = _model_within(field.annotation) if field else None
        model = inner or model
    return [str(field.alias) for field in model.model_fields.values()]


def _model_within(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_within, get_args(annotation))), None)


def _joined(options: Sequence[str]) -> str:
    return ", ".join(options)


def _shown(value: object) -> str:
    # Shortened while it is built: a few YAML aliases can expand to more than fits in memory.
    return "nothing" if value is None else reprlib.repr(value)


def _name_clashes(spec: ModelsSpec) -> Iterator[str]:
    """Yield a problem for each name that occurs twice, because requests with it are ambiguous."""
    first: dict[str, str] = {}
    for position, model in enumerate(spec.models):
        for key, name in model.names():
            path = f"models[{position}].{key}"
            if name in first:
                yield f"{path}: the name {name!r} is already taken by {first[name]}"
            else:
                first[name] = path


def _dangling_targets(spec: ModelsSpec) -> Iterator[str]:
    """Yield a problem for each target of a split that is not a model or adapter with servers."""
    known = spec.served_names()
    served = set(known)
    dangling = ((path, name) for path, name in _targets(spec) if name not in served)
    for number, (path, name) in enumerate(dangling):
        # A suggestion takes milliseconds if a document has thousands of names.
        close = suggestion(name, known) if number < _MOST_IN_MESSAGE else ""
        yield f"{path}: {name!r} is no model or adapter of this document{close}"


def _targets(spec: ModelsSpec) -> Iterator[tuple[str, str]]:
    """Yield the path and the name of each target of a split."""
    for position, model in enumerate(spec.models):
        for place, target in enumerate(model.split.targets if model.split else ()):
            yield f"models[{position}].split.targets[{place}].model", target.model
