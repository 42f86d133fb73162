"""The model that a request names, and the errors if it names none."""

from __future__ import annotations

from collections.abc import Sequence

from extproc.core.request.paths import Api
from extproc.core.request.refusals import InvalidRequest, known_models

MODEL_HEADER = "x-model"
"""Request header that names the model if the body does not."""


def invalid_model() -> InvalidRequest:
    """Return the refusal of a body whose model is not a non-empty string."""
    return InvalidRequest("'model' must be a non-empty string.", param="model")


def missing_model(api: Api, known: Sequence[str], cut_at: int | None = None) -> InvalidRequest:
    """Return the refusal of a body that names no model. Its message says how to name one.

    `cut_at`: the number of bytes that the gateway sends, if it sends only the first part.
    """
    body = "form" if api is Api.FORM else "body"
    if cut_at is None:
        problem = f"The {body} does not name a model. Put 'model' into the {body}"
    else:
        problem = (
            f"The first {cut_at} bytes of the {body}, which is all the router sees, do not name "
            "the model. Put 'model' before the long fields"
        )
    return InvalidRequest(
        f"{problem}, or send the header '{MODEL_HEADER}'. {known_models(known)}", param="model"
    )
