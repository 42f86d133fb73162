"""Compares our messages with Envoy's official descriptors.

Both sets use the same names, which protobuf's default pool does not allow in one process. Another
process therefore writes the official ones, and they get a separate pool here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import (
    Descriptor,
    EnumDescriptor,
    FieldDescriptor,
    MethodDescriptor,
)
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2 as official_health_pb2

from extproc.edge.grpc.health import SERVICE
from extproc.edge.wire import (
    external_processor_pb2,
    header_pb2,
    health_pb2,
    http_status_pb2,
    metadata_pb2,
    processing_mode_pb2,
)

MODULES = (header_pb2, http_status_pb2, metadata_pb2, processing_mode_pb2, external_processor_pb2)
ROOT = Path(__file__).parents[2]

_WRITE_OFFICIAL = """
import sys
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from envoy.service.ext_proc.v3 import external_processor_pb2

written, files = set(), FileDescriptorSet()
def write(file):
    if file.name not in written:
        written.add(file.name)
        for dependency in file.dependencies:
            write(dependency)
        file.CopyToProto(files.file.add())
write(external_processor_pb2.DESCRIPTOR)
sys.stdout.buffer.write(files.SerializeToString())
"""


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> DescriptorPool:
    """Return Envoy's own descriptors."""
    # Elsewhere: our directory `envoy` would stand before the package of that name.
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    command = [sys.executable, "-P", "-c", _WRITE_OFFICIAL]
    # The Makefile installs them there.
    env = {**os.environ, "PYTHONPATH": str(Path(sys.prefix, "xds-protos"))}
    run = subprocess.run(command, cwd=elsewhere, env=env, capture_output=True, check=True)
    return pool_of(FileDescriptorSet.FromString(run.stdout))


def ours() -> FileDescriptorSet:
    """Return our descriptors after their dependencies."""
    files = FileDescriptorSet()
    for dependency in external_processor_pb2.DESCRIPTOR.dependencies:
        if dependency.name.startswith("google/"):
            dependency.CopyToProto(files.file.add())
    for module in MODULES:
        module.DESCRIPTOR.CopyToProto(files.file.add())
    return files


def pool_of(files: FileDescriptorSet) -> DescriptorPool:
    pool = DescriptorPool()
    for file in files.file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


def differences(files: FileDescriptorSet, official: DescriptorPool) -> list[str]:
    """Return the differences from the official files. Omissions are allowed."""
    pool = pool_of(files)
    found: list[str] = []
    for proto in files.file:
        file = pool.FindFileByName(proto.name)
        for message in file.message_types_by_name.values():
            found += _in_message(message, official)
        for enum in file.enum_types_by_name.values():
            found += _in_enum(enum, official)
        for service in file.services_by_name.values():
            theirs = official.FindServiceByName(service.full_name)
            for name, method in service.methods_by_name.items():
                other = theirs.methods_by_name.get(name)
                if other is None or _shape(method) != _shape(other):
                    found.append(f"{service.full_name}.{name}")
    return found


def _in_message(message: Descriptor, official: DescriptorPool) -> Iterator[str]:
    try:
        theirs = official.FindMessageTypeByName(message.full_name)
    except KeyError:
        yield f"{message.full_name} is unknown"
        return
    if message.GetOptions().map_entry != theirs.GetOptions().map_entry:
        yield f"{message.full_name}: map entry"
    for name, field in message.fields_by_name.items():
        other = theirs.fields_by_name.get(name)
        if other is None:
            yield f"{field.full_name} is unknown"
        elif _field(field) != _field(other):
            yield f"{field.full_name}: {_field(field)}, not {_field(other)}"
    for oneof in message.oneofs_by_name:
        if oneof not in theirs.oneofs_by_name:
            yield f"{message.full_name}.{oneof} is unknown"
    for nested in message.nested_types:
        yield from _in_message(nested, official)
    for enum in message.enum_types:
        yield from _in_enum(enum, official)


def _field(field: FieldDescriptor) -> tuple[object, ...]:
    return (
        field.number,
        field.type,
        field.is_repeated,
        field.has_presence,
        field.is_packed,
        field.json_name,
        field.message_type.full_name if field.message_type else None,
        field.enum_type.full_name if field.enum_type else None,
        field.containing_oneof.name if field.containing_oneof else None,
    )


def _in_enum(enum: EnumDescriptor, official: DescriptorPool) -> Iterator[str]:
    try:
        theirs = official.FindEnumTypeByName(enum.full_name)
    except KeyError:
        yield f"{enum.full_name} is unknown"
        return
    for value in enum.values:
        other = theirs.values_by_name.get(value.name)
        if other is None or other.number != value.number:
            yield f"{enum.full_name}.{value.name} = {value.number}"


def _shape(method: MethodDescriptor) -> tuple[object, ...]:
    return (
        method.input_type.full_name,
        method.output_type.full_name,
        method.client_streaming,
        method.server_streaming,
    )


def test_every_message_field_enum_and_method_matches_envoy(official: DescriptorPool) -> None:
    assert differences(ours(), official) == []


def test_service_has_the_name_that_envoy_calls(official: DescriptorPool) -> None:
    service = official.FindServiceByName(SERVICE)
    assert list(service.methods_by_name) == ["Process"]


def message(files: FileDescriptorSet, name: str) -> DescriptorProto:
    return next(m for file in files.file for m in file.message_type if m.name == name)


def field(files: FileDescriptorSet, name: str, of: str) -> FieldDescriptorProto:
    return next(f for f in message(files, of).field if f.name == name)


def _set(files: FileDescriptorSet, of: str, which: str, **values: object) -> None:
    found = field(files, which, of)
    for key, value in values.items():
        setattr(found, key, value)


Drift = Callable[[FileDescriptorSet], object]
DRIFTS: dict[str, Drift] = {
    "a field's number": lambda f: _set(f, "HttpBody", "end_of_stream", number=3),
    "a field's type": lambda f: _set(f, "HttpBody", "body", type=FieldDescriptorProto.TYPE_STRING),
    "a field's name": lambda f: _set(f, "HttpBody", "body", name="content"),
    "a field's label": lambda f: _set(
        f, "HeaderMutation", "remove_headers", label=FieldDescriptorProto.LABEL_OPTIONAL
    ),
    "a field's message": lambda f: _set(
        f,
        "BodyResponse",
        "response",
        type_name=".envoy.service.ext_proc.v3.HeaderMutation",
    ),
    "a field's enum": lambda f: _set(
        f,
        "HttpStatus",
        "code",
        type_name=".envoy.type.v3.Other",
    ),
    "a field out of its oneof": lambda f: field(f, "request_body", "ProcessingRequest").ClearField(
        "oneof_index"
    ),
    "a oneof's name": lambda f: setattr(
        message(f, "ProcessingRequest").oneof_decl[0], "name", "event"
    ),
    "a field of our own": lambda f: message(f, "HttpBody").field.add(
        name="ours",
        number=77,
        type=FieldDescriptorProto.TYPE_BOOL,
        label=FieldDescriptorProto.LABEL_OPTIONAL,
    ),
    "a message of our own": lambda f: f.file[-1].message_type.add(name="Ours"),
    "an enum's number": lambda f: setattr(
        message(f, "ProcessingMode").enum_type[0].value[1], "number", 9
    ),
    "an enum's name": lambda f: setattr(
        message(f, "ProcessingMode").enum_type[0].value[1], "name", "CHUNKED"
    ),
    "a method's stream": lambda f: setattr(
        f.file[-1].service[0].method[0], "client_streaming", False
    ),
    "a method's name": lambda f: setattr(f.file[-1].service[0].method[0], "name", "Handle"),
}


@pytest.mark.parametrize("drift", DRIFTS)
def test_comparison_finds_every_kind_of_drift(drift: str, official: DescriptorPool) -> None:
    files = ours()
    if drift == "a field's enum":
        status = next(file for file in files.file if file.name.endswith("http_status.proto"))
        status.enum_type.add(name="Other").value.add(name="Empty_", number=0)
    DRIFTS[drift](files)
    assert differences(files, official) != []


def test_generated_modules_match_the_protos(tmp_path: Path) -> None:
    out = tmp_path / "compiled"
    sources = sorted((ROOT / "protos/extproc/edge/wire").glob("*.proto"))
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(ROOT / "protos")]
    subprocess.run([*command, f"--descriptor_set_out={out}", *map(str, sources)], check=True)
    compiled = FileDescriptorSet.FromString(out.read_bytes())
    assert {file.name: bare(file) for file in compiled.file} == {
        module.DESCRIPTOR.name: bare(
            FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
        )
        for module in (*MODULES, health_pb2)
    }


@pytest.mark.parametrize("name", ["HealthCheckRequest", "HealthCheckResponse"])
def test_health_messages_match_grpc(name: str) -> None:
    def described(module: Any) -> str:
        copy = DescriptorProto()
        module.DESCRIPTOR.message_types_by_name[name].CopyToProto(copy)
        return str(copy).replace(module.DESCRIPTOR.package, "")

    assert described(health_pb2) == described(official_health_pb2)


def bare(file: FileDescriptorProto) -> bytes:
    """Remove the JSON names, which one of the two forms omits."""

    def strip(message: DescriptorProto) -> None:
        for field in message.field:
            field.ClearField("json_name")
        for nested in message.nested_type:
            strip(nested)

    copy = FileDescriptorProto()
    copy.CopyFrom(file)
    for top in copy.message_type:
        strip(top)
    return copy.SerializeToString(deterministic=True)
