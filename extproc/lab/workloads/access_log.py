"""Replays the user's own traffic, from Envoy's access log or from a file of requests.

Both have a JSON object on each line, and one file may mix them:

- Envoy's access log as the files in envoy/ configure it. It has sizes in bytes and the hash of the
  prefix, but no tokens and no text, so much is estimated; see `Assumptions`.
- A request as `{"time", "model", "prompt" | "prefix_hashes", "output_tokens", "adapter"}`, for
  sources that can log more. `prefix_hashes` is a chain, one for each block of the prompt: equal
  hashes mean equal prompts up to the end of that block. `block_tokens` is the block's size (default
  16). `prompt_tokens` is the length of the prompt, if it is longer than its blocks; the text beyond
  them is unique. A `prompt` is compared as text, in blocks of as many characters as 16 tokens have.

`time` is in seconds from any zero, or an RFC 3339 time. A workload is for one model, with any
adapters; a file with several models is refused.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from extproc.lab.workloads.envoy_line import Assumptions, EnvoyLine
from extproc.lab.workloads.jsonl import WorkloadError, read
from extproc.lab.workloads.recorded import Recorded
from extproc.lab.workloads.request_line import RequestLine
from extproc.lab.workloads.workload import Session, Workload

_LONGEST_SECONDS = 366 * 86_400.0


def access_log(path: Path, pace: float = 1.0, assumptions: Assumptions | None = None) -> Workload:
    """Return each request at its time; `pace` 2 replays the file in half the time.

    From Envoy's log it leaves out lines of other APIs, lines without an endpoint, and failed
    requests. The first remaining line starts the run.

    Raises WorkloadError with the number of each bad line.
    """
    lines = read(path, partial(_recorded, assumptions or Assumptions()))
    asked = [request for request in lines if request is not None]
    if not asked:
        raise WorkloadError(f"{path}: no request has both an endpoint and a successful response")
    _check_models(path, {request.model for request in asked})
    asked.sort(key=lambda request: request.time)
    if asked[-1].time - asked[0].time > _LONGEST_SECONDS:
        raise WorkloadError(
            f"{path}: covers more than a year: write all times as dates, or all as seconds"
        )
    return Workload(
        name="access-log",
        sessions=[
            Session((request.turn,), (request.time - asked[0].time) / pace) for request in asked
        ],
        api="completions" if all(one.api == "completions" for one in asked) else "chat",
    )


def _recorded(assumed: Assumptions, number: int, content: dict[str, object]) -> Recorded | None:
    if "bytes_received" in content:
        return EnvoyLine.model_validate(content).request(number, assumed)
    return RequestLine.model_validate(content).request(number)


def _check_models(path: Path, models: set[str]) -> None:
    if len(models) > 1:
        raise WorkloadError(
            f"{path}: has requests for {len(models)} models ({', '.join(sorted(models))}); "
            "a fleet serves one: keep the lines of one model"
        )
